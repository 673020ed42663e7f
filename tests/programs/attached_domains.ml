(* Three domains that work while they are attached to. Answers `ready`, then every NUMBER after each domain has allocated so many
   blocks of 160 bytes, and a fourth one that was spawned for it; ends when it is told to. Needs OCaml 5. *)

let others = 2
let turn = Atomic.make 0
let count = Atomic.make 0
let working = Atomic.make 0
let[@inline never] grow () = Bytes.create 144

let work () =
  for _ = 1 to Atomic.get count do
    ignore (Sys.opaque_identity (grow ()))
  done

let rec in_domain seen =
  while Atomic.get turn = seen do
    Domain.cpu_relax ()
  done;
  work ();
  Atomic.decr working;
  in_domain (seen + 1)

let rec answer () =
  match read_line () with
  | line when line.[0] = 'e' -> exit 3
  | line ->
      Atomic.set count (int_of_string line);
      Gc.minor ();
      Atomic.set working others;
      Atomic.incr turn;
      work ();
      Domain.join (Domain.spawn work);
      while Atomic.get working > 0 do
        Domain.cpu_relax ()
      done;
      Printf.printf "%d\n%!" (Atomic.get count);
      answer ()

let () =
  for _ = 1 to others do
    ignore (Domain.spawn (fun () -> in_domain 0))
  done;
  print_endline "ready";
  answer ()
