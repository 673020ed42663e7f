// Collects, and prints how often: minor collections alone, then major ones.
using System;

static class Collections
{
    static object sink;

    static void Main()
    {
        for (int i = 0; i < 10; i++) {
            sink = new byte[1000000];
            GC.Collect(0);
        }
        for (int i = 0; i < 5; i++)
            GC.Collect();
        int minor = GC.CollectionCount(0), major = GC.CollectionCount(1);
        Console.WriteLine(minor);
        Console.WriteLine(major);
    }
}
