"""What a program is run under: nothing, a bare shim, our agent, or a peer.

Each profiler is compared with the same allocator without the profiler, so that the difference is the profiler's own.
"""

import dataclasses
from pathlib import Path

from bench import sizes

NEVER = 1 << 36
"""An interval in bytes that no run reaches after its first sample (`bench/programs/work.h`)."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """An environment for a program, and what to compare it with."""

    name: str
    preload: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    wrapper: tuple[str, ...] = ()
    """Goes in front of the program's own arguments; `{directory}` is the run's own directory."""
    base: "Setup | None" = None
    """The same without the profiler; `None` for the bases themselves."""
    interval_bytes: int | None = None
    unsampled_bytes: int = 0
    """What the profiler leaves out at the start of each process, whatever its interval."""

    @property
    def title(self) -> str:
        """The name with the interval, if that is one that anything reaches."""
        if self.interval_bytes is None or self.interval_bytes == NEVER:
            return self.name
        return f"{self.name}, {sizes.text(self.interval_bytes)}"

    def environment_in(self, directory: Path) -> dict[str, str]:
        """Variables to add to a bare environment, beside `preload`; profiles go to `directory`."""
        return {name: value.replace("{directory}", str(directory)) for name, value in self.environment}


PLAIN = Setup("plain")


def passthrough(library: str) -> Setup:
    """The bare shim, which only jumps on."""
    return Setup("pass-through shim", preload=(library,), base=PLAIN)


def allocsample(library: str, interval_bytes: int, base: Setup = PLAIN, **settings: str) -> Setup:
    """Our agent at an interval; `settings` are further variables of its environment, such as `UNWIND="none"`."""
    variables = {
        "INTERVAL": str(interval_bytes),
        "SEED": "1",
        "OUTPUT": "{directory}/run.allocsample",
        **settings,
    }
    return Setup(
        "allocsample",
        preload=(library, *base.preload),
        environment=tuple((f"ALLOCSAMPLE_{name}", value) for name, value in variables.items()),
        base=base,
        interval_bytes=interval_bytes,
    )


def allocsample_off(library: str) -> Setup:
    """Our agent, loaded and switched off."""
    return Setup(
        "allocsample, off",
        preload=(library,),
        environment=(("ALLOCSAMPLE_INTERVAL", "off"),),
        base=PLAIN,
    )


def allocsample_dormant(library: str) -> Setup:
    """Our agent, loaded and waiting to be told to start."""
    return Setup(
        "allocsample, dormant",
        preload=(library,),
        environment=(
            ("ALLOCSAMPLE_START", "off"),
            ("ALLOCSAMPLE_OUTPUT", "{directory}/run.allocsample"),
        ),
        base=PLAIN,
    )


def jemalloc(library: str) -> Setup:
    """jemalloc, not profiling."""
    return Setup("jemalloc", preload=(library,), environment=(("MALLOC_CONF", "prof:false"),))


def jemalloc_prof(library: str, interval_bytes: int) -> Setup:
    """jemalloc's sampling profiler, which writes one profile at the end, as we do."""
    logarithm = interval_bytes.bit_length() - 1
    assert interval_bytes == 1 << logarithm, "jemalloc's intervals are powers of two"
    return Setup(
        "jemalloc `prof`",
        preload=(library,),
        environment=(
            (
                "MALLOC_CONF",
                f"prof:true,prof_final:true,prof_prefix:{{directory}}/run,lg_prof_sample:{logarithm}",
            ),
        ),
        base=jemalloc(library),
        interval_bytes=interval_bytes,
    )


def tcmalloc(library: str) -> Setup:
    """gperftools' allocator, not sampling."""
    return Setup("tcmalloc", preload=(library,), environment=(("TCMALLOC_SAMPLE_PARAMETER", "0"),))


def tcmalloc_sampling(library: str, interval_bytes: int) -> Setup:
    """gperftools' sampling of live objects. It writes nothing unless the program asks it to."""
    return Setup(
        "tcmalloc sampling",
        preload=(library,),
        environment=(("TCMALLOC_SAMPLE_PARAMETER", str(interval_bytes)),),
        base=tcmalloc(library),
        interval_bytes=interval_bytes,
        # Its first thread asks whether it is to sample only after so much; found by counting.
        unsampled_bytes=16 << 20,
    )


def heaptrack(command: str) -> Setup:
    """heaptrack, which records every allocation; raw recording only, its cheapest mode."""
    return Setup("heaptrack (every allocation)", wrapper=(command, "--raw", "-o", "{directory}/run"), base=PLAIN)


def memray(python: str, *options: str) -> Setup:
    """memray, which records every allocation of a Python program, its base being the same interpreter."""
    base = Setup("plain", wrapper=(python,))
    name = "memray" + "".join(f" `{option}`" for option in options)
    return Setup(
        f"{name} (every allocation)",
        wrapper=(python, "-m", "memray", "run", "-q", "-f", *options, "-o", "{directory}/run.bin"),
        base=base,
    )


def tracemalloc(python: str, frames: int) -> Setup:
    """CPython's own tracer."""
    return Setup(
        f"tracemalloc, {frames} frames (every allocation)",
        wrapper=(python, "-X", f"tracemalloc={frames}"),
        base=Setup("plain", wrapper=(python,)),
    )
