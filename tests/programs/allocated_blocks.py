"""Small objects that are made, grow, and go. Fails if one loses what is in it, or if Python's count of its blocks is not
that of the objects. Prints a lower bound of the bytes of those that were made small."""

import sys

COUNT = 20_000


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
assert abs(with_objects - before - (COUNT - shared)) < 300, (before, with_objects)
assert abs(without - before) < 300, (before, without)

arrays = grown()
for i, array in enumerate(arrays):
    assert array == bytes((i + length) % 251 for length in range(i % 300)), i
del arrays, array
assert abs(sys.getallocatedblocks() - without) < 300
print(size)
