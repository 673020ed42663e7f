"""Starts 250 threads, one after the other, that wait for ever (`stay`), or 60 bursts of threads that all end (`end`)."""

import os
import random
import sys
import threading
import time


def wait():
    threading.Event().wait()


def keep_a_thread():
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.004)


def end_some_threads(chance):
    threads = [threading.Thread(target=time.sleep, args=(0.01 * chance.random(),)) for _ in range(chance.randrange(1, 30))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    chance = random.Random(1)
    for _ in range({"stay": 250, "end": 60}[sys.argv[1]]):
        keep_a_thread() if sys.argv[1] == "stay" else end_some_threads(chance)
    print("done")
    sys.stdout.flush()
    # The threads that wait do so until the end.
    os._exit(0)


main()
