%% Text and collections in Erlang: words counted, sorted, joined and split. No random, no clock.
-module(words).
-export([main/1]).

make_words(Turn) ->
    [<<"word", (integer_to_binary((I * 7919 + Turn) rem 1009))/binary>> || I <- lists:seq(0, 3999)].

pair(Key, Value) ->
    #{key => Key, value => Value, text => binary:copy(<<Key/binary, Value/binary>>, 12)}.

count(Words, Counts) ->
    lists:foldl(fun(Word, Known) -> maps:update_with(Word, fun(N) -> N + 1 end, 1, Known) end, Counts, Words).

round_of(Turn, {Counts, Total}) ->
    Words = make_words(Turn),
    {First, Rest} = lists:split(300, Words),
    Pairs = lists:zipwith(fun pair/2, First, lists:sublist(Rest, 300)),
    Parts = binary:split(iolist_to_binary(lists:join(<<" ">>, Words)), <<"1">>, [global]),
    Texts = lists:sum([byte_size(Text) || #{text := Text} <- Pairs]),
    {count(Words, Counts), Total + Texts + length(lists:usort(Words)) + length(Parts)}.

main([Rounds]) ->
    {Counts, Total} = lists:foldl(fun round_of/2, {#{}, 0}, lists:seq(0, list_to_integer(Rounds) - 1)),
    io:format("~b ~b~n", [map_size(Counts), Total]),
    halt().
