// Text and collections in D: words counted, sorted, joined and split. No random, no clock.
import std.algorithm : count, map, sort, sum, uniq;
import std.array : array, join, replicate, split;
import std.conv : to;
import std.range : iota, zip;
import std.stdio : writeln;

struct Pair
{
    string key, value, text;
}

string[] makeWords(size_t turn)
{
    return iota(4000).map!(i => "word" ~ to!string((i * 7919 + turn) % 1009)).array;
}

size_t roundOf(size_t turn, ref size_t[string] counts)
{
    auto words = makeWords(turn);
    foreach (word; words)
        counts[word]++;
    auto pairs = zip(words[0 .. 300], words[300 .. 600]).map!(it => Pair(it[0], it[1], replicate(it[0] ~ it[1], 12))).array;
    auto parts = split(join(words, " "), "1");
    return pairs.map!(pair => pair.text.length).sum + words.dup.sort.uniq.count + parts.length;
}

void main(string[] arguments)
{
    size_t[string] counts;
    size_t total;
    foreach (turn; 0 .. to!size_t(arguments[1]))
        total += roundOf(turn, counts);
    writeln(counts.length, " ", total);
}
