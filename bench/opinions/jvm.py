"""javac compiling Apache Commons Lang, against the JVM's Flight Recorder."""

import json
import math
import shutil
from collections import Counter

from .opinion import CACHE, Missing, Opinion, profile, run, top_functions
from bench.sources import source_of

RECORDER = "-J-XX:StartFlightRecording:filename=x.jfr,settings=profile,jdk.ObjectAllocationSample#throttle=off"


def opinions(place):
    if shutil.which("javac") is None or shutil.which("jfr") is None:
        raise Missing("javac and jfr (Debian: openjdk-17-jdk-headless)")
    tree = source_of("libcommons-lang3-java", r"/src/main/java/", CACHE)
    (place / "files").write_text("\n".join(map(str, sorted(tree.rglob("*.java")))))
    (place / "classes").mkdir()
    arguments = ["-nowarn", "-d", "classes", "@files"]
    profile(["javac", *arguments], place, "64K")
    top = top_functions(place, "java")[0]
    run(["javac", RECORDER, *arguments], place)
    events = run(["jfr", "print", "--json", "--stack-depth", "1", "--events", "jdk.ObjectAllocationSample", "x.jfr"], place)
    weights, squares = Counter(), Counter()
    for event in json.loads(events)["recording"]["events"]:
        values = event["values"]
        for frame in (values["stackTrace"] or {"frames": []})["frames"]:
            method = frame["method"]
            name = f"{method['type']['name'].replace('/', '.')}.{method['name']}"
            weights[name] += values["weight"]
            squares[name] += values["weight"] ** 2
    site = top["function"]
    yield Opinion("JVM", "javac, Commons Lang", site, top["bytes"], top["error"], "JFR, ObjectAllocationSample",
                  weights[site], math.sqrt(squares[site]))
