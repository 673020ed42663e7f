// Holds 64 MiB in small objects, lets three quarters of them go, and collects, three times: the runtime keeps most of that memory.
using System;

static class KeptHeap
{
    static byte[][] held = new byte[65536][];

    static int Main()
    {
        for (int round = 0; round < 3; round++)
        {
            for (int i = 0; i < held.Length; i++)
                held[i] = new byte[1000];
            for (int i = 0; i < held.Length; i++)
                if (i % 4 != 0)
                    held[i] = null;
            // Objects do not move, so what is left lies everywhere.
            GC.Collect(2, GCCollectionMode.Forced, true, false);
        }
        GC.KeepAlive(held);
        return 0;
    }
}
