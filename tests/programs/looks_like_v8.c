// Behaviour: exports the functions by which V8's bridge knows V8. The one that is called when the bridge joins allocates; nothing is
// ever collected.
#include "check.h"

#define BLOCKS 1000
#define BYTES 4096

NOINLINE void _ZN2v88internal7Isolate16RequestInterruptEPFvPNS_7IsolateEPvES4_(void) {
    KEEP(NULL);
}
// Nothing but a jump, as V8's.
NOINLINE void _ZN2v87Isolate16RequestInterruptEPFvPS0_PvES2_(void) {
    _ZN2v88internal7Isolate16RequestInterruptEPFvPNS_7IsolateEPvES4_();
}

void _ZN2v82V818SetFlagsFromStringEPKc(const char *flags) {
    char *copy = strdup(flags);
    CHECK(copy != NULL);
    KEEP(copy);
    free(copy);
}

const char *_ZN2v82V810GetVersionEv(void) {
    return "13.6.233.17-node.40";
}

#define STUB(NAME)                                                                                                     \
    void *NAME(void) {                                                                                                 \
        return NULL;                                                                                                   \
    }
STUB(_ZN2v87Isolate13TryGetCurrentEv)
STUB(_ZN2v87Isolate15GetHeapProfilerEv)
STUB(_ZN2v812HeapProfiler25StartSamplingHeapProfilerEmiNS0_13SamplingFlagsE)
STUB(_ZN2v812HeapProfiler24StopSamplingHeapProfilerEv)
STUB(_ZN2v812HeapProfiler20GetAllocationProfileEv)
STUB(_ZN2v87Isolate21AddGCPrologueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_S2_)
STUB(_ZN2v87Isolate21AddGCEpilogueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_S2_)
STUB(_ZN2v87Isolate24RemoveGCPrologueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_)
STUB(_ZN2v87Isolate24RemoveGCEpilogueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_)
STUB(_ZN2v87Isolate22SetJitCodeEventHandlerENS_19JitCodeEventOptionsEPFvPKNS_12JitCodeEventEE)
STUB(_ZN2v814HeapStatisticsC1Ev)
STUB(_ZN2v87Isolate17GetHeapStatisticsEPNS_14HeapStatisticsE)
STUB(_ZN2v87Isolate17GetCurrentContextEv)
STUB(_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE)
STUB(_ZN4node6AtExitEPNS_11EnvironmentEPFvPvES2_)
STUB(_ZNK2v86String11WriteUtf8V2EPNS_7IsolateEPcmiPm)

int main(void) {
    for (int block = 0; block < BLOCKS; block++) {
        void *kept = malloc(BYTES);
        CHECK(kept != NULL);
        KEEP(kept);
    }
    puts("done");
    return 0;
}
