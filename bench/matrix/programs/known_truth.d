// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
module known_truth;

import core.memory : GC;
import core.stdc.stdlib : exit, getenv;
import core.thread : Thread;
import core.time : msecs;
import std.stdio : readln, stdout, writefln, writeln;

enum rounds = 100_000;
enum cached = 2_000;

class Block(size_t bytes)
{
    ubyte[bytes] content;
}

__gshared Object[cached] cache;
__gshared Object[] leaked;
__gshared Object sink;

pragma(inline, false) Object churnSmall()
{
    auto block = new Block!84;
    block.content[0] = 1; // or it is a tail call
    return block;
}

pragma(inline, false) Object churnLarge()
{
    auto block = new Block!4984;
    block.content[0] = 1; // or it is a tail call
    return block;
}

pragma(inline, false) Object fillCache()
{
    auto block = new Block!884;
    block.content[0] = 1; // or it is a tail call
    return block;
}

pragma(inline, false) Object leakSession()
{
    auto block = new Block!984;
    block.content[0] = 1; // or it is a tail call
    return block;
}

size_t each(size_t bytes)()
{
    return __traits(classInstanceSize, Block!bytes);
}

void main(string[] arguments)
{
    if (arguments.length > 1)
    {
        writeln("ready");
        stdout.flush();
        readln();
    }
    leaked.length = rounds;
    foreach (i; 0 .. rounds)
    {
        foreach (j; 0 .. 10)
            sink = churnSmall();
        if (i % 20 == 0)
            sink = churnLarge();
        cache[i % cached] = fillCache();
        leaked[i] = leakSession();
        // It takes some seconds to tell a leak from a cache that fills.
        if (i % 100 == 0)
            Thread.sleep(3.msecs);
    }
    sink = null;
    GC.collect();
    if (getenv("KNOWN_TRUTH_OWN"))
    {
        writefln(`{"own_live_bytes": %d}`, GC.stats.usedSize);
        stdout.flush();
        exit(7);
    }
    enum site = `"%s": {"bytes": %d, "live_bytes": %d, "line": %d}`;
    writefln(`{"sites": {` ~ site ~ ", " ~ site ~ ", " ~ site ~ ", " ~ site ~ `}, "leak": "leakSession", "cache": "fillCache"}`,
        "churnSmall", each!84 * 10 * rounds, 0, 24, "churnLarge", each!4984 * rounds / 20, 0, 31,
        "fillCache", each!884 * rounds, each!884 * cached, 38, "leakSession", each!984 * rounds, each!984 * rounds, 45);
    stdout.flush();
    // What is kept is alive at the end.
    exit(7);
}
