// 20,000 arrays of 1,016 bytes that are dropped, and then a cache of 5,000. Prints the process's number, and does nothing until its input
// ends: no thread of it runs Java code or allocates meanwhile.
public class Idle {
    static final byte[][] cache = new byte[5000][];
    static volatile Object sink;

    static byte[] makeEntry() {
        return new byte[1000];
    }

    static void drop() {
        sink = new byte[1000];
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < 20000; i++)
            drop();
        for (int i = 0; i < cache.length; i++)
            cache[i] = makeEntry();
        sink = null;
        System.out.println(ProcessHandle.current().pid());
        System.in.read();
    }
}
