(* Works while it is attached to. Answers `ready`, then every line with what it did; ends when it is told to.

   NUMBER keeps so many blocks of 160 bytes, after a minor collection, and `sample` starts the runtime's sampler itself. *)

let kept = ref []
let[@inline never] grow () = Bytes.create 144

let work count =
  Gc.minor ();
  for _ = 1 to count do
    kept := grow () :: !kept
  done;
  List.length !kept

let sampled () =
  let seen = ref 0 in
  let tracker = { Gc.Memprof.null_tracker with alloc_minor = (fun _ -> incr seen; None) } in
  ignore (Gc.Memprof.start ~sampling_rate:1.0 ~callstack_size:8 tracker);
  ignore (work 100);
  Gc.Memprof.stop ();
  !seen >= 100

let rec answer () =
  match read_line () with
  | line when line.[0] = 'e' -> exit 3
  | "sample" -> Printf.printf "%b\n%!" (sampled ()); answer ()
  | count -> Printf.printf "%d\n%!" (work (int_of_string count)); answer ()

let () =
  print_endline "ready";
  answer ()
