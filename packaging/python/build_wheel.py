#!/usr/bin/env python3
"""Makes a wheel of a directory that `allocsample install` wrote. Needs Python 3.8 and nothing else.

usage: build_wheel.py ROOT VERSION ARCHITECTURE OUTPUT_DIRECTORY
"""

import base64
import hashlib
import os
import sys
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
# The libraries need no symbol above GLIBC_2.17, which is what manylinux2014 promises.
PLATFORM = "manylinux2014"

METADATA = """\
Metadata-Version: 2.1
Name: allocsample
Version: {version}
Summary: A low-overhead sampling heap profiler for Linux
License: MIT OR Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Software Development :: Debuggers
Classifier: Framework :: Jupyter
Classifier: Framework :: Pytest
Provides-Extra: arrow
Requires-Dist: pyarrow; extra == "arrow"
Provides-Extra: pandas
Requires-Dist: pandas; extra == "pandas"
Requires-Dist: pyarrow; extra == "pandas"
Provides-Extra: polars
Requires-Dist: polars; extra == "polars"
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""

WHEEL = """\
Wheel-Version: 1.0
Generator: allocsample
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""


ENTRY_POINTS = """\
[pytest11]
allocsample = allocsample.pytest_plugin
"""


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def files(root, version):
    """Names in the wheel, with content and mode."""
    data = f"allocsample-{version}.data"
    yield f"{data}/scripts/allocsample", read(root, "bin", "allocsample"), 0o755
    library = "lib/allocsample/liballocsample.so"
    yield f"{data}/data/{library}", read(root, library), 0o755
    for place, _, names in sorted(os.walk(os.path.join(root, "share"))):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(place, name), root)
            yield f"{data}/data/{path}", read(root, path), 0o644
    for name in sorted(os.listdir(os.path.join(HERE, "allocsample"))):
        if not name.endswith(".py"):
            continue
        source = read(HERE, "allocsample", name).replace(b"@VERSION@", version.encode())
        yield f"allocsample/{name}", source, 0o644


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__.rsplit("\n", 2)[1])
    root, version, architecture, output = sys.argv[1:]
    tag = f"{PLATFORM}_{architecture}"
    info = f"allocsample-{version}.dist-info"
    readme = read(HERE, "..", "..", "README.md")
    contents = list(files(root, version))
    contents.append((f"{info}/METADATA", METADATA.format(version=version).encode() + readme, 0o644))
    contents.append((f"{info}/entry_points.txt", ENTRY_POINTS.encode(), 0o644))
    contents.append((f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), 0o644))
    record = ""
    for name, content, _ in contents:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    record += f"{info}/RECORD,,\n"
    contents.append((f"{info}/RECORD", record.encode(), 0o644))
    # The same commit makes the same file.
    moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]
    path = os.path.join(output, f"allocsample-{version}-py3-none-{tag}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content, mode in contents:
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    print(path)


if __name__ == "__main__":
    main()
