// Replaces the entries of a full table, which outlive the young collections, until Mono has begun three collections that mark while
// the program runs.
using System;

static class ConcurrentMarking
{
    static readonly byte[][] table = new byte[2000][];

    static void Main()
    {
        long count = 0;
        while (GC.CollectionCount(1) < 3) {
            for (int i = 0; i < table.Length; i++)
                table[i] = new byte[600];
            count += table.Length;
        }
        GC.KeepAlive(table);
        Console.WriteLine(count > 0);
    }
}
