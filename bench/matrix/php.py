"""PHP: Debian's, of every release that one of its suites has, and the newest one with its compilers."""

from bench.matrix.version import PROGRAMS, Missing, Version, first_line, from_debians

NAME = "PHP"
INTERVAL = "16K"
HEAP = "php"
OWN = {"KNOWN_TRUTH_OWN": "1"}
PROGRAM = PROGRAMS / "known_truth.php"
DEBIANS = [("bullseye", "7.4"), ("trixie", "8.4"), ("unstable", "8.4"), ("unstable", "8.5"), ("experimental", "8.6")]
ENDS = [("bullseye", "php7.4-cli"), ("experimental", "php8.6-cli")]
NUMBER = ["-r", "echo PHP_VERSION, PHP_ZTS ? ' ZTS' : '';"]
CACHE = ["-d", "opcache.enable_cli=1"]
JIT = [*CACHE, "-d", "opcache.jit_buffer_size=64M", "-d", "opcache.jit=tracing"]


def versions(places):
    if places.here:
        yield from found("php", "Debian")
    yield from from_debians(places, PROGRAM, lambda short: f"php{short}-cli", DEBIANS,
                            lambda short, suite, root: found(f"php{short}", f"Debian {suite}", root))


def found(php, where, root=None):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), php, *NUMBER])
    except Missing as why:
        yield Version(f"{php}, {where}", [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", [php], PROGRAM, root)
    if root is None or php == "php8.6":
        yield Version(f"{number}, {where}, OPcache", [php, *CACHE], PROGRAM, root)
        yield Version(f"{number}, {where}, JIT", [php, *JIT], PROGRAM, root)
