"""Makes the same number of objects of each of some types, every other one of which it keeps, and prints the types' names.

It ends without taking down the interpreter, so that what is kept is never freed.
"""

import collections
import os
import sys

count = int(sys.argv[1])


class Session:
    def __init__(self):
        self.user = None


class Outer:
    class Point:
        __slots__ = ("x", "y", "__weakref__")


class Meta(type):
    pass


class Registered(metaclass=Meta):
    pass


class Pair(tuple):
    pass


class Named(str):
    pass


class Odd:
    __module__ = property(lambda self: 5)
    __slots__ = ()


class Blob(bytes):
    pass


class Wide:
    __slots__ = [f"field{i}" for i in range(80)]


makers = [
    Session,
    Outer.Point,
    Registered,
    lambda: Pair((1, 2)),
    lambda: Named("a name that is not short"),
    # No type that keeps some of its objects when they are freed, or that anything else uses.
    lambda: filter(None, ()),
    collections.deque,
    lambda: Blob(b"larger than what comes from the arenas" * 20),
    Wide,
    Odd,
    lambda: type("Made", (), {"__slots__": ()})(),
]
kept = []
for make in makers:
    for i in range(count):
        made = make()
        if i % 2 == 0:
            kept.append(made)
    module = type(made).__module__
    has_module = isinstance(module, str) and module != "builtins"
    print(f"{module}." if has_module else "", type(made).__qualname__, sep="")
del made
sys.stdout.flush()
os._exit(0)
