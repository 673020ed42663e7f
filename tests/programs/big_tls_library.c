// Behaviour: a library needs much thread-local storage, dynamic or from the static reserve (-DINITIAL_EXEC).
#include "check.h"

#ifdef INITIAL_EXEC
enum { BYTES = 256 };
__attribute__((tls_model("initial-exec")))
#else
enum { BYTES = 20000 };
#endif
static __thread unsigned char storage[BYTES];

int use_storage(unsigned tag) {
    paint(storage, BYTES, tag);
    churn(20, 2000, tag);
    return is_painted(storage, BYTES, tag);
}
