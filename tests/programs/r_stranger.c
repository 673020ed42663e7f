// Has the symbols of R, and contexts that lead nowhere behind them.
#include "stranger.h"

static uintptr_t contexts[8][64], object[16];
#define OBJECT(NAME) void *NAME = object;
void *R_GlobalContext = contexts;
OBJECT(R_Srcref)
OBJECT(R_NilValue)
OBJECT(R_InBCInterpreter)
OBJECT(R_BaseEnv)
OBJECT(R_BaseNamespace)
OBJECT(R_GlobalEnv)
OBJECT(R_SrcfileSymbol)
OBJECT(R_SrcrefSymbol)
OBJECT(R_ClassSymbol)
OBJECT(R_DoubleColonSymbol)
OBJECT(R_TripleColonSymbol)
OBJECT(R_DollarSymbol)
OBJECT(R_BCNodeStackEnd)
OBJECT(R_CStackStart)
#ifdef HAS_ALL
int R_PPStackTop;
#endif

void Rf_eval(void)
{
}

void Rf_initialize_R(void)
{
}

static void change(size_t round)
{
    contexts[0][0] = a_link(round, contexts);
}

int main(void)
{
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 1; j < 64; j++)
            contexts[i][j] = (uintptr_t)(j % 2 == 0 ? contexts[j % 8] : (void *)1);
    return allocate();
}
