"""A function makes a list that is freed at once, another one makes a list that is kept. CPython hands the freed one on."""

import os
import sys

KEPT = []


def make_and_drop(number):
    return len([number, number])


def make_and_keep(number):
    KEPT.append([number, number])


def main():
    for number in range(int(sys.argv[1])):
        make_and_drop(number)
        make_and_keep(number)
    print(len(KEPT))
    sys.stdout.flush()
    # What is kept is alive at the end.
    os._exit(0)


main()
