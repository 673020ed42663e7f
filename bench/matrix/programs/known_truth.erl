%% A leak, a bounded cache and two that drop what they make, in rounds, for scripts/runtimes-matrix. All in one process whose heap has
%% room for what it makes there, so that the sites allocate nothing but binaries and rows of tables. How many bytes the emulator
%% takes for them was counted with OTP 25, 27 and 29 by sampling every allocation.
-module(known_truth).
-export([main/1]).

-mode(compile).

-define(ROUNDS, 100).
%% The resident set must grow by more than binaries and free memory vary, or it does not confirm the leak.
-define(LEAKED, 2000).

main(Arguments) ->
    [begin io:format("ready~n"), io:get_line("") end || "wait" <- Arguments],
    {Header, Copied} =
        case list_to_integer(erlang:system_info(otp_release)) of
            Old when Old < 26 -> {24, 0};
            _ -> {32, 8}
        end,
    Owner = self(),
    Work = fun() ->
        Owner ! ets:new(kept, [ordered_set, public, {heir, Owner, kept}]),
        Owner ! ets:new(cached, [ordered_set, public, {heir, Owner, cached}]),
        receive
            Tables -> rounds(?ROUNDS, Tables)
        end
    end,
    Options = [monitor, {min_heap_size, 8000000}, {min_bin_vheap_size, 400000000}],
    {Process, Monitor} = spawn_opt(Work, Options),
    Kept = receive One -> One end,
    Cached = receive Other -> Other end,
    Process ! {Kept, Cached},
    receive
        {'DOWN', Monitor, process, Process, normal} -> ok
    end,
    Leaked = ?LEAKED * ?ROUNDS,
    Rows = 400 * ?ROUNDS,
    Row = 8 * (12 + 6),
    io:format("{\"leak\":\"known_truth:leak/2\",\"cache\":\"known_truth:cache/2\",\"sites\":{~s,~s,~s,~s}}~n", [
        site("leak/2", Leaked * (Row + 9 * Copied), Leaked * Row, ""),
        site("cache/2", Rows * (Row + 12 * Copied), 100 * Row, ""),
        site("churn_small/1", 800 * ?ROUNDS * (200 + Header), 0, ",\"type\":\"binary_alloc: binary\""),
        site("churn_large/1", 40 * ?ROUNDS * (3000 + Header), 0, ",\"type\":\"binary_alloc: binary\"")
    ]),
    erlang:halt(7).

site(Name, Bytes, Live, More) ->
    io_lib:format("\"known_truth:~s\":{\"bytes\":~b,\"live_bytes\":~b,\"line\":null~s}", [Name, Bytes, Live, More]).

rounds(0, _) ->
    ok;
rounds(Round, Tables) ->
    ok = leak(?LEAKED, {Round, Tables}),
    ok = cache(400 * (?ROUNDS - Round), {400 * (?ROUNDS - Round + 1), Tables}),
    ok = churn_small(800),
    ok = churn_large(40),
    %% It takes some seconds to tell a leak from a cache that fills.
    timer:sleep(25),
    rounds(Round - 1, Tables).

leak(0, _) -> ok;
leak(N, {Round, {Kept, _}} = Where) ->
    ets:insert(Kept, {{Round, N}, 1, 2, 3, 4, 5, 6, 7, 8}),
    leak(N - 1, Where).

%% Of a hundred rows, the oldest makes room for each new one.
cache(End, {End, _}) -> ok;
cache(N, {_, {_, Cached}} = Where) ->
    ets:delete(Cached, N - 100),
    ets:insert(Cached, {N, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}),
    cache(N + 1, Where).

churn_small(0) -> ok;
churn_small(N) ->
    _ = binary:copy(<<"a">>, 200),
    churn_small(N - 1).

churn_large(0) -> ok;
churn_large(N) ->
    _ = binary:copy(<<"c">>, 3000),
    churn_large(N - 1).
