// Prints `ready`, then for each number that it is told: so many blocks of 3,000 bytes, and how many bytes but one each; ends at `end`.
// usage: attached [THREADS], which allocate and collect without a pause meanwhile
module attached;

import core.atomic : atomicLoad, atomicOp;
import core.memory : GC;
import core.stdc.stdlib : exit;
import core.thread : Thread;
import std.conv : to;
import std.stdio : readln, stdout, writeln;
import std.string : startsWith, strip;

enum noScan = GC.BlkAttr.NO_SCAN;

__gshared void* sink;
shared ulong rounds;

pragma(inline, false) size_t grow()
{
    auto block = GC.malloc(3000, noScan);
    *cast(ubyte*) block = 1; // or it is a tail call
    sink = block;
    return 2999;
}

pragma(inline, false) size_t work(size_t count)
{
    size_t sum;
    foreach (_; 0 .. count)
        sum += grow();
    return sum;
}

// Blocks that hold a pattern: whoever takes one for dead gives its memory to another.
pragma(inline, false) void busy(size_t seed)
{
    ulong[][64] kept;
    for (size_t i = seed;; i++)
    {
        auto array = new ulong[](8 + i % 500);
        array[] = i;
        array ~= i;
        kept[i % kept.length] = array;
        auto other = kept[i * 7 % kept.length];
        foreach (number; other)
            if (number != other[0])
                exit(9);
        auto moved = GC.realloc(GC.malloc(100, noScan), 5000, noScan);
        GC.free(moved);
        if (i % 1000 == 0)
            GC.collect();
        rounds.atomicOp!"+="(1);
    }
}

void start(size_t seed)
{
    auto thread = new Thread(() => busy(seed));
    thread.isDaemon = true;
    thread.start();
}

void main(string[] arguments)
{
    foreach (i; 0 .. arguments.length > 1 ? arguments[1].to!size_t : 0)
        start(i);
    writeln("ready");
    stdout.flush();
    for (string line; (line = readln()) !is null && !line.startsWith("end");)
    {
        writeln(line.startsWith("rounds") ? rounds.atomicLoad : work(line.strip.to!size_t));
        stdout.flush();
    }
    exit(3);
}
