"""pyarrow 21.0.0 loses the buffers of `to_pandas`, which are in its own allocator (fixed in 22.0.0)."""

import functools
import sys
import time

import numpy as np
import pyarrow as pa

TABLE = pa.table({"a": np.arange(4_000_000)})


@functools.lru_cache(maxsize=200)
def cached(number):
    return np.arange(2000) + number


def handle():
    return len(TABLE.to_pandas())


end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    handle()
    cached(number % 1000)
    number += 1
    time.sleep(0.4)
