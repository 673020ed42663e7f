(* Allocates blocks of many sizes, and prints how many bytes the runtime has counted. *)
let rec fill n kept = if n = 0 then kept else fill (n - 1) (if n mod 50 = 0 then Array.make (n mod 700) n :: kept else kept)
let work n = List.length (List.rev_map (fun i -> (i, string_of_int i)) (List.init n (fun i -> i)))
let () =
  let kept = ref [] in
  for _ = 1 to 20 do
    ignore (work 20000);
    kept := fill 20000 !kept
  done;
  if List.length !kept <> 8000 then exit 1;
  Printf.printf "%.0f\n" (Gc.allocated_bytes ())
