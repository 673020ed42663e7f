# Makes 20,000 cycles of two objects, which only the collector could find, and drops them; it is never called by itself. Prints
# the process's number, and is at work until its input ends. `off`: with the collector switched off.
import gc
import os
import select
import sys

gc.set_threshold(0)
if sys.argv[1:] == ["off"]:
    gc.disable()


class Node:
    pass


def make_cycle():
    first, second = Node(), Node()
    first.other, second.other = second, first
    first.text = "x" * 300 + str(id(first))


def work():
    return [str(number) * 20 for number in range(1000)]


for _ in range(20000):
    make_cycle()
print(os.getpid(), flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    work()
