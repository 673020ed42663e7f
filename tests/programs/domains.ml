(* Domains and threads of them that allocate known numbers of bytes at the same time, below effect handlers, with collections
   asked for in the middle. Prints the truth as JSON. Needs OCaml 5.

   A tuple of n fields has n words and a header; a string of n bytes has n / 8 + 1 words and a header. *)

let domains = 3
let times = 60_000

type _ Effect.t += Next : int -> int Effect.t

let[@inline never] tuple_and_freed i = (i, i + 1, i + 2)
let[@inline never] string_and_freed () = Bytes.create 1000
let[@inline never] string_and_kept () = Bytes.create 200
let[@inline never] list_and_kept i rest = i :: rest

(* The continuation is resumed on a stack of the heap. *)
let below_handler body =
  let open Effect.Deep in
  match_with body ()
    {
      retc = (fun result -> result);
      exnc = raise;
      effc =
        (fun (type a) (asked : a Effect.t) ->
          match asked with
          | Next i -> Some (fun (k : (a, _) continuation) -> continue k (i + 1))
          | _ -> None);
    }

let work kept from upto =
  below_handler (fun () ->
      let list = ref [] in
      for i = from to upto - 1 do
        let next = Effect.perform (Next i) in
        ignore (Sys.opaque_identity (tuple_and_freed next));
        if i mod 10 = 0 then ignore (Sys.opaque_identity (string_and_freed ()));
        kept.(i) <- Sys.opaque_identity (string_and_kept ());
        list := list_and_kept i !list;
        if i mod 20_000 = 0 then Gc.full_major ()
      done;
      !list)

let in_domain () =
  let kept = Array.make times Bytes.empty in
  let half = times / 2 in
  let first = ref [] in
  let thread = Thread.create (fun () -> first := work kept 0 half) () in
  let second = work kept half times in
  Thread.join thread;
  (kept, !first, second)

let told name count bytes keep =
  let live = if keep then 1 else 0 in
  Printf.sprintf {|"Domains.%s": {"bytes": %d, "allocations": %d, "live_bytes": %d, "live_blocks": %d}|} name (count * bytes)
    count (live * count * bytes) (live * count)

let () =
  (* What one domain has kept is alive after its end. *)
  let early = Domain.join (Domain.spawn in_domain) in
  let others = List.init (domains - 2) (fun _ -> Domain.spawn in_domain) in
  let own = in_domain () in
  let others = List.map Domain.join others in
  Gc.full_major ();
  let count = domains * times in
  let truth =
    [
      told "tuple_and_freed" count 32 false;
      told "string_and_freed" (count / 10) 1016 false;
      told "string_and_kept" count 216 true;
      told "list_and_kept" count 24 true;
    ]
  in
  print_endline ("{" ^ String.concat ", " truth ^ "}");
  ignore (Sys.opaque_identity (early, own, others));
  Unix._exit 0
