"""PyPy parsing modules of its own library. No tool tells the sites of its heap; its own dump tells what lives, by type."""

import json
import re
import shutil

from .opinion import BYTES, Missing, Opinion, profile, query, run

# The trees live at the end. A dump names each object's type by its number, and has its bytes.
PROGRAM = """
import ast, gc, glob, json, os, struct, sys, zlib
trees = []
for name in sorted(glob.glob(os.path.dirname(os.__file__) + '/[a-l]*.py')):
    with open(name, encoding='utf-8') as file:
        trees.append(ast.parse(file.read()))
for _ in range(3):
    gc.collect()
if os.environ.get('DUMPED'):
    names = {}
    for number, line in enumerate(zlib.decompress(gc.get_typeids_z()).decode().splitlines()):
        names[number] = line
    with open('dump', 'wb') as file:
        gc._dump_rpy_heap(file.fileno())
    words = memoryview(open('dump', 'rb').read()).cast('q')
    sums, at = {}, 0
    # address, type, size, references that end with -1; three zeroes and -1 after the roots.
    while at < len(words):
        address, kind, size = words[at], words[at + 1], words[at + 2]
        at += 3
        while words[at] != -1:
            at += 1
        at += 1
        if address != 0:
            sums[kind] = sums.get(kind, 0) + size
    with open('sums.json', 'w') as file:
        json.dump([[kind, size] for kind, size in sums.items()], file)
    with open('names.json', 'w') as file:
        json.dump(names, file)
sys.stdout.flush()
os._exit(0)
"""


def opinions(place):
    if shutil.which("pypy3") is None:
        raise Missing("PyPy (Debian: pypy3)")
    (place / "parses.py").write_text(PROGRAM)
    small = {"PYPY_GC_NURSERY": "4M"}
    profile(["pypy3", "parses.py"], place, "64K", ["--runtime", "pypy"], small)
    run(["pypy3", "parses.py"], place, {**small, "DUMPED": "1"})
    names = json.loads((place / "names.json").read_text())
    sums = json.loads((place / "sums.json").read_text())
    top = query(place, f"SELECT type, {BYTES} FROM samples JOIN types USING (heap_id, type_id) JOIN heaps USING (heap_id) "
                       "WHERE heap = 'pypy' AND samples.live GROUP BY type ORDER BY bytes DESC LIMIT 1")[0]
    name = top["type"].strip()
    of_type = re.compile(rf"member\d+ +(GcStruct )?{re.escape(name)}( |$)")
    theirs = sum(size for kind, size in sums if of_type.match(names.get(str(kind), "")))
    yield Opinion("PyPy", "ast, of its library, on its library", f"{name} (type), alive at the end", top["bytes"], top["error"],
                  "gc.dump_rpy_heap, each object", theirs)
