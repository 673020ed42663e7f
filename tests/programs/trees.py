"""Keeps the syntax trees of some of Python's own modules, and says what tracemalloc knows of it, if that is on."""

import ast
import os
import sys
import tracemalloc

NAMES = ["argparse", "ast", "inspect", "subprocess", "typing", "zipfile", "pathlib", "tarfile", "turtle", "doctest"]


def sources():
    directory = os.path.dirname(ast.__file__)
    for name in NAMES:
        path = os.path.join(directory, name + ".py")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                yield file.read()


trees = [ast.parse(source) for source in sources() for _ in range(3)]
if tracemalloc.is_tracing():
    sys.stdout.write(str(tracemalloc.get_traced_memory()[0]))
sys.stdout.flush()
# What is kept is alive at the end.
os._exit(0)
