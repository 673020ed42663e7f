%% Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.
%%
%% Each site runs in a process of its own whose heap has room for all that it makes there, so that no collection takes place and
%% what the site allocates is binaries and rows of tables alone. How many bytes the emulator takes for them was counted with
%% OTP 25, 27 and 29: those of before 26 have smaller headers, and insert a row without a copy of its elements.
-module(known_sites).
-export([main/1]).

main([Text]) ->
    Times = list_to_integer(Text),
    {Header, Copied} =
        case list_to_integer(erlang:system_info(otp_release)) of
            Old when Old < 26 -> {24, 0};
            _ -> {32, 8}
        end,
    Tables = {ets:new(kept, [ordered_set, public]), ets:new(cached, [ordered_set, public])},
    Leaked = 20000 * Times,
    Sites = [
        site("churn_small/2", fun(N) -> churn_small(N, Tables) end, 40000 * Times, 200 + Header, 0, 0),
        site("churn_large/2", fun(N) -> churn_large(N, Tables) end, 3000 * Times, 5000 + Header, 0, 0),
        site("leak/2", fun(N) -> leak(N, Tables) end, Leaked, row(12), 9 * Copied, Leaked),
        site("cache/2", fun(N) -> cache(N, Tables) end, 20000 * Times, row(12), 12 * Copied, 100)
    ],
    io:format("{~s}~n", [lists:join(",", Sites)]),
    erlang:halt(0).

%% Bytes of a row of a table with so many words, and its header.
row(Words) -> 8 * (Words + 6).

%% A block of `Size` bytes each time, and one of `Passing` bytes that does not stay, if that is not 0.
site(Name, Make, Count, Size, Passing, Live) ->
    Options = [monitor, {min_heap_size, 4000000}, {min_bin_vheap_size, 400000000}],
    {Process, Monitor} = spawn_opt(fun() -> Make(Count) end, Options),
    receive
        {'DOWN', Monitor, process, Process, normal} -> ok
    end,
    io_lib:format(
        "\"known_sites:~s\":{\"bytes\":~b,\"allocations\":~b,\"live_bytes\":~b,\"live_blocks\":~b}",
        [Name, Count * (Size + Passing), Count * (1 + min(1, Passing)), Live * Size, Live]
    ).

churn_small(0, _) -> ok;
churn_small(N, Tables) ->
    _ = binary:copy(<<"a">>, 200),
    churn_small(N - 1, Tables).

churn_large(0, _) -> ok;
churn_large(N, Tables) ->
    _ = binary:copy(<<"c">>, 5000),
    churn_large(N - 1, Tables).

leak(0, _) -> ok;
leak(N, Tables) ->
    ets:insert(element(1, Tables), {{kept, N}, 1, 2, 3, 4, 5, 6, 7, 8}),
    leak(N - 1, Tables).

%% Of a hundred rows, the oldest makes room for each new one.
cache(0, _) -> ok;
cache(N, Tables) ->
    ets:delete(element(2, Tables), N + 100),
    ets:insert(element(2, Tables), {N, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}),
    cache(N - 1, Tables).
