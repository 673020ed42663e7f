// Allocates what it is told to, a line each, until its input ends: `early`, `mix BYTES`, `keep COUNT`, `threads COUNT`. Answers
// what it has done, and ends with 3.
//
// On .NET an array of n bytes takes n + 24, rounded up to 8, and an object a header of 16. The sizes of a mix are random, so that
// nothing is in step with what the runtime reports.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;

class Kept
{
    public long A, B, C, D;
}

static class AttachedNet
{
    static readonly List<object> kept = new List<object>();
    static volatile object sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Early(int length) { sink = new byte[length]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Small(int length) { sink = new byte[length]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Middle(int length) { sink = new byte[length]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Large(int length) { sink = new byte[length]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object Keep() { return new Kept(); }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void OfThreads(int length) { sink = new byte[length]; }

    // About as many bytes of each.
    static string Mix(long bytes)
    {
        var random = new Random(7);
        long small = 0, middle = 0, large = 0;
        while (small + middle + large < bytes) {
            int draw = random.Next(1000);
            if (draw < 960) {
                int length = random.Next(1, 400);
                Small(length);
                small += (length + 31) / 8 * 8;
            } else if (draw < 998) {
                int length = random.Next(2000, 8000);
                Middle(length);
                middle += (length + 31) / 8 * 8;
            } else {
                int length = random.Next(90000, 130000);
                Large(length);
                large += (length + 31) / 8 * 8;
            }
        }
        return small + " " + middle + " " + large;
    }

    static string Threads(int count)
    {
        var threads = new List<Thread>();
        long done = 0;
        for (int t = 0; t < 4; t++) {
            int number = t;
            var thread = new Thread(() => {
                var held = new Dictionary<int, object>();
                for (int i = 0; i < count; i++) {
                    OfThreads(i % 3000);
                    held[i % 100] = number + " " + i;
                    if (i % 200 == 0)
                        held[-1] = new byte[100000 + i];
                    if (i % 1000 == number)
                        GC.Collect(i % 2000 == number ? 2 : 0, GCCollectionMode.Default, i % 4000 != number);
                }
                Interlocked.Add(ref done, held.Count);
            });
            threads.Add(thread);
            thread.Start();
        }
        foreach (var thread in threads)
            thread.Join();
        return done.ToString();
    }

    static string Do(string[] words)
    {
        switch (words[0]) {
        case "early":
            for (int i = 0; i < 20000; i++)
                Early(1000);
            return "early";
        case "mix":
            return Mix(Int64.Parse(words[1]));
        case "keep":
            kept.Clear();
            for (int i = Int32.Parse(words[1]); i > 0; i--)
                kept.Add(Keep());
            GC.Collect();
            return "kept";
        case "threads":
            return Threads(Int32.Parse(words[1]));
        case "version":
            return Environment.Version.Major.ToString();
        }
        return "?";
    }

    static void Main()
    {
        Console.WriteLine("ready");
        for (string line; (line = Console.ReadLine()) != null;)
            Console.WriteLine(Do(line.Split(' ')));
        GC.KeepAlive(kept);
        Environment.Exit(3);
    }
}
