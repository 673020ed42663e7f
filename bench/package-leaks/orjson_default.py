"""orjson 3.9.0 loses the tracebacks of exceptions in `default`, and with them the frames (fixed in 3.9.1)."""

import sys
import time

import orjson

answers = {}


class Opaque:
    pass


def default(_):
    raise NotImplementedError("no")


def handle(number):
    rows = ["r%d" % (number + i) for i in range(40)]
    try:
        return orjson.dumps({"number": number, "rows": rows, "x": Opaque()}, default=default)
    except orjson.JSONEncodeError:
        return b""


end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    handle(number)
    answers[number % 10000] = orjson.dumps({"number": number, "text": "x" * 100})
    number += 1
    if number % 10 == 0:
        time.sleep(0.005)
