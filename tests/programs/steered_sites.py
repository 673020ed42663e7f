"""Three functions that allocate the same, with a line on standard input before each of the last two. Prints its process
number before it reads.

A bytes object of 150 bytes is one request of 183 bytes from Python's own arenas.
"""

import os
import sys


def first():
    return bytes(150)


def second():
    return bytes(150)


def third():
    return bytes(150)


def site(function, count):
    for _ in range(count):
        function()


def wait():
    print(os.getpid(), flush=True)
    sys.stdin.readline()


count = int(sys.argv[1])
site(first, count)
wait()
site(second, count)
wait()
site(third, count)
