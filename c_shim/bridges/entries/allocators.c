/* The functions by which programs reach mimalloc (2 and 3), tcmalloc (gperftools' and Google's own) and jemalloc (3 to 5). The linker
 * often leaves out those that a program does not use. */
#include "entries.h"

#include "kit/mallctl.h"
#include "kit/tcmalloc.h"

#include <string.h>

static const struct entry_row mimalloc[] = {
    {"mi_malloc", ENTRY_ALLOCATES, "s"},
    {"mi_zalloc", ENTRY_ALLOCATES, "s"},
    {"mi_calloc", ENTRY_ALLOCATES, "ns"},
    {"mi_mallocn", ENTRY_ALLOCATES, "ns"},
    {"mi_malloc_small", ENTRY_ALLOCATES, "S"},
    {"mi_zalloc_small", ENTRY_ALLOCATES, "S"},
    {"mi_malloc_aligned", ENTRY_ALLOCATES, "sa"},
    {"mi_malloc_aligned_at", ENTRY_ALLOCATES, "sao"},
    {"mi_zalloc_aligned", ENTRY_ALLOCATES, "sa"},
    {"mi_zalloc_aligned_at", ENTRY_ALLOCATES, "sao"},
    {"mi_calloc_aligned", ENTRY_ALLOCATES, "nsa"},
    {"mi_calloc_aligned_at", ENTRY_ALLOCATES, "nsao"},
    {"mi_new", ENTRY_ALLOCATES, "s"},
    {"mi_new_n", ENTRY_ALLOCATES, "ns"},
    {"mi_new_nothrow", ENTRY_ALLOCATES, "s"},
    {"mi_new_aligned", ENTRY_ALLOCATES, "sa"},
    {"mi_new_aligned_nothrow", ENTRY_ALLOCATES, "sa"},
    {"mi_valloc", ENTRY_ALLOCATES, "P"},
    {"mi_pvalloc", ENTRY_ALLOCATES, "P"},
    {"mi_memalign", ENTRY_ALLOCATES, "as"},
    {"mi_aligned_alloc", ENTRY_ALLOCATES, "as"},
    {"mi_posix_memalign", ENTRY_STORES, "pas"},
    {"mi_realloc", ENTRY_RESIZES, "bs"},
    {"mi_reallocn", ENTRY_RESIZES, "bns"},
    {"mi_rezalloc", ENTRY_RESIZES, "bs"},
    {"mi_recalloc", ENTRY_RESIZES, "bns"},
    {"mi_new_realloc", ENTRY_RESIZES, "bs"},
    {"mi_new_reallocn", ENTRY_RESIZES, "bns"},
    {"mi_realloc_aligned", ENTRY_RESIZES, "bsa"},
    {"mi_realloc_aligned_at", ENTRY_RESIZES, "bsao"},
    {"mi_rezalloc_aligned", ENTRY_RESIZES, "bsa"},
    {"mi_rezalloc_aligned_at", ENTRY_RESIZES, "bsao"},
    {"mi_recalloc_aligned", ENTRY_RESIZES, "bnsa"},
    {"mi_free", ENTRY_FREES, "b"},
    {"mi_cfree", ENTRY_FREES, "b"},
    {"mi_free_size", ENTRY_FREES, "bs"},
    {"mi_free_aligned", ENTRY_FREES, "ba"},
    {"mi_free_size_aligned", ENTRY_FREES, "bsa"},
};

/* C++'s operators and `malloc` are other names of these. */
static const struct entry_row gperftools[] = {
    {"tc_malloc", ENTRY_ALLOCATES, "s"},
    {"tc_malloc_skip_new_handler", ENTRY_ALLOCATES, "s"},
    {"tc_calloc", ENTRY_ALLOCATES, "ns"},
    {"tc_memalign", ENTRY_ALLOCATES, "as"},
    {"tc_valloc", ENTRY_ALLOCATES, "P"},
    {"tc_pvalloc", ENTRY_ALLOCATES, "P"},
    {"tc_posix_memalign", ENTRY_STORES, "pas"},
    {"tc_new", ENTRY_ALLOCATES, "s"},
    {"tc_newarray", ENTRY_ALLOCATES, "s"},
    {"tc_new_nothrow", ENTRY_ALLOCATES, "s-"},
    {"tc_newarray_nothrow", ENTRY_ALLOCATES, "s-"},
    {"tc_new_aligned", ENTRY_ALLOCATES, "sa"},
    {"tc_newarray_aligned", ENTRY_ALLOCATES, "sa"},
    {"tc_new_aligned_nothrow", ENTRY_ALLOCATES, "sa-"},
    {"tc_newarray_aligned_nothrow", ENTRY_ALLOCATES, "sa-"},
    {"tc_realloc", ENTRY_RESIZES, "bs"},
    {"tc_free", ENTRY_FREES, "b"},
    {"tc_cfree", ENTRY_FREES, "b"},
    {"tc_free_sized", ENTRY_FREES, "bs"},
    {"tc_delete", ENTRY_FREES, "b"},
    {"tc_deletearray", ENTRY_FREES, "b"},
    {"tc_delete_nothrow", ENTRY_FREES, "b-"},
    {"tc_deletearray_nothrow", ENTRY_FREES, "b-"},
    {"tc_delete_sized", ENTRY_FREES, "bs"},
    {"tc_deletearray_sized", ENTRY_FREES, "bs"},
    {"tc_delete_aligned", ENTRY_FREES, "ba"},
    {"tc_deletearray_aligned", ENTRY_FREES, "ba"},
    {"tc_delete_aligned_nothrow", ENTRY_FREES, "ba-"},
    {"tc_deletearray_aligned_nothrow", ENTRY_FREES, "ba-"},
    {"tc_delete_sized_aligned", ENTRY_FREES, "bsa"},
    {"tc_deletearray_sized_aligned", ENTRY_FREES, "bsa"},
};

/* C++'s operators and `malloc` are other names of these, too, except for the operators with a hot/cold hint, which are functions of their
 * own. No restartable sequence (rseq) is ever moved: two instructions precede it, which load and store the address of its descriptor,
 * and the jump replaces the first of them at most. */
static const struct entry_row google[] = {
    {"TCMallocInternalMalloc", ENTRY_ALLOCATES, "s"},
    {"TCMallocInternalCalloc", ENTRY_ALLOCATES, "ns"},
    {"TCMallocInternalMemalign", ENTRY_ALLOCATES, "as"},
    {"TCMallocInternalAlignedAlloc", ENTRY_ALLOCATES, "as"},
    {"TCMallocInternalValloc", ENTRY_ALLOCATES, "P"},
    {"TCMallocInternalPvalloc", ENTRY_ALLOCATES, "P"},
    {"TCMallocInternalPosixMemalign", ENTRY_STORES, "pas"},
    {"TCMallocInternalNew", ENTRY_ALLOCATES, "s"},
    {"TCMallocInternalNewArray", ENTRY_ALLOCATES, "s"},
    {"TCMallocInternalNewNothrow", ENTRY_ALLOCATES, "s-"},
    {"TCMallocInternalNewArrayNothrow", ENTRY_ALLOCATES, "s-"},
    {"TCMallocInternalNewAligned", ENTRY_ALLOCATES, "sa"},
    {"TCMallocInternalNewArrayAligned", ENTRY_ALLOCATES, "sa"},
    {"TCMallocInternalNewAlignedNothrow", ENTRY_ALLOCATES, "sa-"},
    {"TCMallocInternalNewArrayAlignedNothrow", ENTRY_ALLOCATES, "sa-"},
    {"_Znwm12__hot_cold_t", ENTRY_ALLOCATES, "s-"},
    {"_Znam12__hot_cold_t", ENTRY_ALLOCATES, "s-"},
    {"_ZnwmRKSt9nothrow_t12__hot_cold_t", ENTRY_ALLOCATES, "s--"},
    {"_ZnamRKSt9nothrow_t12__hot_cold_t", ENTRY_ALLOCATES, "s--"},
    {"_ZnwmSt11align_val_t12__hot_cold_t", ENTRY_ALLOCATES, "sa-"},
    {"_ZnamSt11align_val_t12__hot_cold_t", ENTRY_ALLOCATES, "sa-"},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t", ENTRY_ALLOCATES, "sa--"},
    {"_ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t", ENTRY_ALLOCATES, "sa--"},
    {"TCMallocInternalRealloc", ENTRY_RESIZES, "bs"},
    {"TCMallocInternalReallocArray", ENTRY_RESIZES, "bns"},
    {"TCMallocInternalFree", ENTRY_FREES, "b"},
    {"TCMallocInternalCfree", ENTRY_FREES, "b"},
    {"TCMallocInternalFreeSized", ENTRY_FREES, "bs"},
    {"TCMallocInternalFreeAlignedSized", ENTRY_FREES, "bas"},
    {"TCMallocInternalSdallocx", ENTRY_FREES, "bsf"},
    {"TCMallocInternalDelete", ENTRY_FREES, "b"},
    {"TCMallocInternalDeleteArray", ENTRY_FREES, "b"},
    {"TCMallocInternalDeleteNothrow", ENTRY_FREES, "b-"},
    {"TCMallocInternalDeleteArrayNothrow", ENTRY_FREES, "b-"},
    {"TCMallocInternalDeleteSized", ENTRY_FREES, "bs"},
    {"TCMallocInternalDeleteArraySized", ENTRY_FREES, "bs"},
    {"TCMallocInternalDeleteAligned", ENTRY_FREES, "ba"},
    {"TCMallocInternalDeleteArrayAligned", ENTRY_FREES, "ba"},
    {"TCMallocInternalDeleteAlignedNothrow", ENTRY_FREES, "ba-"},
    {"TCMallocInternalDeleteArrayAlignedNothrow", ENTRY_FREES, "ba-"},
    {"TCMallocInternalDeleteSizedAligned", ENTRY_FREES, "bsa"},
    {"TCMallocInternalDeleteArraySizedAligned", ENTRY_FREES, "bsa"},
};

/* The operators may be somebody else's: plan.c drops those. */
static const struct entry_row jemalloc[] = {
    {"malloc", ENTRY_ALLOCATES, "s"},
    {"calloc", ENTRY_ALLOCATES, "ns"},
    {"mallocx", ENTRY_ALLOCATES, "sf"},
    {"aligned_alloc", ENTRY_ALLOCATES, "as"},
    {"memalign", ENTRY_ALLOCATES, "as"},
    {"valloc", ENTRY_ALLOCATES, "P"},
    {"pvalloc", ENTRY_ALLOCATES, "P"},
    {"posix_memalign", ENTRY_STORES, "pas"},
    {"realloc", ENTRY_RESIZES, "bs"},
    {"rallocx", ENTRY_RESIZES, "bsf"},
    {"xallocx", ENTRY_IN_PLACE, "bsof"},
    {"free", ENTRY_FREES, "b"},
    {"dallocx", ENTRY_FREES, "bf"},
    {"sdallocx", ENTRY_FREES, "bsf"},
    {"free_sized", ENTRY_FREES, "bs"},
    {"free_aligned_sized", ENTRY_FREES, "bas"},
    {"_Znwm", ENTRY_ALLOCATES, "s"},
    {"_Znam", ENTRY_ALLOCATES, "s"},
    {"_ZnwmRKSt9nothrow_t", ENTRY_ALLOCATES, "s-"},
    {"_ZnamRKSt9nothrow_t", ENTRY_ALLOCATES, "s-"},
    {"_ZnwmSt11align_val_t", ENTRY_ALLOCATES, "sa"},
    {"_ZnamSt11align_val_t", ENTRY_ALLOCATES, "sa"},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t", ENTRY_ALLOCATES, "sa-"},
    {"_ZnamSt11align_val_tRKSt9nothrow_t", ENTRY_ALLOCATES, "sa-"},
    {"_ZdlPv", ENTRY_FREES, "b"},
    {"_ZdaPv", ENTRY_FREES, "b"},
    {"_ZdlPvRKSt9nothrow_t", ENTRY_FREES, "b-"},
    {"_ZdaPvRKSt9nothrow_t", ENTRY_FREES, "b-"},
    {"_ZdlPvm", ENTRY_FREES, "bs"},
    {"_ZdaPvm", ENTRY_FREES, "bs"},
    {"_ZdlPvSt11align_val_t", ENTRY_FREES, "ba"},
    {"_ZdaPvSt11align_val_t", ENTRY_FREES, "ba"},
    {"_ZdlPvSt11align_val_tRKSt9nothrow_t", ENTRY_FREES, "ba-"},
    {"_ZdaPvSt11align_val_tRKSt9nothrow_t", ENTRY_FREES, "ba-"},
    {"_ZdlPvmSt11align_val_t", ENTRY_FREES, "bsa"},
    {"_ZdaPvmSt11align_val_t", ENTRY_FREES, "bsa"},
};

bool entry_is_operator(const struct entry_row *row)
{
    return strncmp(row->name, "_Z", 2) == 0;
}

static bool begins_with(const char *name, const char *beginning)
{
    return strncmp(name, beginning, strlen(beginning)) == 0;
}

static bool begins_with_one(const char *name, const char *const *beginnings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (begins_with(name, beginnings[i]))
            return true;
    return false;
}
#define BEGINS_WITH_ONE(NAME, LIST) begins_with_one(NAME, LIST, sizeof LIST / sizeof LIST[0])

static enum ownership mimalloc_owns(const char *name)
{
    static const char *const own[] = {"mi_", "_mi_"};
    return BEGINS_WITH_ONE(name, own) ? OWN_BY_NAME : OWN_NOT;
}

static enum ownership gperftools_owns(const char *name)
{
    static const char *const own[] = {"tc_", "_ZN8tcmalloc", "_ZNK8tcmalloc"};
    return BEGINS_WITH_ONE(name, own) ? OWN_BY_NAME : OWN_NOT;
}

/* Those with a block's size beside the block in what they return, and one of the crate `libtcmalloc-sys`, are no rows. */
static const char *const google_size_returning[] = {"__size_returning_new", "tcmalloc_size_returning_operator_new",
                                                    "BridgePrepareReallocAligned"};

static enum ownership google_owns(const char *name)
{
    static const char *const own[] = {"TCMallocInternal", "_ZN8tcmalloc", "_ZNK8tcmalloc"};
    return BEGINS_WITH_ONE(name, own) || BEGINS_WITH_ONE(name, google_size_returning) ? OWN_BY_NAME : OWN_NOT;
}

static bool is_of_blocks(const char *name)
{
    return (strstr(name, "alloc") != NULL || strstr(name, "free") != NULL) && strstr(name, "usable") == NULL &&
           strstr(name, "nallocx") == NULL && strstr(name, "size") == NULL;
}

static bool mimalloc_hands_out(const char *name)
{
    return mimalloc_owns(name) != OWN_NOT && (is_of_blocks(name) || begins_with(name, "mi_new"));
}

static bool gperftools_hands_out(const char *name)
{
    return begins_with(name, "tc_") && is_of_blocks(name);
}

static bool google_hands_out(const char *name)
{
    static const char *const others[] = {"TCMallocInternalMallInfo", "TCMallocInternalMallOpt", "TCMallocInternalMalloc"};
    if (BEGINS_WITH_ONE(name, google_size_returning))
        return true;
    return begins_with(name, "TCMallocInternal") && !BEGINS_WITH_ONE(name, others);
}

/* Static functions have no prefix. A program's own functions may have such names, too. */
static enum ownership jemalloc_owns(const char *name)
{
    static const char *const internal[] = {
        "a0",       "arena",     "background_thread", "base_",    "batch_",    "bin_",    "buf_writer", "cache_bin",
        "chunk",    "ckh_",      "ctl_",              "decay_",   "do_ral",    "do_real", "ecache",     "edata",
        "ehooks",   "emap",      "eset",              "exp_",     "experiment", "extent", "free_def",   "hook",
        "hpa",      "hpdata",    "huge_",             "ialloc",   "iarena",    "icalloc", "idalloc",    "ifree",
        "imalloc",  "imemalign", "inspect",           "ipalloc",  "iralloc",   "irealloc", "isalloc",   "isdalloc",
        "isfree",   "ixalloc",   "large_",            "malloc_",  "opt_",      "pa_",     "pac_",       "pages_",
        "pai_",     "peak",      "prof",              "psset",    "quarantine", "rtree",  "safety",     "san_",
        "sdalloc",  "sec_",      "stats_",            "tcache",   "te_",       "thread_", "tsd_",       "witness",
    };
    static const char *const of_operators[] = {"_Z13fallback_impl", "_ZL9handleOOM", "_Z7newImpl", "_ZL7newImpl"};
    if (begins_with(name, "je_"))
        return OWN_BY_NAME;
    /* Most names of a large program begin like those of the operators. */
    bool is_probable = name[0] == '_' ? BEGINS_WITH_ONE(name, of_operators) : BEGINS_WITH_ONE(name, internal);
    return is_probable ? OWN_PROBABLY : OWN_NOT;
}

/* The slow paths of its fast paths, which a compiler may have put into the program's functions. */
static bool jemalloc_hands_out(const char *name)
{
    static const char *const known[] = {
        "arena_dalloc_no_tcache", "arena_dalloc_promoted", "arena_dalloc_small", "arena_malloc",
        "arena_malloc_hard",      "arena_malloc_large",    "arena_palloc",       "arena_ralloc",
        "arena_sdalloc_no_tcache", "batch_alloc",          "do_rallocx",         "do_realloc_nonnull",
        "do_realloc_nonnull_zero", "free_default",         "huge_dalloc",        "huge_malloc",
        "huge_palloc",            "huge_ralloc",           "ifree",              "isfree",
        "large_dalloc",           "large_malloc",          "large_palloc",       "large_ralloc",
        "malloc_default",         "sdallocx_default",      "sdallocx_noflags",   "tcache_alloc_small_hard",
        "tcache_bin_flush_large", "tcache_bin_flush_small", "tcache_bin_flush_stashed",
    };
    if (begins_with(name, "je_"))
        name += strlen("je_");
    size_t length = strcspn(name, ".");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i]) == length && strncmp(name, known[i], length) == 0)
            return true;
    return begins_with(name, "smallocx");
}

/* ---- their own counts ---- */

/* mimalloc counts blocks only in builds for debugging. What it has committed is in every build since 1.6, and the function that says so
 * takes no lock, and has had these arguments since. */
static bool mimalloc_counts(uintptr_t control, uint64_t bytes[OWN_FIGURES])
{
    typedef void process_info(size_t *elapsed_ms, size_t *user_ms, size_t *system_ms, size_t *resident, size_t *most_resident,
                              size_t *committed, size_t *most_committed, size_t *page_faults);
    process_info *get;
    size_t committed = 0, most_committed = 0, others[6];
    memcpy(&get, &control, sizeof get);
    get(&others[0], &others[1], &others[2], &others[3], &others[4], &committed, &most_committed, &others[5]);
    for (size_t i = 0; i < OWN_FIGURES; i++)
        bytes[i] = OWN_UNKNOWN;
    bytes[OWN_RESIDENT] = committed;
    return committed > 0 && committed <= most_committed;
}

static bool gperftools_counts(uintptr_t control, uint64_t bytes[OWN_FIGURES])
{
    gperftools_get_property *get_property;
    memcpy(&get_property, &control, sizeof get_property);
    return gperftools_count(get_property, bytes);
}

static bool google_counts(uintptr_t control, uint64_t bytes[OWN_FIGURES])
{
    google_get_property *get_property;
    memcpy(&get_property, &control, sizeof get_property);
    return google_count(get_property, bytes);
}

static bool jemalloc_counts(uintptr_t control, uint64_t bytes[OWN_FIGURES])
{
    mallctl_function *mallctl;
    memcpy(&mallctl, &control, sizeof mallctl);
    return mallctl_count(mallctl, bytes);
}

#define ROWS(TABLE) .rows = TABLE, .count = sizeof TABLE / sizeof TABLE[0]

const struct entry_allocator entry_allocators[] = {
    {
        .name = "mimalloc",
        .key = "mi_free",
        .control = "mi_process_info",
        .own_counts = mimalloc_counts,
        ROWS(mimalloc),
        .owns = mimalloc_owns,
        .hands_out = mimalloc_hands_out,
    },
    {
        .name = "tcmalloc",
        .key = "tc_malloc",
        .control = GPERFTOOLS_GET_PROPERTY,
        .own_counts = gperftools_counts,
        ROWS(gperftools),
        .owns = gperftools_owns,
        .hands_out = gperftools_hands_out,
    },
    {
        .name = "tcmalloc",
        .key = "TCMallocInternalMalloc",
        .control = GOOGLE_GET_PROPERTY,
        .own_counts = google_counts,
        ROWS(google),
        .owns = google_owns,
        .hands_out = google_hands_out,
    },
    {
        .name = "jemalloc",
        .key = "mallctl",
        .is_renamed = true,
        .control = "mallctl",
        .own_counts = jemalloc_counts,
        ROWS(jemalloc),
        .owns = jemalloc_owns,
        .hands_out = jemalloc_hands_out,
    },
};
const size_t entry_allocator_count = sizeof entry_allocators / sizeof entry_allocators[0];
