"""Small objects that are made, grow, and go. Fails if one loses what is in it, or if Python's count of its blocks is not
that of the objects. Prints a lower bound of the bytes of those that were made small."""

import sys
import sysconfig

COUNT = 20_000
# Without its lock, CPython counts blocks of mimalloc, some of which are freed later than their objects.
COUNTS_OBJECTS = not sysconfig.get_config_var("Py_GIL_DISABLED")


def is_near(blocks, expected):
    return not COUNTS_OBJECTS or abs(blocks - expected) < 300


def made():
    return [bytes([i % 251]) * (i % 400) for i in range(COUNT)]


def grown():
    arrays = []
    for i in range(COUNT // 20):
        array = bytearray()
        for length in range(i % 300):
            array.append((i + length) % 251)
        arrays.append(array)
    return arrays


before = sys.getallocatedblocks()
objects = made()
with_objects = sys.getallocatedblocks()
for i, held in enumerate(objects):
    assert held == bytes([i % 251]) * (i % 400), i
size = sum(map(sys.getsizeof, objects))
del objects, held
without = sys.getallocatedblocks()
# Those of no byte and of one byte are shared.
shared = sum(i % 400 < 2 for i in range(COUNT))
assert is_near(with_objects - before, COUNT - shared), (before, with_objects)
assert is_near(without, before), (before, without)

arrays = grown()
for i, array in enumerate(arrays):
    assert array == bytes((i + length) % 251 for length in range(i % 300)), i
del arrays, array
assert is_near(sys.getallocatedblocks(), without)
print(size)
