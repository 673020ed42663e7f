(* Domains that start the runtime's sampler themselves, all at once, and look whether it works. Needs OCaml 5. *)

let domains = 4
let waiting = Atomic.make domains

let rec make n = if n = 0 then [] else let rest = make (n - 1) in Bytes.create 64 :: rest

let sampled () =
  let seen = Atomic.make 0 in
  let tracker =
    { Gc.Memprof.null_tracker with
      alloc_minor = (fun _ -> Atomic.incr seen; Some ()) } in
  Atomic.decr waiting;
  while Atomic.get waiting > 0 do
    Domain.cpu_relax ()
  done;
  let profile = Gc.Memprof.start ~sampling_rate:0.01 ~callstack_size:8 tracker in
  let kept = make 50000 in
  Gc.Memprof.stop ();
  Gc.Memprof.discard profile;
  List.length kept = 50000 && Atomic.get seen > 1000

let () =
  let before = make 20000 in
  let others = List.init (domains - 1) (fun _ -> Domain.spawn sampled) in
  let own = sampled () in
  let right = List.filter Fun.id (own :: List.map Domain.join others) in
  Printf.printf "%d of %d domains sampled\n" (List.length right) domains;
  assert (List.length before = 20000)
