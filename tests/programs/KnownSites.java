import java.util.ArrayList;
import java.util.List;

/** Allocates known numbers of bytes in methods of known names, and prints the truth as JSON. */
public class KnownSites {
    static final List<byte[]> kept = new ArrayList<>();
    static final StringBuilder truth = new StringBuilder("{");
    static volatile Object sink;

    static void smallFreed(int count) {
        for (int i = 0; i < count; i++) {
            sink = new byte[100];
        }
    }

    static byte[] smallKept() {
        return new byte[200];
    }

    static void largeFreed(int count) {
        for (int i = 0; i < count; i++) {
            sink = new byte[100_000];
        }
    }

    static void ofAThread(int count) {
        for (int i = 0; i < count; i++) {
            sink = new long[30];
        }
    }

    /** An array has a header of 16 bytes, and is rounded up to 8. */
    static void tell(String name, long count, long content, boolean isKept) {
        long bytes = count * ((content + 16 + 7) / 8 * 8);
        truth.append(truth.length() > 1 ? "," : "").append(String.format(
            "\"%s\":{\"bytes\":%d,\"allocations\":%d,\"live_bytes\":%d,\"live_blocks\":%d}",
            "KnownSites." + name, bytes, count, isKept ? bytes : 0, isKept ? count : 0));
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        smallFreed(count);
        tell("smallFreed", count, 100, false);
        for (int i = 0; i < count / 4; i++) {
            kept.add(smallKept());
        }
        tell("smallKept", count / 4, 200, true);
        largeFreed(count / 100);
        tell("largeFreed", count / 100, 100_000, false);
        Thread thread = new Thread(() -> ofAThread(count / 2), "array-maker");
        thread.start();
        thread.join();
        tell("ofAThread", count / 2, 240, false);
        sink = null;
        // Some collectors tell of the dead one or two collections late.
        for (int i = 0; i < 6; i++) {
            System.gc();
            Thread.sleep(100);
        }
        System.out.println(truth.append("}"));
    }
}
