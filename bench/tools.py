"""What the benchmark needs of the machine: builds, peers, valgrind."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench import setups

ROOT = Path(__file__).resolve().parent.parent

LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def target_directory() -> Path:
    """Where cargo builds, and so do we."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


def _library(*names: str) -> str | None:
    for name in names:
        for directory in LIBRARY_DIRECTORIES:
            if (Path(directory) / name).exists():
                return str(Path(directory) / name)
    return None


def valgrind() -> str | None:
    """Debian's is a script around this: the program's environment must not reach a shell first."""
    return shutil.which("valgrind.bin") or shutil.which("valgrind")


@dataclasses.dataclass
class Tools:
    """Everything that was found or built. `None` stands for what is not installed."""

    scratch: Path
    agent: str
    command: str
    shim: str
    fixed_seed: str
    valgrind: str | None
    jemalloc: str | None
    tcmalloc: str | None
    heaptrack: str | None
    memray_python: str | None

    def program(self, name: str) -> str:
        """A compiled program of bench/programs."""
        return str(self.scratch / "programs" / name)

    def ours(self, interval_bytes: int, **settings: str) -> setups.Setup:
        """Our agent at an interval."""
        return setups.allocsample(self.agent, interval_bytes, **settings)

    def samplers(self, interval_bytes: int) -> list[setups.Setup]:
        """Our agent and the peers that sample, at one interval."""
        found = [self.ours(interval_bytes)]
        if self.jemalloc:
            found.append(setups.jemalloc_prof(self.jemalloc, interval_bytes))
        if self.tcmalloc:
            found.append(setups.tcmalloc_sampling(self.tcmalloc, interval_bytes))
        return found


def prepare(with_all_peers: bool, with_memray: bool) -> Tools:
    """Builds what is ours and looks for what is not. jemalloc is the one peer that is never left out."""
    target = target_directory()
    say("building")
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    scratch = target / "bench"
    (scratch / "programs").mkdir(parents=True, exist_ok=True)
    compiler = ["cc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
    for source in sorted((ROOT / "bench/programs").glob("*.c")):
        subprocess.run([*compiler, "-pthread", "-o", scratch / "programs" / source.stem, source], check=True)
    shims = {name: scratch / f"{name}.so" for name in ("passthrough", "fixed_seed")}
    flags = ["-fPIC", "-shared", "-fno-builtin", "-fvisibility=hidden", "-Wl,-z,now"]
    for name, shim in shims.items():
        subprocess.run([*compiler, *flags, "-o", shim, ROOT / f"bench/shim/{name}.c", "-ldl"], check=True)
    for built in ("liballocsample.so", "allocsample"):
        # Copies: whoever builds meanwhile does not change what is measured. Removed first, since a process may run it.
        (scratch / built).unlink(missing_ok=True)
        shutil.copy2(target / "release" / built, scratch / built)
    tools = Tools(
        scratch=scratch,
        agent=str(scratch / "liballocsample.so"),
        command=str(scratch / "allocsample"),
        shim=str(shims["passthrough"]),
        fixed_seed=str(shims["fixed_seed"]),
        valgrind=valgrind(),
        jemalloc=_library("libjemalloc.so.2"),
        tcmalloc=_library("libtcmalloc.so.4") if with_all_peers else None,
        heaptrack=shutil.which("heaptrack") if with_all_peers else None,
        memray_python=_memray(scratch / "venv") if with_memray else None,
    )
    packages = {"valgrind": tools.valgrind, "libjemalloc2": tools.jemalloc}
    if with_all_peers:
        packages |= {"libgoogle-perftools4": tools.tcmalloc, "heaptrack": tools.heaptrack}
    for package, found in packages.items():
        if not found:
            say(f"not installed, left out: {package} (Debian package)")
    return tools


def _memray(venv: Path) -> str | None:
    """A Python with memray, in a virtual environment beside the build."""
    python = venv / "bin/python"
    has_memray = [str(python), "-c", "import memray"]
    if not python.exists() or subprocess.run(has_memray, stderr=subprocess.DEVNULL).returncode != 0:
        base = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
        # Quiet: the output names places that mean nothing to a reader of the results.
        for step in ([base, "-m", "venv", str(venv)], [str(python), "-m", "pip", "install", "--quiet", "memray"]):
            if subprocess.run(step, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
                say("memray could not be installed by pip, left out (Debian: python3-venv)")
                return None
    return str(python)
