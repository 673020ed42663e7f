"""Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py."""

import gc
import json
import os
import sys
import time

# So many that what CPython allocates at its start, before tracemalloc, is a small part.
ROUNDS = 400_000
CACHED = 2_000
GC_HEADER = 0 if getattr(sys, "_is_gil_enabled", lambda: True)() is False else 16


class Session:
    __slots__ = ("number", "user", "road", "data")


def churn_small():
    return bytes(150)


def churn_large():
    return bytes(5000)


def fill_cache():
    return bytes(300)


def leak_session():
    return Session()


def site(function, each, count, live, kind):
    line = function.__code__.co_firstlineno + 1
    return {"bytes": each * count, "live_bytes": each * live, "line": line, "type": kind}


def main():
    if "wait" in sys.argv:
        print("ready", flush=True)
        sys.stdin.readline()
    # Without the interpreter's lock the collector allocates, for whichever function it runs in.
    gc.disable()
    cache, leaked = [None] * CACHED, [None] * ROUNDS
    for i in range(ROUNDS):
        churn_small()
        if i % 20 == 0:
            churn_large()
        cache[i % CACHED] = fill_cache()
        leaked[i] = leak_session()
        if i == ROUNDS // 2:
            gc.collect()
        # It takes some seconds to tell a leak from a cache that fills.
        if i % 1000 == 0:
            time.sleep(0.006)
    of_bytes = sys.getsizeof(b"")
    sites = {
        "churn_small": site(churn_small, 150 + of_bytes, ROUNDS, 0, "bytes"),
        "churn_large": site(churn_large, 5000 + of_bytes, ROUNDS // 20, 0, "bytes"),
        "fill_cache": site(fill_cache, 300 + of_bytes, ROUNDS, CACHED, "bytes"),
        "leak_session": site(leak_session, Session.__basicsize__ + GC_HEADER, ROUNDS, ROUNDS, "__main__.Session"),
    }
    truth = {"sites": sites, "leak": "leak_session", "cache": "fill_cache"}
    if os.environ.get("PYTHONTRACEMALLOC"):
        import tracemalloc

        truth = {"own_live_bytes": tracemalloc.get_traced_memory()[0]}
    print(json.dumps(truth), flush=True)
    # What is kept is alive at the end.
    os._exit(7)


main()
