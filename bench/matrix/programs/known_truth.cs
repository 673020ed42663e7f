// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
//
// It is a program, and a startup hook for a program that has its runtime in it. An array of n bytes takes n + 24, rounded up
// to 8.
using System;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

class StartupHook
{
    public static void Initialize() { KnownTruth.Main(Environment.GetCommandLineArgs()); }
}

static class KnownTruth
{
    const int Rounds = 100000;
    const int Cached = 2000;
    static readonly byte[][] cache = new byte[Cached][];
    static readonly byte[][] leaked = new byte[Rounds][];
    static object sink;

    static int Line([CallerLineNumber] int line = 0) { return line; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object ChurnSmall() { return new byte[776]; } static readonly int lineChurnSmall = Line();

    [MethodImpl(MethodImplOptions.NoInlining)]
    static object ChurnLarge() { return new byte[4976]; } static readonly int lineChurnLarge = Line();

    [MethodImpl(MethodImplOptions.NoInlining)]
    static byte[] FillCache() { return new byte[872]; } static readonly int lineFillCache = Line();

    [MethodImpl(MethodImplOptions.NoInlining)]
    static byte[] LeakSession() { return new byte[976]; } static readonly int lineLeakSession = Line();

    static string Site(string name, int line, long each, long count, long live)
    {
        // Without its PDB the program has no lines.
        bool hasLines = File.Exists(Path.ChangeExtension(typeof(KnownTruth).Assembly.Location, ".pdb"));
        return String.Format("\"{0}\": {{\"bytes\": {1}, \"live_bytes\": {2}, \"type\": \"System.Byte[]\"{3}}}",
                             name, each * count, each * live, hasLines ? ", \"line\": " + line : "");
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Work()
    {
        for (int i = 0; i < Rounds; i++) {
            sink = ChurnSmall();
            if (i % 20 == 0)
                sink = ChurnLarge();
            cache[i % Cached] = FillCache();
            leaked[i] = LeakSession();
            if (i % 10000 == 0)
                GC.Collect();
            // It takes some seconds to tell a leak from a cache that fills.
            if (i % 100 == 0)
                Thread.Sleep(3);
        }
        sink = null;
    }

    public static void Main(string[] arguments)
    {
        if (Array.IndexOf(arguments, "wait") >= 0) {
            Console.WriteLine("ready");
            Console.ReadLine();
        }
        Work();
        GC.Collect();
        GC.Collect();
        if (Environment.GetEnvironmentVariable("KNOWN_TRUTH_OWN") != null)
            Console.WriteLine("{\"own_live_bytes\": " + GC.GetTotalMemory(false) + "}");
        else
            Console.WriteLine("{\"sites\": {" + String.Join(", ", new[] {
                Site("ChurnSmall", lineChurnSmall, 800, Rounds, 0),
                Site("ChurnLarge", lineChurnLarge, 5000, Rounds / 20, 0),
                Site("FillCache", lineFillCache, 896, Rounds, Cached),
                Site("LeakSession", lineLeakSession, 1000, Rounds, Rounds) })
                + "}, \"leak\": \"LeakSession\", \"cache\": \"FillCache\"}");
        GC.KeepAlive(cache);
        GC.KeepAlive(leaked);
        Environment.Exit(7);
    }
}
