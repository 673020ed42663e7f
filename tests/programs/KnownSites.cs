// Allocates known numbers of bytes in methods of known names, and prints the truth as JSON.
//
// An object has a header of 16 bytes, an array one of 32 on Mono and of 24 on .NET; all is rounded up to 8.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;

class Node
{
    public long A, B, C, D;
}

static class KnownSites
{
    static readonly List<object> kept = new List<object>();
    static readonly List<string> truth = new List<string>();
    static readonly long header = Type.GetType("Mono.Runtime") != null ? 32 : 24;
    static object sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object SmallFreed() { return new byte[100]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object SmallKept() { return new Node(); }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object LargeFreed() { return new byte[100000]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object MiddleKept() { return new int[500]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object OfAThread() { return new long[30]; }

    static void Site(string name, Func<object> allocate, int count, long size, bool isKept)
    {
        // A thread of its own leaves no reference on the stack that collections look at.
        var thread = new Thread(() => {
            for (int i = 0; i < count; i++) {
                var block = allocate();
                if (isKept)
                    kept.Add(block);
                else
                    sink = block;
            }
            sink = null;
        });
        thread.Start();
        thread.Join();
        long bytes = count * ((size + 7) / 8 * 8);
        truth.Add(String.Format(
            "\"KnownSites.{0}\":{{\"bytes\":{1},\"allocations\":{2},\"live_bytes\":{3},\"live_blocks\":{4}}}",
            name, bytes, count, isKept ? bytes : 0, isKept ? count : 0));
    }

    static void Main(string[] arguments)
    {
        int times = Int32.Parse(arguments[0]);
        Site("SmallFreed", SmallFreed, 100000 * times, header + 100, false);
        Site("SmallKept", SmallKept, 50000 * times, 16 + 32, true);
        Site("LargeFreed", LargeFreed, 200 * times, header + 100000, false);
        Site("MiddleKept", MiddleKept, 2000 * times, header + 2000, true);
        Site("OfAThread", OfAThread, 50000 * times, header + 240, false);
        for (int i = 0; i < 3; i++)
            GC.Collect();
        Console.WriteLine("{" + String.Join(",", truth) + "}");
        GC.KeepAlive(kept);
    }
}
