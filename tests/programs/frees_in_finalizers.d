// Finalizers free other blocks, which druntime ignores, after blocks have grown in place.
module frees_in_finalizers;

import core.memory : GC;
import std.stdio : writeln;

enum noScan = GC.BlkAttr.NO_SCAN;

__gshared int finalized;

class Owner
{
    void* block;

    this()
    {
        block = GC.malloc(5000, noScan);
    }

    ~this()
    {
        GC.free(block);
        finalized++;
    }
}

void main()
{
    foreach (_; 0 .. 200)
    {
        auto block = GC.malloc(16_384, noScan);
        GC.extend(block, 8192, 8192);
        GC.free(block);
    }
    foreach (_; 0 .. 20_000)
        new Owner;
    GC.collect();
    writeln(finalized > 10_000);
}
