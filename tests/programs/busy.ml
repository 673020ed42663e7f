(* Threads, exceptions, signals, marshalling, finalisers, compaction and a fork, with sampling in the middle of them. *)

exception Found of string

let finalised = ref 0

let rec deep n = if n = 0 then [] else n :: deep (n - 1)

let raises i = try raise (Found (string_of_int i ^ String.make 300 'x')) with Found s -> String.length s

let worker n =
  let total = ref 0 in
  for i = 1 to 3000 do
    total := !total + raises (i + n);
    if i mod 500 = 0 then Thread.yield ()
  done;
  !total

let () =
  Sys.set_signal Sys.sigalrm (Sys.Signal_handle (fun _ -> ignore (Sys.opaque_identity (Bytes.create 700))));
  ignore (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = 0.001; it_value = 0.001 });
  let results = Array.make 4 0 in
  let threads = List.init 4 (fun n -> Thread.create (fun () -> results.(n) <- worker n) ()) in
  print_int (List.length (deep 50_000));
  List.iter Thread.join threads;
  ignore (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = 0.; it_value = 0. });
  Array.iter (Printf.printf " %d") results;
  let data = List.init 5000 (fun i -> (i, string_of_int i, [| float i |])) in
  let copy : (int * string * float array) list = Marshal.from_string (Marshal.to_string data []) 0 in
  Printf.printf " %b" (copy = data);
  for _ = 1 to 100 do
    Gc.finalise (fun _ -> incr finalised) (Bytes.create 5000)
  done;
  Gc.compact ();
  Gc.full_major ();
  Printf.printf " %b" (!finalised > 90);
  let table = Hashtbl.create 16 in
  for i = 1 to 20_000 do
    Hashtbl.replace table (i mod 1000) (Bigarray.Array1.create Bigarray.char Bigarray.c_layout 100)
  done;
  Printf.printf " %d\n%!" (Hashtbl.length table);
  match Unix.fork () with
  | 0 ->
      let kept = List.init 20_000 string_of_int in
      Gc.full_major ();
      exit (if List.length kept = 20_000 then 4 else 5)
  | child -> (
      match Unix.waitpid [] child with
      | _, Unix.WEXITED 4 ->
          prerr_endline "said";
          failwith "as it should"
      | _ -> exit 1)
