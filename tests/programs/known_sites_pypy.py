"""Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.

In PyPy a bytes object of n bytes is a string of 25 + n, rounded up to 8, and 16 for its wrapper, which is dead when the
object is in a list. Compiled code may do without wrappers.
"""

import gc
import json
import os
import sys
import threading

WRAPPER = 16
TRUTH, KEPT = {}, []
A, B, C, D, E = b"a" * 149, b"b" * 59, b"c" * 4999, b"d" * 2999, b"e" * 199


def small_and_freed():
    return A + b"a"


def small_and_kept():
    return B + b"b"


def large_and_freed():
    return C + b"c"


def large_and_kept():
    return D + b"d"


def of_a_thread():
    return E + b"e"


def site(function, count, size, keep):
    held = []
    for _ in range(count):
        block = function()
        if keep:
            held.append(block)
    KEPT.append(held)
    string = (25 + size + 7) // 8 * 8
    TRUTH[function.__name__] = {
        "bytes": count * string,
        "allocations": count,
        "live_bytes": count * string if keep else 0,
        "live_blocks": count if keep else 0,
    }


def main():
    times = int(sys.argv[1])
    site(small_and_freed, 50000 * times, 150, False)
    site(small_and_kept, 20000 * times, 60, True)
    site(large_and_freed, 4000 * times, 5000, False)
    site(large_and_kept, 1000 * times, 3000, True)
    thread = threading.Thread(target=site, args=(of_a_thread, 30000 * times, 200, False))
    thread.start()
    thread.join()
    gc.collect()
    print(json.dumps(TRUTH))
    sys.stdout.flush()
    # What is kept is alive at the end.
    os._exit(0)


main()
