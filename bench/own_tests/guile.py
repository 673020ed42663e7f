"""Guile's tests."""

import re

from bench.own_tests.suite import Cases, git_tree, PASSED, Suite, tool_version

SOURCE = ("https://git.savannah.gnu.org/git/guile.git", "v3.0.8", "e734a6a607b3f25c36c9282489a9cc7c6b7e4162")
FILES = ("gc", "weaks", "guardians", "threads", "fluids", "asyncs", "atomic", "continuations", "control", "future", "signals",
         "hash", "vlist", "vectors", "arrays", "bytevectors", "strings", "symbols", "structs", "records", "srfi-4", "srfi-18",
         "srfi-69", "list", "ports", "suspendable-ports", "fdes-finalizers", "foreign", "vm", "sandbox", "hooks", "procs",
         "eval", "exceptions", "modules", "goops", "popen", "posix", "regexp", "statprof", "coverage", "types", "numbers")


def verdicts(status, output):
    """Each test by its line in the log. A name may be there twice; it passed if all of that name did."""
    cases = {}
    # Names have what was tried in them, and that its address.
    output = re.sub(r"\b[0-9a-f]{12}\b", "", output)
    for how, name in re.findall(r"^(PASS|FAIL|UPASS|XFAIL|UNRESOLVED|UNTESTED|UNSUPPORTED|ERROR): (.*)$", output, re.MULTILINE):
        how = PASSED if how == "PASS" else how
        if cases.get(name, PASSED) == PASSED:
            cases[name] = how
    return Cases(status, cases)


def suite():
    tool_version("guile", r"\(GNU Guile\) (3\.\d+)")
    tree = git_tree("guile", *SOURCE) / "test-suite"
    tests = {}
    for name in FILES:
        # The log has what passed, too.
        script = ('guile --no-auto-compile -L "$0" -e main -s "$0/guile-test" --test-suite "$0/tests" --log-file guile.log "$1"; '
                  'status=$?; cat guile.log; exit $status')
        tests[name] = (["sh", "-c", script, str(tree), f"{name}.test"], None)
    return Suite("Guile", "`test-suite` of Guile 3.0.8", tests, verdicts, heap="libgc")
