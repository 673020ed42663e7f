(* Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.

   Every block has a header of one word. A string of n bytes has n / 8 + 1 words, and the tuple is allocated by the compiler's
   own code, not by C. No block that is kept has more than 127 words, so that malloc has none of them as well. *)

let rounds = 100_000
let cached = 2_000
let churn_small i = Sys.opaque_identity (i, i, i, i, i, i, i, i, i)
let churn_large () = Bytes.create 4992
let fill_cache () = Bytes.create 888
let leak_session () = Bytes.create 984

let site name line each count live =
  Printf.sprintf {|"%s": {"bytes": %d, "live_bytes": %d, "line": %d}|} name (each * count) (each * live) line

let is_given name = Array.exists (( = ) name) Sys.argv

let () =
  if is_given "wait" then (
    print_endline "ready";
    ignore (read_line ()));
  let cache = Array.make cached Bytes.empty in
  let leaked = Array.make rounds Bytes.empty in
  for i = 0 to rounds - 1 do
    for j = 1 to 10 do
      ignore ((churn_small [@inlined never]) (i + j))
    done;
    if i mod 20 = 0 then ignore (Sys.opaque_identity ((churn_large [@inlined never]) ()));
    cache.(i mod cached) <- (fill_cache [@inlined never]) ();
    leaked.(i) <- (leak_session [@inlined never]) ();
    if i mod 10_000 = 0 then Gc.full_major ();
    (* It takes some seconds to tell a leak from a cache that fills. *)
    if i mod 100 = 0 then Unix.sleepf 0.003
  done;
  Gc.full_major ();
  let sites =
    [
      site "churn_small" 8 80 (10 * rounds) 0;
      site "churn_large" 9 5008 (rounds / 20) 0;
      site "fill_cache" 10 904 rounds cached;
      site "leak_session" 11 1000 rounds rounds;
    ]
  in
  if Sys.getenv_opt "KNOWN_TRUTH_OWN" <> None then
    Printf.printf {|{"own_live_bytes": %d}|} (8 * (Gc.stat ()).Gc.live_words)
  else Printf.printf {|{"sites": {%s}, "leak": "leak_session", "cache": "fill_cache"}|} (String.concat ", " sites);
  print_newline ();
  ignore (Sys.opaque_identity (cache, leaked));
  (* What is kept is alive at the end. *)
  Unix._exit 7
