(* Effect handlers of OCaml 5: continuations that allocate, are resumed in turn, fail, and are discontinued.
   Usage: effects SECONDS *)
open Effect
open Effect.Deep

type _ Effect.t += Give : int -> unit Effect.t
exception Over

type state = Ended | Waits of int * (unit, state) continuation

let rec work depth seed =
  if depth > 0 then work (depth - 1) seed + 0
  else String.length (String.concat "" (List.init 10 (fun i -> String.make (seed + i) 'x')))

let start seed =
  match_with
    (fun () -> for turn = 0 to 7 do perform (Give (work (seed mod 20) (seed + turn))) done)
    ()
    { retc = (fun () -> Ended);
      exnc = (function Over -> Ended | error -> raise error);
      effc = (fun (type a) (asked : a Effect.t) ->
        match asked with
        | Give n -> Some (fun (k : (a, state) continuation) -> Waits (n, k))
        | _ -> None) }

let () =
  let finish = Unix.gettimeofday () +. float_of_string Sys.argv.(1) in
  let rounds = ref 0 in
  while Unix.gettimeofday () < finish do
    let states = Array.init 40 start in
    let turns = if !rounds mod 2 = 0 then 8 else 4 in
    for turn = 0 to turns - 1 do
      Array.iteri (fun seed state ->
        match state with
        | Waits (n, k) ->
          if n <> 10 * (seed + turn) + 45 then (print_endline "wrong"; exit 1);
          states.(seed) <- continue k ()
        | Ended -> print_endline "wrong"; exit 1) states
    done;
    Array.iter (function
      | Ended -> if turns < 8 then (print_endline "wrong"; exit 1)
      | Waits (_, k) -> ignore (discontinue k Over)) states;
    incr rounds
  done;
  Printf.printf "right: %d\n" !rounds
