(* Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.

   A string of n bytes is a block of n / 8 + 1 words, and a header; from 257 words on it is not in the minor heap. *)

let truth = ref []
let kept = ref []

let[@inline never] small_and_freed () = Bytes.create 144
let[@inline never] small_and_kept () = Bytes.create 56
let[@inline never] large_and_freed () = Bytes.create 5000
let[@inline never] large_and_kept () = Bytes.create 3000
let[@inline never] tuple_and_freed i = (i, i + 1, i + 2)
let[@inline never] list_and_kept i rest = i :: rest

let block n = 8 * ((n / 8) + 2)

let told name count bytes keep =
  let total = count * bytes in
  truth :=
    Printf.sprintf
      {|"%s": {"bytes": %d, "allocations": %d, "live_bytes": %d, "live_blocks": %d}|}
      name total count
      (if keep then total else 0)
      (if keep then count else 0)
    :: !truth

let site name make count size keep =
  let all = if keep then Array.make count Bytes.empty else [||] in
  for i = 0 to count - 1 do
    let made = Sys.opaque_identity (make ()) in
    if keep then all.(i) <- made
  done;
  kept := all :: !kept;
  told name count (block size) keep

let main times =
  site "Known_sites.small_and_freed" small_and_freed (50_000 * times) 144 false;
  site "Known_sites.small_and_kept" small_and_kept (20_000 * times) 56 true;
  site "Known_sites.large_and_freed" large_and_freed (4_000 * times) 5000 false;
  site "Known_sites.large_and_kept" large_and_kept (1_000 * times) 3000 true;
  for i = 1 to 200_000 * times do
    ignore (Sys.opaque_identity (tuple_and_freed i))
  done;
  told "Known_sites.tuple_and_freed" (200_000 * times) 32 false;
  let list = ref [] in
  for i = 1 to 50_000 * times do
    list := list_and_kept i !list
  done;
  told "Known_sites.list_and_kept" (50_000 * times) 24 true;
  Gc.full_major ();
  print_endline ("{" ^ String.concat ", " !truth ^ "}");
  ignore (Sys.opaque_identity (!list, !kept))

let () =
  main (int_of_string Sys.argv.(1));
  (* What is kept is alive at the end. *)
  Unix._exit 0
