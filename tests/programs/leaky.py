"""A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each."""

import os
import sys

SESSIONS = []


def build_table():
    return [b"t" * 900 + b"%d" % i for i in range(4000)]


def open_session(number):
    SESSIONS.append(b"s" * 90 + b"%d" % number)


def serve_request(number):
    return len(b"r" * 400 + b"%d" % number)


def main():
    rows, served = build_table(), 0
    for i in range(int(sys.argv[1])):
        served += serve_request(i)
        open_session(i)
    print(len(rows) + len(SESSIONS), served)
    sys.stdout.flush()
    # What is kept is alive at the end.
    os._exit(0)


main()
