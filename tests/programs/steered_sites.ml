(* Three functions that allocate the same, with a line on standard input before each of the last two. Prints its process
   number before it reads.

   Half are small blocks, of 160 bytes, and half of the bytes are in blocks that C allocates outside of the minor heap, of
   4,016 bytes. One in ten is kept: of the first two until the second has ended, of the third until the end. *)

let kept = ref []

let[@inline never] first n = Bytes.create n
let[@inline never] second n = Bytes.create n
let[@inline never] third n = Bytes.create n

let site make bytes =
  let fill size count =
    for i = 1 to count do
      let made = Sys.opaque_identity (make size) in
      if i mod 10 = 0 then kept := made :: !kept
    done
  in
  fill 144 (bytes / 2 / 160);
  fill 4000 (bytes / 2 / 4016)

let wait () =
  Printf.printf "%d\n%!" (Unix.getpid ());
  ignore (read_line ())

let () =
  let bytes = int_of_string Sys.argv.(1) in
  site first bytes;
  wait ();
  site second bytes;
  kept := [];
  wait ();
  site third bytes;
  Gc.full_major ();
  ignore (Sys.opaque_identity !kept);
  (* What is kept is alive at the end. *)
  Unix._exit 0
