"""Node.js: Debian's, and npm's builds of the first and the last release of every major version from 20 on."""

import subprocess

from bench.matrix.version import PROGRAMS, Missing, Version, first_line

NAME = "Node.js"
INTERVAL = "16K"
HEAP = "javascript"
OWN = {"KNOWN_TRUTH_OWN": "1"}
PROGRAM = PROGRAMS / "known_truth.js"
MAJORS = [20, 21, 22, 23, 24, 25, 26]
OPTIONS_OF_NODE = ["--expose-gc"]
# tests/ run 20 and 26.
ENDS = []


def versions(places):
    yield from found("/usr/bin/node", "Debian")
    for release in [release for major in MAJORS for release in (f"{major}.0.0", str(major))]:
        directory = places.work / f"node{release}"
        try:
            yield from found(str(installed(directory, release)), "npm")
        except Missing as why:
            yield Version(f"{release}, npm", [], PROGRAM, missing=str(why))
    try:
        root = places.debian("unstable", "nodejs")
    except Missing as why:
        yield Version("Debian unstable", [], PROGRAM, missing=str(why))
        return
    yield from found("/usr/bin/node", "Debian unstable", root)


def installed(directory, release):
    """npm's package node brings the release as a binary."""
    binary = directory / "node_modules/node/bin/node"
    if not binary.exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(directory), f"node@{release}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0 or not binary.exists():
            raise Missing(f"npm has no node@{release} here")
    return binary


def found(node, where, root=None):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), node, "--version"]).removeprefix("v")
    except Missing as why:
        yield Version(f"{node}, {where}", [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", [node, *OPTIONS_OF_NODE], PROGRAM, root)
