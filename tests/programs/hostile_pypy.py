"""What could show a collector that somebody has changed: threads, forks, finalizers, weak references, memory that is
reported, pinned and large objects, deep recursion, errors for want of memory."""

import gc
import os
import sys
import threading
import weakref

SUMS = {}


class Finalized:
    count = 0

    def __del__(self):
        Finalized.count += 1


def tree(depth):
    return (tree(depth - 1), tree(depth - 1), [depth] * depth) if depth else None


def size(tree):
    return 1 + size(tree[0]) + size(tree[1]) + sum(tree[2]) if tree else 0


def work(number):
    kept = {}
    for i in range(60):
        kept[i % 7] = tree(9)
        if i % 20 == number:
            gc.collect()
        str(i) * 100
    SUMS[number] = sum(size(tree) for tree in kept.values())


def main():
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted(SUMS.items()))
    for _ in range(1000):
        Finalized()
    references = [weakref.ref(Finalized()) for _ in range(100)]
    for _ in range(3):
        gc.collect()
    print(Finalized.count, sum(reference() is not None for reference in references))
    files = [open(os.devnull, "rb") for _ in range(200)]
    print(len(b"".join(file.read(100) for file in files)))
    large = [bytearray(1 << 20) for _ in range(50)]
    print(sum(map(len, large)))
    hashes = {id(object()) for _ in range(20000)}
    print(len(hashes) > 0, len({i: str(i) for i in range(100000)}))

    def deep(n):
        return 0 if n == 0 else 1 + deep(n - 1)

    try:
        deep(10**6)
    except RecursionError:
        print("too deep")
    try:
        [0] * (1 << 60)
    except MemoryError:
        print("too large")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work(5)
        print(SUMS[5])
        sys.stdout.flush()
        os._exit(3)
    print(os.waitpid(child, 0)[1])
    sys.exit(7)


main()
