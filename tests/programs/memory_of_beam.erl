%% Keeps memory of every kind that erlang:memory/0 tells apart, and prints what it tells as JSON.
-module(memory_of_beam).
-export([main/1]).

main(_) ->
    Table = ets:new(table, [set, public]),
    [ets:insert(Table, {N, lists:seq(1, 30)}) || N <- lists:seq(1, 50000)],
    Binaries = [binary:copy(<<"b">>, 100 + N) || N <- lists:seq(1, 12000)],
    Keepers = [spawn(fun() -> keep(lists:seq(1, 40000)) end) || _ <- lists:seq(1, 40)],
    [begin K ! {self(), ready}, receive K -> ok end end || K <- Keepers],
    %% Afterwards no process gets smaller.
    [garbage_collect(Process) || Process <- processes()],
    settle(0),
    Memory = [io_lib:format("\"~s\":~b", [Kind, Bytes]) || {Kind, Bytes} <- erlang:memory()],
    io:format("{~s}~n", [lists:join(",", Memory)]),
    erlang:halt(length(Binaries) rem 2).

%% What one scheduler frees of another's counts until that one has come by.
settle(Before) ->
    timer:sleep(100),
    case erlang:memory(processes) of
        Now when abs(Now - Before) < 10000 -> ok;
        Now -> settle(Now)
    end.

keep(List) ->
    receive
        {From, ready} -> From ! self(), keep(List);
        {From, list} -> From ! List
    end.
