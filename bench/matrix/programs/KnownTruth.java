// Two churn sites, one of large arrays, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
//
// An array of n bytes takes n + 16, or n + 12 with compact headers, rounded up to 8: n is divisible by 8, so that both are equal.
// The size of an instance depends on the JVM, which is asked for it. A large array takes more than the interval between samples,
// where a JVM that draws the next sample from anywhere but the end of the last one is wrong.
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import javax.management.ObjectName;

public class KnownTruth {
    static final int ROUNDS = 100_000;
    static final int CACHED = 2_000;
    static final int CHURNED_ROUNDS = 20;
    static final int LARGE_ROUNDS = 50;
    static final byte[][] cache = new byte[CACHED][];
    static final Session[] sessions = new Session[ROUNDS];
    static volatile Object sink;

    static class Session {
        long a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9;
        long c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, d0, d1, d2, d3, d4, d5, d6, d7, d8, d9;
        long e0, e1, e2, e3, e4, e5, e6, e7, e8, e9, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9;
        long g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9;
        long i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, j0, j1, j2, j3, j4, j5, j6, j7, j8, j9;
        long k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, l0, l1, l2, l3, l4, l5, l6, l7, l8, l9;
    }

    static Object churnSmall() { return new char[392]; } static final int CHURN_SMALL_LINE = line();

    static Object churnMedium() { return new long[623]; } static final int CHURN_MEDIUM_LINE = line();

    static Object churnLarge() { return new byte[19_984]; } static final int CHURN_LARGE_LINE = line();

    static byte[] fillCache() { return new byte[880]; } static final int FILL_CACHE_LINE = line();

    static Session openSession() { return new Session(); } static final int OPEN_SESSION_LINE = line();

    static int line() {
        return new Throwable().getStackTrace()[1].getLineNumber();
    }

    static String site(String name, int line, String type, long each, long count, long live) {
        return String.format("\"%s\": {\"bytes\": %d, \"live_bytes\": %d, \"line\": %d, \"type\": \"%s\"}",
                             name, each * count, each * live, line, type);
    }

    static void work() throws InterruptedException {
        for (int i = 0; i < ROUNDS; i++) {
            sink = churnSmall();
            if (i % CHURNED_ROUNDS == 0)
                sink = churnMedium();
            if (i % LARGE_ROUNDS == 0)
                sink = churnLarge();
            cache[i % CACHED] = fillCache();
            sessions[i] = openSession();
            if (i % 10_000 == 0)
                System.gc();
            // It takes some seconds to tell a leak from a cache that fills.
            if (i % 100 == 0)
                Thread.sleep(3);
        }
        sink = null;
    }

    /** By the JVM's count of what this thread has allocated, of which an instance is more than its share of anything else. */
    static long bytesOfSession() {
        com.sun.management.ThreadMXBean threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        long thread = Thread.currentThread().getId(), least = Long.MAX_VALUE;
        for (int i = 0; i < 20; i++) {
            long before = threads.getThreadAllocatedBytes(thread);
            sink = new Session();
            least = Math.min(least, threads.getThreadAllocatedBytes(thread) - before);
        }
        return least;
    }

    /** The sum of a class histogram, for which the JVM collects. What the collector counts as used has gaps between objects. */
    static long liveBytes() throws Exception {
        ObjectName commands = new ObjectName("com.sun.management:type=DiagnosticCommand");
        Object[] options = {new String[0]};
        String[] signature = {String[].class.getName()};
        String histogram = (String) ManagementFactory.getPlatformMBeanServer().invoke(commands, "gcClassHistogram", options, signature);
        String total = histogram.substring(histogram.lastIndexOf("Total")).trim();
        return Long.parseLong(total.split("\\s+")[2]);
    }

    public static void main(String[] arguments) throws Exception {
        long session = bytesOfSession();
        if (Arrays.asList(arguments).contains("wait")) {
            System.out.println("ready");
            System.in.read();
        }
        // The main thread gets another allocation buffer: its old one has no sample point after an attach.
        System.gc();
        work();
        // Some collectors find the last dead objects one or two collections late.
        for (int i = 0; i < 4; i++) {
            System.gc();
            Thread.sleep(100);
        }
        if (System.getenv("KNOWN_TRUTH_OWN") != null)
            System.out.printf("{\"own_live_bytes\": %d}%n", liveBytes());
        else
            System.out.println("{\"sites\": {" + String.join(", ",
                site("churnSmall", CHURN_SMALL_LINE, "char[]", 800, ROUNDS, 0),
                site("churnMedium", CHURN_MEDIUM_LINE, "long[]", 5_000, ROUNDS / CHURNED_ROUNDS, 0),
                site("churnLarge", CHURN_LARGE_LINE, "byte[]", 20_000, ROUNDS / LARGE_ROUNDS, 0),
                site("fillCache", FILL_CACHE_LINE, "byte[]", 896, ROUNDS, CACHED),
                site("openSession", OPEN_SESSION_LINE, "KnownTruth$Session", session, ROUNDS, ROUNDS))
                + "}, \"leak\": \"openSession\", \"cache\": \"fillCache\"}");
        System.exit(7);
    }
}
