(* Starts the runtime's sampler itself, twice, and looks whether it works. *)

let rec before n = if n = 0 then [] else (let rest = before (n - 1) in Bytes.create 64 :: rest)
let rec after n = if n = 0 then [] else (let rest = after (n - 1) in Bytes.create 64 :: rest)

let sampled kept =
  let seen = ref 0 in
  let tracker =
    { Gc.Memprof.null_tracker with
      alloc_minor = (fun _ -> incr seen; Some ());
      promote = (fun () -> Some ());
      dealloc_minor = (fun () -> ());
      dealloc_major = (fun () -> ()) } in
  Gc.Memprof.start ~sampling_rate:0.01 ~callstack_size:8 tracker;
  kept := after 50000 @ !kept;
  Gc.compact ();
  Gc.Memprof.stop ();
  !seen > 1000

let () =
  let first = before 20000 in
  let kept = ref [] in
  let one = sampled kept in
  let two = sampled kept in
  let times = (if one then 1 else 0) + (if two then 1 else 0) in
  Printf.printf "sampled %d times, %d kept\n" times (List.length !kept);
  assert (List.length first = 20000)
