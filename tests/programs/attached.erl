%% Says that it is ready, and then answers each line, a number, with the bytes of as many binaries.
-module(attached).
-export([main/1]).

main(_) ->
    io:format("ready~n"),
    serve().

serve() ->
    case io:get_line("") of
        eof ->
            erlang:halt(0);
        Line ->
            case string:to_integer(Line) of
                {Count, _} when is_integer(Count) ->
                    io:format("~b~n", [work(Count)]),
                    serve();
                _ ->
                    erlang:halt(0)
            end
    end.

%% In a process whose heap has room for all, so that it allocates nothing but the binaries.
work(Count) ->
    Work = fun() -> exit({made, length(grow(Count))}) end,
    Options = [monitor, {min_heap_size, 4000000}, {min_bin_vheap_size, 400000000}],
    {Process, Monitor} = spawn_opt(Work, Options),
    receive
        {'DOWN', Monitor, process, Process, {made, Made}} -> Made
    end.

grow(0) -> [];
grow(N) -> [one(N) | grow(N - 1)].

one(_) -> binary:copy(<<"w">>, 1000).
