"""Binary trees, some of which live long, strings that die at once, large arrays, objects that must not move, and memory
outside of the heap that hastens collections: a program for RPython.

Prints on standard error how many nodes and arrays it has allocated, exactly.
"""
import os

from rpython.rlib import rgc


class Node(object):
    def __init__(self, left, right):
        self.left = left
        self.right = right


class Counts(object):
    nodes = 0
    arrays = 0


counts = Counts()


def bottom_up(depth):
    counts.nodes += 1
    if depth == 0:
        return Node(None, None)
    left = bottom_up(depth - 1)
    return Node(left, bottom_up(depth - 1))


def top_down(node, depth):
    if depth > 0:
        node.left = Node(None, None)
        node.right = Node(None, None)
        counts.nodes += 2
        top_down(node.left, depth - 1)
        top_down(node.right, depth - 1)


def trees(depth, rounds):
    for _ in range(rounds):
        bottom_up(depth)
        counts.nodes += 1
        top_down(Node(None, None), depth)


def churn(rounds):
    length = 0
    for at in range(rounds):
        length += len("the %d. string" % at)
    return length


def large(rounds, slots):
    kept = None
    for at in range(rounds):
        counts.arrays += 1
        array = [None] * slots
        array[at % slots] = Node(None, None)
        counts.nodes += 1
        if at % 4 == 0:
            kept = array
    return kept


def pinned(rounds):
    """Strings that stay where they are while trees come and go around them."""
    total = 0
    for at in range(rounds):
        first = "first %d" % at
        bottom_up(10)
        second = "second %d" % at
        is_first_pinned = rgc.pin(first)
        is_second_pinned = rgc.pin(second)
        bottom_up(13)
        if is_first_pinned:
            rgc.unpin(first)
        bottom_up(13)
        if is_second_pinned:
            rgc.unpin(second)
        total += len(first) + len(second)
    return total


def pressure(rounds):
    for _ in range(rounds):
        bottom_up(4)
        rgc.add_memory_pressure(8 << 20)


def entry_point(argv):
    depth = 14
    rounds = 40
    if len(argv) == 3:
        depth = int(argv[1])
        rounds = int(argv[2])
    long_lived = bottom_up(depth)
    kept = large(rounds, 20000)
    length = churn(rounds * 1000)
    trees(depth, rounds)
    length += pinned(rounds)
    pressure(rounds)
    # So that a collection has looked at everything.
    rgc.collect()
    if long_lived.left is None or kept is None:
        return 1
    print length
    os.write(2, "nodes %d\n" % counts.nodes)
    os.write(2, "arrays %d\n" % counts.arrays)
    return 0


def target(*args):
    return entry_point, None
