(* A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each. *)

let sessions = ref []
let[@inline never] build_table () = Array.init 4000 (fun i -> Bytes.make 1000 (Char.chr (i land 127)))
let[@inline never] open_session i rest = (i, i + 1, i + 2, i + 3) :: rest
let[@inline never] serve_request () = Bytes.create 400

let () =
  let table = build_table () in
  for i = 1 to int_of_string Sys.argv.(1) do
    ignore (Sys.opaque_identity (serve_request ()));
    sessions := open_session i !sessions
  done;
  Printf.printf "%d %d\n" (Array.length table) (List.length !sessions)
