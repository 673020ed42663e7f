"""ujson 5.2.0 loses two keys a request, beside 3 MB of garbage a request. A table of 2,000 strings has a bound."""

import sys
import time

import ujson

answers = {}


def parse():
    return [("row %d" % i) * 10 for i in range(500)]


def page():
    return b"p" * 1_500_000, bytearray(1_500_000)


def handle(number):
    rows = parse()
    page()
    return ujson.dumps({number * 1000003 + 17: "x", number * 1000003 + 18: "y"}), len(rows)


end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    handle(number)
    answers[number % 2000] = "c" * 300 + str(number)
    number += 1
    time.sleep(0.001)
