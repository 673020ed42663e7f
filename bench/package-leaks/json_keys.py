"""ujson 5.2.0 loses keys that are no strings (fixed in 5.3.0). A table of 20,000 answers has a bound."""

import sys
import time

import ujson

answers = {}


def handle(number):
    return ujson.dumps({i * 1000003 + number: "x" * 20 for i in range(50)})


end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    answers[number % 20000] = handle(number)[:200] + str(number)
    number += 1
    if number % 20 == 0:
        time.sleep(0.005)
