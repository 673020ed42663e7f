"""The Knuth-Bendix completion of OCaml's own tests, against a tally of twenty lines by `Gc.Memprof`, as memtrace keeps one."""

import math
import shutil

from .opinion import CACHE, Missing, Opinion, profile, run, top_functions
from bench.sources import source_of

INTERVAL = 16384
MODULES = ("terms", "equations", "orderings", "kb", "kbmain")
# Each word is drawn with the same probability, so that each sample of a block stands for an interval.
TALLY = """
let sums : (string, int) Hashtbl.t = Hashtbl.create 100
let note (info : Gc.Memprof.allocation) =
  let name = match Printexc.backtrace_slots info.callstack with
    | Some slots when Array.length slots > 0 -> Option.value (Printexc.Slot.name slots.(0)) ~default:"?"
    | _ -> "?" in
  Hashtbl.replace sums name (info.n_samples + Option.value (Hashtbl.find_opt sums name) ~default:0);
  None
let () =
  if Sys.getenv_opt "TALLY" <> None then begin
    Gc.Memprof.start ~sampling_rate:(8. /. %d.) ~callstack_size:64
      { Gc.Memprof.null_tracker with alloc_minor = note; alloc_major = note };
    at_exit (fun () ->
      Gc.Memprof.stop ();
      let file = open_out "sums" in
      Hashtbl.iter (fun name samples -> Printf.fprintf file "%%s %%d\\n" name samples) sums;
      close_out file)
  end
""" % INTERVAL


def opinions(place):
    if shutil.which("ocamlopt") is None:
        raise Missing("ocamlopt (Debian: ocaml-nox)")
    tree = source_of("ocaml", r"/testsuite/tests/misc-kb/", CACHE) / "testsuite/tests/misc-kb"
    for file in tree.iterdir():
        shutil.copy(file, place)
    (place / "tally.ml").write_text(TALLY)
    sources = [name for module in MODULES for name in (f"{module}.mli", f"{module}.ml") if (place / name).exists()]
    run(["ocamlopt", "-g", "-o", "kb", "tally.ml", *sources], place)
    profile(["./kb"], place, str(INTERVAL))
    top = top_functions(place, "ocaml")[0]
    run(["./kb"], place, {"TALLY": "1"})
    lines = (place / "sums").read_text().splitlines()
    sums = {name: int(samples) for name, samples in (line.rsplit(" ", 1) for line in lines)}
    site = top["function"]
    samples = sums.get(site, 0)
    yield Opinion("OCaml", "Knuth-Bendix, of OCaml's tests", site, top["bytes"], top["error"], "Gc.Memprof",
                  samples * INTERVAL, math.sqrt(samples) * INTERVAL)
