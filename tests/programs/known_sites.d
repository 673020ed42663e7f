// Sites of D whose bytes are known, on as many threads as asked for, while blocks die, are freed, move and grow.
// usage: known_sites ROUNDS THREADS
module known_sites;

import core.memory : GC;
import core.stdc.stdlib : _Exit;
import core.thread : Thread;
import std.conv : to;
import std.stdio : stdout, writef, writeln;

enum noScan = GC.BlkAttr.NO_SCAN;

struct Site
{
    size_t bytes, allocations, live_bytes, live_blocks;
}

// Of each thread, and of all that have ended.
Site[string] mine;
__gshared Site[string] all;
__gshared void*[] kept;

void count(string name, size_t bytes, bool isLive)
{
    auto site = &mine.require(name, Site.init);
    site.bytes += bytes;
    site.allocations++;
    site.live_bytes += isLive ? bytes : 0;
    site.live_blocks += isLive;
}

// Each writes to its block, or the call would be a jump, which leaves no frame.
pragma(inline, false) void* small_dropped()
{
    auto block = GC.malloc(100, noScan);
    *cast(ubyte*) block = 1;
    return block;
}

pragma(inline, false) void* large_dropped()
{
    auto block = GC.calloc(20_000, noScan);
    *cast(ubyte*) block = 1;
    return block;
}

pragma(inline, false) void* kept_by_all()
{
    auto block = GC.malloc(1000, noScan);
    *cast(ubyte*) block = 1;
    return block;
}

pragma(inline, false) void* freed_by_hand()
{
    auto block = GC.malloc(700, noScan);
    *cast(ubyte*) block = 1;
    return block;
}

pragma(inline, false) void* moved(void* block)
{
    block = GC.realloc(block, 3000, noScan);
    *cast(ubyte*) block = 1;
    return block;
}

pragma(inline, false) size_t grown(void* block)
{
    // It may be that there is no room behind it.
    const before = GC.sizeOf(block);
    const after = GC.extend(block, 8192, 8192);
    return after > before ? after - before : 0;
}

pragma(inline, false) void* to_be_grown()
{
    auto block = GC.malloc(16_384, noScan);
    *cast(ubyte*) block = 1;
    return block;
}

void work(size_t rounds)
{
    void*[] own;
    own.reserve(rounds);
    foreach (round; 0 .. rounds)
    {
        foreach (_; 0 .. 20)
        {
            small_dropped();
            count("small_dropped", 100, false);
        }
        if (round % 10 == 0)
        {
            large_dropped();
            count("large_dropped", 20_000, false);
        }
        own ~= kept_by_all();
        count("kept_by_all", 1000, true);
        auto block = freed_by_hand();
        count("freed_by_hand", 700, false);
        block = moved(block);
        count("moved", 3000, false);
        GC.free(block);
        if (round % 10 == 5)
        {
            block = to_be_grown();
            count("to_be_grown", 16_384, false);
            const more = grown(block);
            if (more > 0)
                count("grown", more, false);
            GC.free(block);
        }
    }
    synchronized
    {
        kept ~= own;
        foreach (name, site; mine)
        {
            auto sum = &all.require(name, Site.init);
            static foreach (i; 0 .. Site.tupleof.length)
                sum.tupleof[i] += site.tupleof[i];
        }
    }
}

void main(string[] arguments)
{
    const rounds = arguments[1].to!size_t;
    Thread[] threads;
    foreach (_; 0 .. arguments[2].to!size_t)
        threads ~= new Thread(() => work(rounds)).start();
    foreach (thread; threads)
        thread.join();
    GC.collect();
    writef(`{`);
    bool isFirst = true;
    foreach (name, site; all)
    {
        writef(`%s"%s": {"bytes": %d, "allocations": %d, "live_bytes": %d, "live_blocks": %d}`, isFirst ? "" : ", ", name,
            site.bytes, site.allocations, site.live_bytes, site.live_blocks);
        isFirst = false;
    }
    writeln(`}`);
    stdout.flush();
    // What is kept is alive at the end.
    _Exit(0);
}
