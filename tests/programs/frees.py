"""Frees in a function of its own name, while other threads free code, generators and chains of objects."""

import threading


def fill():
    return [bytes(2000) for _ in range(2000)]


def evict(kept):
    kept.clear()


def call_what_goes_away(number):
    """The function, its code and its names are freed with its frame."""
    text = 'lambda: len("%s")' % ("x" * 600 + str(number))
    return eval(compile(text, "file" * 200 + str(number), "eval"))()


class Node:
    def __init__(self, following):
        self.following, self.text = following, "n" * 700

    def __del__(self):
        self.text = None


def chain():
    node = None
    for _ in range(100):
        node = Node(node)


def rows(count):
    for i in range(count):
        yield "r" * (600 + i)


def work():
    for i in range(300):
        call_what_goes_away(i)
        chain()
        for row in rows(20):
            if len(row) > 610:
                break


threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(5):
    evict(fill())
for thread in threads:
    thread.join()
