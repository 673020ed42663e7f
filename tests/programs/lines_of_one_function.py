"""One function makes bytes on three lines: a table at first, what is dropped, and what is kept for each request."""

import os
import sys

KEPT = []


def serve(number):
    for i in range(10_000 if number == 0 else 0):
        KEPT.append(b"t" * 400 + b"%d" % i)
    dropped = len(b"r" * 400 + b"%d" % number)
    KEPT.append(b"s" * 90 + b"%d" % number)
    return dropped


def main():
    for number in range(int(sys.argv[1])):
        serve(number)
    print(len(KEPT))
    sys.stdout.flush()
    # What is kept is alive at the end.
    os._exit(0)


main()
