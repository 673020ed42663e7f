%% A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.
-module(leaky).
-export([main/1]).

main([Count]) ->
    Sessions = ets:new(sessions, [set, public]),
    Table = build_table(4000),
    serve(list_to_integer(Count), Sessions),
    io:format("~b~n", [ets:info(Sessions, size) + length(Table)]),
    erlang:halt(0).

build_table(0) -> [];
build_table(N) -> [binary:copy(<<"t">>, 1000) | build_table(N - 1)].

serve(0, _) ->
    ok;
serve(N, Sessions) ->
    _ = serve_request(),
    open_session(N, Sessions),
    serve(N - 1, Sessions).

serve_request() -> binary:copy(<<"r">>, 400).

open_session(N, Sessions) ->
    ets:insert(Sessions, {N, "a session of eleven characters and more"}).
