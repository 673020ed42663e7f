"""Two functions of one name in files of one name, with the same callers: one drops what it has kept for a while, one does not.

With "cached" or "kept", only that one is called. Prints the bytes alive at the end, by package."""

import importlib
import os
import sys
import time

NAMES = sys.argv[1:] or ["cached", "kept"]
views = [importlib.import_module(f"{name}.views") for name in NAMES]


def dispatch(view, number):
    view.handle(number)


for number in range(60_000):
    for view in views:
        dispatch(view, number)
    # It takes some time to tell a leak from a cache.
    if number % 60 == 0:
        time.sleep(0.001)
for name, view in zip(NAMES, views):
    blocks = view.blocks
    print(name, sys.getsizeof(blocks) + sum(sys.getsizeof(block) for block in blocks))
sys.stdout.flush()
# Nothing is freed at the end.
os._exit(0)
