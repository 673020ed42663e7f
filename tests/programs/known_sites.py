"""Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.

A bytes object of n bytes is one request of n + 33 bytes, up to 512 from Python's own arenas, above from malloc.
"""

import gc
import json
import os
import sys
import threading

truth = {}
kept = []


def site(function, count, bytes_each, keep, times):
    held = [None] * (count * times) if keep else None
    for i in range(count * times):
        block = function()
        if keep:
            held[i] = block
    kept.append(held)
    known = truth.setdefault(function.__name__, dict.fromkeys(["bytes", "allocations", "live_bytes", "live_blocks"], 0))
    blocks = count * times
    size = bytes_each + sys.getsizeof(b"")
    known["bytes"] += blocks * size
    known["allocations"] += blocks
    known["live_bytes"] += blocks * size if keep else 0
    known["live_blocks"] += blocks if keep else 0


def small_and_freed():
    return bytes(150)


def small_and_kept():
    return bytes(60)


def large_and_freed():
    return bytes(5000)


def large_and_kept():
    return bytes(3000)


def of_a_thread():
    return bytes(200)


def sort_key(_):
    return bytes(400)


def sorts():
    for _ in range(20):
        sorted(range(1000), key=sort_key)


def main():
    times = int(sys.argv[1])
    site(small_and_freed, 100_000, 150, False, times)
    site(small_and_kept, 40_000, 60, True, times)
    site(large_and_freed, 4_000, 5000, False, times)
    site(large_and_kept, 1_000, 3000, True, times)
    thread = threading.Thread(target=site, args=(of_a_thread, 50_000, 200, False, times))
    thread.start()
    thread.join()
    sorts()
    gc.collect()
    print(json.dumps(truth))
    sys.stdout.flush()
    # What is kept is alive at the end.
    os._exit(0)


main()
