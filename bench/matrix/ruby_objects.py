"""Ruby's objects in slots (`--objects`): the versions of ruby.py."""

import dataclasses

from bench.matrix import ruby
from bench.matrix.version import PROGRAMS

NAME = "Ruby, objects in slots"
INTERVAL = "2K"
HEAP = "ruby"
OPTIONS = ["--objects"]
OWN = {"KNOWN_TRUTH_OWN": "1"}
OWN_HEAP = "ruby"
PROGRAM = PROGRAMS / "known_truth_objects.rb"
# What Ruby takes from malloc for another page of slots is charged to the function that needs the page.
LEAKS_IN_HEAP = True
# The heap grows in small steps. Otherwise the leak may fill slots that are there already, and the resident set does not confirm it.
VARIABLES = {"RUBY_GC_HEAP_GROWTH_MAX_SLOTS": "10000"}
ENDS = ruby.ENDS


def versions(places):
    for version in ruby.versions(places):
        # From 4.1 on no object is sampled then.
        is_unreported = version.name.endswith("ZJIT") and not version.name.startswith("4.0")
        missing = "ZJIT makes objects that Ruby does not report" if is_unreported else version.missing
        yield dataclasses.replace(version, program=PROGRAM, variables=VARIABLES, missing=missing)
