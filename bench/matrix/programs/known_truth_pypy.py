"""Two churn sites, a bounded cache and a leak, whose bytes are known to PyPy. The protocol is in bench/matrix/version.py.

A bytes object of n bytes is a string of 25 + n, rounded up to 8, and 16 for its wrapper, which is dead when the object is in a
list of bytes objects. Runs on PyPy 2.7 as well.
"""

from __future__ import print_function

import gc
import json
import os
import sys
import time

ROUNDS = 40000
CACHED = 1000
A, B, C, D = b"a" * 999, b"b" * 4999, b"c" * 1199, b"d" * 799


def churn_small():
    return A + b"a"


def churn_large():
    return B + b"b"


def fill_cache():
    return C + b"c"


def leak_session():
    return D + b"d"


def site(function, size, count, live):
    string = (25 + size + 7) // 8 * 8
    line = function.__code__.co_firstlineno
    return {"bytes": (string + 16) * count, "live_bytes": string * live, "line": line, "type": "rpy_string"}


def main():
    if "wait" in sys.argv:
        print("ready")
        sys.stdout.flush()
        sys.stdin.readline()
    cache, leaked = [b"c"] * CACHED, [b"d"]
    for i in range(ROUNDS):
        churn_small()
        if i % 10 == 0:
            churn_large()
        cache[i % CACHED] = fill_cache()
        leaked.append(leak_session())
        if i % 200 == 0:
            # The process's memory is read some times a second: the growth of a program that ends before that confirms no leak.
            time.sleep(0.01)
        if i == ROUNDS // 2:
            gc.collect()
    gc.collect()
    sites = {
        "churn_small": site(churn_small, 1000, ROUNDS, 0),
        "churn_large": site(churn_large, 5000, ROUNDS // 10, 0),
        "fill_cache": site(fill_cache, 1200, ROUNDS, CACHED),
        "leak_session": site(leak_session, 800, ROUNDS, ROUNDS),
    }
    print(json.dumps({"sites": sites, "leak": "leak_session", "cache": "fill_cache"}, sort_keys=True))
    sys.stdout.flush()
    # What is kept is alive at the end.
    os._exit(7)


main()
