// A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;

static class Leaky
{
    static readonly LinkedList<byte[]> sessions = new LinkedList<byte[]>();
    static object sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static byte[][] build_table()
    {
        var table = new byte[4000][];
        for (int i = 0; i < table.Length; i++)
            table[i] = new byte[1000];
        return table;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static byte[] open_session() { return new byte[100]; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void serve_request() { sink = new byte[400]; }

    static void Main(string[] arguments)
    {
        var table = build_table();
        int requests = Int32.Parse(arguments[0]);
        for (int i = 0; i < requests; i++) {
            serve_request();
            sessions.AddLast(open_session());
        }
        Console.WriteLine(table.Length + sessions.Count);
    }
}
