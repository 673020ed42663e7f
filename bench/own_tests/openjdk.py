"""OpenJDK's tests, by their own harness."""

import pathlib
import re
import shutil

from bench.own_tests.suite import Cases, Missing, PASSED, source_of, Suite, tool_version

# Of the JDK's tests, which can share a JVM, and of HotSpot's, which cannot. Those with a part in C are left out.
JDK_TESTS = ("java/lang/ref", "java/lang/Thread", "java/lang/ThreadLocal", "java/util/WeakHashMap")
HOTSPOT_TESTS = ("gc/class_unloading", "gc/InfiniteList.java", "gc/TestFullGCCount.java", "gc/TestHumongousReferenceObject.java",
                 "gc/TestMemoryMXBeansAndPoolsPresence.java", "gc/TestReferenceClearDuringMarking.java",
                 "gc/TestReferenceClearDuringReferenceProcessing.java", "gc/TestReferenceRefersTo.java",
                 "gc/TestReferenceRefersToDuringConcMark.java", "gc/TestSoftReferencesBehaviorOnOOME.java",
                 "gc/TestStackOverflow.java", "gc/TestSystemGC.java", "runtime/ClassUnload/UnloadTest.java")


def verdicts(status, output):
    ended = re.findall(r"^(Passed|FAILED|Error|Not run)[.:] (\S+?)\.?$", output, re.MULTILINE)
    return Cases(status, {name: PASSED if how == "Passed" else how for how, name in ended})


def suite():
    version = tool_version("javac", r"javac (\d+)")
    if shutil.which("jtreg") is None:
        raise Missing("no jtreg (Debian: jtreg7)")
    wanted = (r"^[^/]+/test/(lib/|jtreg-ext/|jdk/(TEST|lib/|java/(lang|util|nio)/)"
              r"|hotspot/jtreg/(TEST|gc/|runtime/|serviceability/|testlibrary))")
    tree = source_of(f"openjdk-{version}", wanted) / "test"
    home = pathlib.Path(shutil.which("javac")).resolve().parent.parent
    tests = {}
    for place, mode, parts in (("jdk", "-agentvm", JDK_TESTS), ("hotspot/jtreg", "-othervm", HOTSPOT_TESTS)):
        # The groups name tests that are not unpacked.
        root = tree / place / "TEST.ROOT"
        root.write_text(re.sub(r"^groups=.*$", "groups=", root.read_text(), flags=re.MULTILINE))
        command = ["jtreg", f"-jdk:{home}", mode, "-verbose:summary", "-automatic", "-ignore:quiet", "-timeoutFactor:20",
                   "-workDir:work", "-reportDir:report"]
        tests[place] = ([*command, *(str(tree / place / part) for part in parts)], None)

    def only(command, cases, agent):
        """jtreg clears the environment, and starts JVMs of its own."""
        options = [word for word in command if not word.startswith(str(tree))]
        parts = command[len(options):]
        if agent is not None:
            options += ["-e:LD_PRELOAD,ALLOCSAMPLE_INTERVAL,ALLOCSAMPLE_OUTPUT,ALLOCSAMPLE_RUN_PID",
                        f"-vmoption:-agentpath:{agent.library}"]
        if cases:
            root = next(parent for parent in pathlib.Path(parts[0]).parents if (parent / "TEST.ROOT").exists())
            parts = [str(root / case) for case in cases]
        return [*options, *parts]

    return Suite("OpenJDK", f"`test/jdk`, `test/hotspot` of openjdk-{version}", tests, verdicts, heap="java",
                 patience=3600, only=only)
