"""Ruby: Debian's, and those that the environment variable MATRIX_RUBIES names, each with its JIT compilers as well where they were built in.

Debian builds Ruby without them and packages no 4.0 yet. One made from its sources (`./configure --enable-shared --enable-yjit
--enable-zjit`) is named like this, in the chroot of a Debian or without one: MATRIX_RUBIES=trixie:/opt/ruby4.0/bin/ruby,/another/ruby
"""

import subprocess

from bench.matrix.version import PROGRAMS, Missing, Version, first_line, from_debians, named_in

NAME = "Ruby"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.rb"
DEBIANS = [("trixie", "3.3"), ("unstable", "3.3"), ("experimental", "3.4")]
ENDS = [("experimental", "ruby3.4")]
# The first method that is called twice is compiled.
COMPILERS = {name: [f"--{name.lower()}", f"--{name.lower()}-call-threshold=2"] for name in ("YJIT", "ZJIT")}
# A version that is not released has no patch level.
NUMBER = "puts RUBY_PATCHLEVEL < 0 ? RUBY_VERSION + 'dev' : RUBY_VERSION"


def versions(places):
    if places.here:
        yield from found("/usr/bin/ruby", "Debian")
    yield from from_debians(places, PROGRAM, lambda short: f"ruby{short}", DEBIANS,
                            lambda short, suite, root: found(f"/usr/bin/ruby{short}", f"Debian {suite}", root))
    yield from named_in("MATRIX_RUBIES", places, lambda file, where, root: found(file, "built from source", root))


def found(ruby, where, root=None):
    inside = ["chroot", str(root)] if root else []
    try:
        number = first_line([*inside, ruby, "-e", NUMBER])
    except Missing as why:
        yield Version(f"{ruby}, {where}", [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", [ruby], PROGRAM, root)
    for name, options in COMPILERS.items():
        check = [*inside, ruby, options[0], "-e", f"exit RubyVM::{name}.enabled?"]
        tried = subprocess.run(check, capture_output=True, text=True)
        if tried.returncode == 0 and not tried.stderr:
            yield Version(f"{number}, {where}, {name}", [ruby, *options], PROGRAM, root)
