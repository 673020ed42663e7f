/* Has the reader of what CPython says of itself read descriptions that are right, and a great many that are not: it refuses these,
 * or takes offsets that are within the structures that are read. */
#include "check.h"
#include "described_python.h"

enum { ROUNDS = 300000 };

bool foreign_read_copied(struct foreign_reader *reader, uintptr_t from, void *to, size_t bytes)
{
    (void)reader, (void)from, (void)to, (void)bytes;
    return false;
}

static uint64_t seed = 20261126;

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* What a walk relies on. */
static void check_bounds(const struct python_layout *layout)
{
    CHECK(layout->frame_bytes <= PYTHON_FRAME_BYTES && layout->code_bytes <= PYTHON_CODE_BYTES);
    CHECK(layout->code + 8 <= layout->frame_bytes && layout->previous + 8 <= layout->frame_bytes);
    CHECK(layout->instruction + 8 <= layout->frame_bytes && layout->owner < layout->frame_bytes);
    CHECK(layout->bytecode_index + 4 <= layout->frame_bytes);
    CHECK(layout->file_name + 8 <= layout->code_bytes && layout->name + 8 <= layout->code_bytes);
    CHECK(layout->first_line + 4 <= layout->code_bytes);
    CHECK(layout->frame_in_thread + 8 <= layout->thread_bytes && layout->limit + 8 <= layout->thread_bytes);
    CHECK(layout->base_frame + 8 <= layout->thread_bytes && layout->thread_id + 8 <= layout->thread_bytes);
    CHECK(layout->frame_in_thread % 8 == 0 && layout->chunk % 8 == 0 && layout->limit == layout->chunk + 16);
}

static void read_right_ones(void)
{
    char version[32];
    for (int minor = 13; minor <= 16; minor++) {
        for (int is_free_threaded = 0; is_free_threaded <= 1; is_free_threaded++) {
            snprintf(version, sizeof version, "3.%d.0%s", minor, is_free_threaded ? "t" : "");
            struct python_identity identity = describe_python(version);
            const struct python_layout *layout = python_layout_of(&identity);
            CHECK(layout != NULL && layout->minor == minor && layout->is_free_threaded == is_free_threaded);
            check_bounds(layout);
            size_t more = is_free_threaded ? 16 : 0;
            CHECK(layout->file_name == 112 + more && layout->name == 128 + more && layout->first_line == 68 + more);
            CHECK(layout->ascii == 40 + more && layout->compact == 56 + more && layout->code == 0 && layout->previous == 8);
            CHECK(layout->instruction == 56 && layout->frame_in_thread == 72);
        }
    }
}

static void refuse_others(void)
{
    struct python_identity identity = describe_python("3.14.0");
    struct python_layout layout;
    CHECK(python_offsets_read(&identity, 14, &layout));
    CHECK(!python_offsets_read(&identity, 15, &layout)); /* another version than it says */
    struct python_identity without = identity;
    without.self_description = NULL;
    CHECK(!python_offsets_read(&without, 14, &layout));
    without = identity;
    without.words = 40; /* cut off */
    CHECK(!python_offsets_read(&without, 14, &layout));
    without = identity;
    without.code_type = NULL;
    CHECK(!python_offsets_read(&without, 14, &layout));
    described_runtime[0]++;
    CHECK(!python_offsets_read(&identity, 14, &layout));
    /* A number that was inserted before those of a code object, or left out, moves all that follow. */
    for (size_t place = 3; place < 48; place++) {
        describe_python("3.14.0");
        memmove(&described_runtime[place + 1], &described_runtime[place], (DESCRIBED_WORDS - place - 1) * sizeof(uint64_t));
        CHECK(!python_offsets_read(&identity, 14, &layout));
        describe_python("3.14.0");
        memmove(&described_runtime[place], &described_runtime[place + 1], (DESCRIBED_WORDS - place - 1) * sizeof(uint64_t));
        CHECK(!python_offsets_read(&identity, 14, &layout));
    }
    /* A later version with the numbers of an older one is read as that. */
    describe_python("3.14.0");
    described_runtime[1] = UINT64_C(0x03110000);
    identity.version = "3.17.0";
    CHECK(python_offsets_read(&identity, 17, &layout) && layout.file_name == 112);
}

static void read_hostile_ones(void)
{
    static const uint64_t odd[] = {0, 1, 7, 8, 16, 127, 128, 255, 256, 65535, 65536, 65544, UINT32_MAX, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
    struct python_layout layout;
    size_t taken = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int minor = 13 + (int)(draw() % 4);
        char version[32];
        snprintf(version, sizeof version, "3.%d.0%s", minor, draw() % 2 ? "t" : "");
        struct python_identity identity = describe_python(version);
        for (uint64_t changes = draw() % 4 + 1; changes > 0; changes--) {
            uint64_t value = draw() % 2 ? odd[draw() % (sizeof odd / sizeof odd[0])] : draw() >> (draw() % 64);
            described_runtime[2 + draw() % 94] = value;
        }
        if (python_offsets_read(&identity, minor, &layout)) {
            check_bounds(&layout);
            taken++;
        }
    }
    /* Most numbers are not read, or may have other values. */
    CHECK(taken > ROUNDS / 20 && taken < ROUNDS);
}

int main(void)
{
    read_right_ones();
    refuse_others();
    read_hostile_ones();
    puts("read");
    return 0;
}
