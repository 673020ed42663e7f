/* What CPython says of itself, by the headers of each version (_Py_DebugOffsets): for programs that compile the reader in. */
#ifndef DESCRIBED_PYTHON_H
#define DESCRIBED_PYTHON_H

#include "../../c_shim/bridges/python/layout.c"
#include "../../c_shim/bridges/python/offsets.c"

enum { DESCRIBED_WORDS = 128 };

static const struct {
    int minor;
    bool is_free_threaded;
    uint32_t numbers[DESCRIBED_WORDS]; /* after the cookie */
} descriptions[] = {
    {13, false,
     {51188464, 0, 283408, 608, 632, 194984, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0, 7768, 7760, 312, 0,
      8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 208, 112, 120, 128, 136, 68, 52, 96, 104, 200, 16, 8, 416, 24,
      88, 168, 32, 24, 16, 40, 24, 16, 48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40, 240, 200}},
    {13, true,
     {51185136, 1, 328320, 608, 632, 215616, 7272, 7264, 7344, 7400, 7664, 7648, 7656, 16, 7760, 0, 7784, 7776, 304, 0,
      8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 224, 128, 136, 144, 152, 84, 68, 112, 120, 216, 32, 24, 432,
      40, 104, 184, 48, 40, 32, 56, 40, 32, 64, 48, 56, 40, 32, 48, 32, 40, 56, 32, 48, 80, 48, 32, 56, 248, 200}},
    {14, false,
     {51251952, 0, 316616, 784, 808, 225864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16, 7784, 0, 7800, 7792,
      7992, 0, 832, 0, 8, 16, 72, 152, 160, 232, 32, 88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96,
      104, 208, 0, 16, 8, 416, 24, 88, 168, 40, 32, 16, 40, 24, 16, 200, 24, 40, 32, 48, 32, 40, 24, 16, 32, 16, 24, 40,
      16, 32, 64, 32, 16, 40, 264, 192, 160, 24, 72, 67, 0, 8, 24, 304, 8076, 0, 4, 512}},
    {14, true,
     {51251952, 1, 365624, 784, 808, 249976, 7280, 7272, 7344, 7360, 7408, 7712, 7696, 7704, 16, 7808, 0, 7832, 7824,
      8024, 17300, 832, 0, 8, 16, 72, 152, 160, 232, 32, 88, 8, 0, 56, 80, 78, 64, 72, 240, 128, 136, 144, 152, 84, 68,
      112, 120, 232, 224, 32, 24, 432, 40, 104, 184, 56, 48, 32, 56, 40, 32, 216, 40, 56, 48, 64, 48, 56, 40, 32, 48,
      32, 40, 56, 32, 48, 80, 48, 32, 56, 288, 192, 176, 40, 88, 83, 0, 8, 24, 304, 8108, 0, 4, 512}},
    {15, false,
     {51315440, 0, 346560, 912, 936, 226232, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16, 7736, 0, 7752, 7744,
      7944, 0, 888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 32, 36, 40, 136, 288, 0, 88, 8, 0, 56, 80, 74, 64, 0, 216,
      112, 120, 128, 136, 68, 52, 96, 104, 208, 0, 16, 8, 424, 24, 88, 168, 32, 288, 944, 888, 40, 32, 16, 40, 24, 16,
      200, 24, 40, 32, 48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40, 56, 176, 112}},
    {15, true,
     {51315440, 1, 409296, 912, 936, 250328, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16, 7736, 0, 7760, 7752,
      7952, 17252, 888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 32, 36, 40, 136, 288, 0, 88, 8, 0, 56, 80, 78, 64, 72,
      240, 128, 136, 144, 152, 84, 68, 112, 120, 232, 224, 32, 24, 440, 40, 104, 184, 48, 304, 968, 904, 56, 48, 32, 56,
      40, 32, 216, 40, 56, 48, 64, 48, 56, 40, 32, 48, 32, 40, 56, 32, 48, 80, 48, 32, 56, 72, 176, 112}},
};
enum { DESCRIPTIONS = sizeof descriptions / sizeof descriptions[0] };

static uint64_t described_runtime[DESCRIBED_WORDS]; /* _PyRuntime */
static uint64_t described_code_type[80], described_str_type[80];

/* An interpreter of this version ("3.14.0", "3.14.0t"). One that is later than all describes itself as the last one does. */
static struct python_identity describe_python(const char *version)
{
    int minor = 0;
    CHECK(sscanf(version, "3.%d", &minor) == 1);
    bool is_free_threaded = version[strlen(version) - 1] == 't';
    struct python_identity identity = {version, described_runtime, DESCRIBED_WORDS, described_code_type, described_str_type};
    memset(described_runtime, 0, sizeof described_runtime);
    for (size_t i = 0; i < DESCRIPTIONS; i++) {
        if (descriptions[i].minor > minor || descriptions[i].is_free_threaded != is_free_threaded)
            continue;
        memcpy(described_runtime, "xdebugpy", 8);
        for (size_t word = 1; word < DESCRIBED_WORDS; word++)
            described_runtime[word] = descriptions[i].numbers[word - 1];
        described_runtime[1] = UINT64_C(0x03000000) | (uint64_t)minor << 16;
        /* Sizes of a code object without its instructions, and of a str. */
        size_t basic_size = (PYTHON_TYPE_BASIC_SIZE + (is_free_threaded ? PYTHON_LARGER_HEADER : 0)) / 8;
        described_code_type[basic_size] = descriptions[i].minor == 13 ? (is_free_threaded ? 216 : 200) : is_free_threaded ? 232 : 208;
        described_str_type[basic_size] = is_free_threaded ? 80 : 64;
    }
    return identity;
}

#endif
