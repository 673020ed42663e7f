"""Node's tests."""

import re

from bench.own_tests.suite import source_of, Suite, tool_version

PATTERN = re.compile(
    r"test-(gc|worker|arraybuffer|buffer-(alloc|concat|pool|slow|sharedarraybuffer|tostring|zero)|heap|v8|weakref|finalization|"
    r"zlib|memory|performance-gc|structuredclone|messag|vm-(context|create|global|run|module|timeout))[^/]*\.m?js$")


def suite():
    tool_version("node", r"v(\d+)")
    tree = source_of("nodejs", r"/test/(common|fixtures|parallel|wasi)/")
    tests = {}
    for path in sorted((tree / "test/parallel").glob("test-*")):
        if PATTERN.search(path.name):
            flags = re.search(r"^// Flags: (.*)$", path.read_text(errors="replace"), re.MULTILINE)
            options = flags.group(1).split() if flags else []
            tests[path.name] = (["node", *options, str(path)], str(tree / "test"))
    return Suite("Node.js", "`test/parallel` of nodejs", tests, heap="javascript")
