(* Text and collections in OCaml: words counted, sorted, joined and split. No random, no clock. *)
let () =
  let rounds = int_of_string Sys.argv.(1) in
  let counts = Hashtbl.create 2000 and total = ref 0 in
  for turn = 0 to rounds - 1 do
    let words = List.init 4000 (fun i -> "word" ^ string_of_int ((i * 7919 + turn) mod 1009)) in
    List.iter
      (fun word -> Hashtbl.replace counts word (1 + Option.value (Hashtbl.find_opt counts word) ~default:0))
      words;
    let pairs = List.filteri (fun i _ -> i < 300) words |> List.map (fun word -> (word, String.concat word [ "a"; "b"; "c" ])) in
    let parts = String.split_on_char '1' (String.concat " " words) in
    total := !total + List.length pairs + List.length (List.sort_uniq compare words) + List.length parts
  done;
  Printf.printf "%d %d\n" (Hashtbl.length counts) !total
