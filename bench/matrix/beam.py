"""Erlang's emulator: Debian's, of every release that one of its suites has, and this machine's with frame pointers."""

from bench.matrix.version import PROGRAMS, Missing, Version, first_line

NAME = "Erlang/OTP"
INTERVAL = "4K"
HEAP = "erlang"
PROGRAM = PROGRAMS / "known_truth.erl"
DEBIANS = ["trixie", "unstable"]
NUMBER = ("{ok, V} = file:read_file(filename:join([code:root_dir(), releases, erlang:system_info(otp_release), \"OTP_VERSION\"])),"
          "io:put_chars(V), halt().")


def versions(places):
    yield from found("Debian")
    for suite in DEBIANS:
        try:
            root = places.debian(suite, "erlang-base")
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from found(f"Debian {suite}", root)


def found(where, root=None):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), "erl", "-noshell", "-eval", NUMBER])
    except Missing as why:
        yield Version(where, [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", ["escript"], PROGRAM, root)
    if root is None:
        frames = {"ERL_FLAGS": "+JPperf true"}
        yield Version(f"{number}, {where}, frame pointers (`+JPperf true`)", ["escript"], PROGRAM, root, variables=frames)
