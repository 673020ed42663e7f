// Three methods that allocate the same, with a line on standard input before each of the last two. Prints its process number
// before it reads.
//
// On .NET an array of 976 bytes takes 1,000.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Threading;

static class SteeredSites
{
    static volatile object sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void First(int count)
    {
        for (int i = 0; i < count; i++)
            sink = new byte[976];
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Second(int count)
    {
        for (int i = 0; i < count; i++)
            sink = new byte[976];
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Third(int count)
    {
        for (int i = 0; i < count; i++)
            sink = new byte[976];
    }

    static void Wait()
    {
        Console.WriteLine(Process.GetCurrentProcess().Id);
        Console.ReadLine();
    }

    static void Main(string[] arguments)
    {
        int count = Int32.Parse(arguments[0]);
        First(count);
        Wait();
        Second(count / 2);
        var thread = new Thread(() => Second(count / 2));
        thread.Start();
        thread.Join();
        Wait();
        Third(count);
    }
}
