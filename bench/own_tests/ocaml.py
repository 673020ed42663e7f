"""OCaml's tests: programs of one file."""

import concurrent.futures
import shutil
import subprocess

from bench.own_tests.suite import room_for, source_of, Suite, tool_version

DIRECTORIES = ("gc-roots", "misc", "lib-obj", "lib-systhreads", "lib-threads", "lib-bigarray", "lib-hashtbl", "lib-buffer",
                     "lib-bytes", "lib-string", "lib-array", "lib-list", "lib-lazy", "lib-marshal", "lib-queue", "lib-seq",
                     "lib-set", "lib-stream", "lib-format", "lib-unix", "lazy", "regression", "runtime-errors", "backtrace",
                     "callback", "array-functions", "basic", "basic-more", "basic-float", "exotic-syntax", "ephe-c-api",
                     "weak-ephe-final", "statmemprof", "misc-kb", "float-unboxing", "c-api", "finaliser", "unwind",
                     "effects", "asmcomp", "letrec-compilation", "objects", "misc-unsafe", "match-exception", "prim-bigstring")


def suite():
    tool_version("ocamlopt", r"(\d+\.\d+)")
    tree = source_of("ocaml", r"/testsuite/tests/")
    built = room_for("ocaml")
    programs = []
    for directory in DIRECTORIES:
        for source in sorted((tree / "testsuite/tests" / directory).rglob("*.ml")):
            # A program of one file that is meant to run as native code; others need parts of the tree.
            text = source.read_text(errors="replace")
            if "expect" not in text[:200]:
                name = source.relative_to(tree / "testsuite/tests").with_suffix("")
                programs.append((str(name), source))
    tests = {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for name, program in pool.map(lambda entry: (entry[0], compiled(entry[1], built / entry[0])), programs):
            if program is not None:
                tests[name] = ([str(program)], str(program.parent))
    return Suite("OCaml", "`testsuite/tests` of ocaml, programs of one file", tests, lambda status, output: (status, output),
                 heap="ocaml")


def compiled(source, directory):
    directory.mkdir(parents=True)
    shutil.copy(source, directory)
    stubs = []
    for stub in sorted(source.parent.glob("*.c")):
        if stub.stem.lower().startswith(source.stem.lower()) or source.stem.lower() in stub.stem.lower():
            shutil.copy(stub, directory)
            stubs.append(stub.name)
    program = directory / "program.exe"
    command = ["ocamlopt", "-g", "-w", "-a", "-I", "+unix", "-I", "+str", "-I", "+threads", "unix.cmxa", "threads.cmxa", "bigarray.cmxa", "str.cmxa", *stubs,
               source.name, "-o", str(program)]
    done = subprocess.run(command, cwd=directory, capture_output=True, timeout=120)
    if done.returncode != 0:
        done = subprocess.run([part for part in command if part != "bigarray.cmxa"], cwd=directory, capture_output=True,
                              timeout=120)
    return program if done.returncode == 0 else None
