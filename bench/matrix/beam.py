"""Erlang's emulator: Debian's, of every release that one of its suites has, and this machine's with frame pointers."""

from bench.matrix.version import PROGRAMS, Missing, Version, first_line, from_suites

NAME = "Erlang/OTP"
INTERVAL = "4K"
HEAP = "erlang"
PROGRAM = PROGRAMS / "known_truth.erl"
DEBIANS = ["trixie", "unstable"]
ENDS = [("unstable", "erlang-base")]
NUMBER = ("{ok, V} = file:read_file(filename:join([code:root_dir(), releases, erlang:system_info(otp_release), \"OTP_VERSION\"])),"
          "io:put_chars(V), halt().")


def versions(places):
    yield from from_suites(places, PROGRAM, "erlang-base", DEBIANS, found)


def found(where, root):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), "erl", "-noshell", "-eval", NUMBER])
    except Missing as why:
        yield Version(where, [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", ["escript"], PROGRAM, root)
    if root is None:
        frames = {"ERL_FLAGS": "+JPperf true"}
        yield Version(f"{number}, {where}, frame pointers (`+JPperf true`)", ["escript"], PROGRAM, root, variables=frames)
