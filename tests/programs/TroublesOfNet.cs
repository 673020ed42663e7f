// Threads that allocate while others collect, finalizers that bring objects back, large objects, code that is made and
// collected, exceptions, and a child process that sees the environment of its parent.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq.Expressions;
using System.Reflection;
using System.Reflection.Emit;
using System.Threading;

class Risen
{
    public static int Count;
    public static Risen Last;
    public byte[] Data = new byte[300];
    ~Risen() { Interlocked.Increment(ref Count); Last = this; }
}

static class TroublesOfNet
{
    static int Throws(int depth)
    {
        if (depth == 0)
            throw new InvalidOperationException("deep" + new string('e', 500));
        return Throws(depth - 1) + 1;
    }

    // A type of an assembly that goes when nothing refers to it.
    static int Collectible(int number)
    {
        var name = new AssemblyName("made" + number);
        var assembly = AssemblyBuilder.DefineDynamicAssembly(name, AssemblyBuilderAccess.RunAndCollect);
        var type = assembly.DefineDynamicModule("made").DefineType("Made" + number, TypeAttributes.Public);
        type.DefineField("a", typeof(long), FieldAttributes.Public);
        var method = type.DefineMethod("Make", MethodAttributes.Public | MethodAttributes.Static, typeof(object), new[] { typeof(int) });
        var code = method.GetILGenerator();
        code.Emit(OpCodes.Ldarg_0);
        code.Emit(OpCodes.Newarr, typeof(long));
        code.Emit(OpCodes.Ret);
        var made = type.CreateType();
        var make = made.GetMethod("Make");
        int sum = 0;
        for (int i = 0; i < 50; i++) {
            sum += ((long[])make.Invoke(null, new object[] { i })).Length;
            sum += Activator.CreateInstance(made) == null ? 0 : 1;
        }
        return sum;
    }

    static void Main()
    {
        var threads = new List<Thread>();
        long total = 0;
        for (int t = 0; t < 6; t++) {
            int number = t;
            var thread = new Thread(() => {
                var local = new Dictionary<int, object>();
                for (int i = 0; i < 20000; i++) {
                    local[i % 500] = number + " " + i;
                    if (i % 100 == 0)
                        new Risen();
                    if (i % 500 == 0)
                        local[-1] = new byte[100000 + i];
                    if (i % 2000 == 0)
                        GC.Collect(i % 4000 == 0 ? 2 : 0, GCCollectionMode.Default, i % 8000 != 0);
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
        int made = 0;
        for (int i = 0; i < 50; i++) {
            var x = Expression.Parameter(typeof(int), "x");
            Expression<Func<int, int[]>> body =
                Expression.Lambda<Func<int, int[]>>(Expression.NewArrayBounds(typeof(int), x), x);
            var function = body.Compile();
            for (int k = 0; k < 100; k++)
                made += function(k).Length;
        }
        for (int i = 0; i < 30; i++) {
            made += Collectible(i);
            if (i % 5 == 0)
                GC.Collect();
        }
        var child = Process.Start(new ProcessStartInfo("/bin/sh", "-c \"env | grep CORECLR; echo a child\"") {
            UseShellExecute = false, RedirectStandardOutput = true });
        Console.WriteLine(child.StandardOutput.ReadToEnd().Trim());
        child.WaitForExit();
        GC.Collect();
        GC.WaitForPendingFinalizers();
        Console.WriteLine("{0} {1} {2} {3} {4}", total, caught, made, Risen.Count > 1000,
                          Environment.GetEnvironmentVariable("CORECLR_PROFILER") == null);
        Environment.Exit(3);
    }
}
