"""msgpack 1.1.2 loses the lists of a message that is invalid inside of nested arrays (fixed in 1.2.0)."""

import sys
import time

import msgpack

answers = {}
GOOD = msgpack.packb({"id": 1, "body": "y" * 2000})


def handle(body):
    try:
        return msgpack.unpackb(body)
    except ValueError:
        return None


end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    handle(bytes([0x91] * (5 + number % 10) + [0xC1]))
    answers[number % 5000] = handle(GOOD)
    number += 1
    if number % 50 == 0:
        time.sleep(0.003)
