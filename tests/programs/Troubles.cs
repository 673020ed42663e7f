// Threads that allocate while others collect, finalizers that bring objects back, domains that are unloaded, code made at
// run time, exceptions, and a child process.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq.Expressions;
using System.Runtime.CompilerServices;
using System.Threading;

class Risen
{
    public static int Count;
    public byte[] Data = new byte[300];
    ~Risen() { Interlocked.Increment(ref Count); new List<int>(new int[50]); }
}

public class Guest : MarshalByRefObject
{
    public int Work(int count)
    {
        int sum = 0;
        for (int i = 0; i < count; i++)
            sum += new string('x', i % 100).Length;
        return sum;
    }
}

static class Troubles
{
    static int Throws(int depth)
    {
        if (depth == 0)
            throw new InvalidOperationException("deep" + new string('e', 500));
        return Throws(depth - 1) + 1;
    }

    static void Main()
    {
        var threads = new List<Thread>();
        long total = 0;
        for (int t = 0; t < 6; t++) {
            int number = t;
            var thread = new Thread(() => {
                var local = new Dictionary<int, string>();
                for (int i = 0; i < 20000; i++) {
                    local[i % 500] = number + " " + i;
                    if (i % 100 == 0)
                        new Risen();
                    if (i % 2000 == 0)
                        GC.Collect(i % 4000 == 0 ? 1 : 0);
                }
                Interlocked.Add(ref total, local.Count);
            });
            threads.Add(thread);
            thread.Start();
        }
        foreach (var thread in threads)
            thread.Join();
        int caught = 0;
        for (int i = 0; i < 200; i++) {
            try {
                Throws(30);
            } catch (InvalidOperationException error) {
                caught += error.StackTrace.Length > 0 ? 1 : 0;
            }
        }
        int guests = 0;
        for (int i = 0; i < 3; i++) {
            var domain = AppDomain.CreateDomain("guest " + i);
            var guest = (Guest)domain.CreateInstanceAndUnwrap(typeof(Guest).Assembly.FullName, "Guest");
            guests += guest.Work(20000);
            AppDomain.Unload(domain);
        }
        int made = 0;
        for (int i = 0; i < 50; i++) {
            var x = Expression.Parameter(typeof(int), "x");
            Expression<Func<int, int[]>> body =
                Expression.Lambda<Func<int, int[]>>(Expression.NewArrayBounds(typeof(int), x), x);
            var function = body.Compile();
            for (int k = 0; k < 100; k++)
                made += function(k).Length;
        }
        var child = Process.Start(new ProcessStartInfo("/bin/echo", "a child") {
            UseShellExecute = false, RedirectStandardOutput = true });
        Console.WriteLine(child.StandardOutput.ReadToEnd().Trim());
        child.WaitForExit();
        GC.Collect();
        GC.WaitForPendingFinalizers();
        Console.WriteLine("{0} {1} {2} {3} {4}", total, caught, guests, made, Risen.Count > 1000);
        Environment.Exit(3);
    }
}
