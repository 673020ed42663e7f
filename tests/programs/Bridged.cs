// Objects of a class that Mono asks another collector for (--gc-debug=bridge=Bridged): every fourth is kept.
using System;
using System.Collections.Generic;

// Mono's own other collector wants the field.
class Bridged
{
    public int __test;
    public byte[] data = new byte[1000];

    ~Bridged() { }
}

static class Program
{
    static readonly List<Bridged> kept = new List<Bridged>();

    static void Main()
    {
        // In the last rounds nothing is made: those of which the other collector was asked go a few with each.
        for (int round = 0; round < 12; round++) {
            for (int i = 0; i < 3200 && round < 4; i++) {
                var made = new Bridged();
                if (i % 4 == 0)
                    kept.Add(made);
            }
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        Console.WriteLine(kept.Count);
    }
}
