"""Ruby's tests."""

import re

from bench.own_tests.suite import Cases, PASSED, source_of, Suite, tool_version

FILES = ("gc", "gc_compact", "objectspace", "weakmap", "thread", "thread_queue", "thread_cv", "fiber", "string", "array", "hash",
              "marshal", "proc", "method", "monitor", "tracepoint", "enumerator")


def verdicts(status, output):
    """Each case by its line of `-v`, and those of the list at the end."""
    cases = dict.fromkeys(re.findall(r"^\[\s*\d+/\d+\] (\S+#\S+) = ", output, re.MULTILINE), PASSED)
    cases |= {name: how for how, name in re.findall(r"^\s*\d+\) (Failure|Error|Skipped):\n(\S+#\S+)", output, re.MULTILINE)}
    return Cases(status, cases)


def suite():
    version = tool_version("ruby", r"ruby (\d+\.\d+)")
    tree = source_of(f"ruby{version}", r"/(test|tool/lib|tool/test|tool)/")
    tests = {}
    for name in FILES:
        for path in (tree / f"test/ruby/test_{name}.rb", tree / f"test/{name}/test_{name}.rb"):
            if path.exists():
                command = ["ruby", str(tree / "test/runner.rb"), "--ruby=ruby", "-v", str(path)]
                tests[name] = (command, str(tree))
    return Suite("Ruby", f"`test/ruby` of ruby{version}", tests, verdicts, heap="ruby")
