// A cache of 20,000 entries, each of which holds an array of 1,016 bytes; an entry that comes in puts the oldest out. Prints the
// process's number once the cache is full, and goes on until its input ends.
import java.util.LinkedHashMap;
import java.util.Map;

public class BoundedCache {
    static final int ENTRIES = 20000;
    static final Map<Integer, byte[]> cache = new LinkedHashMap<>() {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Integer, byte[]> eldest) {
            return size() > ENTRIES;
        }
    };

    static byte[] makeEntry() {
        return new byte[1000];
    }

    public static void main(String[] arguments) throws Exception {
        for (int next = 0;; next++) {
            cache.put(next, makeEntry());
            if (next == 2 * ENTRIES)
                System.out.println(ProcessHandle.current().pid());
            if (next % 200 == 0) {
                Thread.sleep(1);
                if (System.in.available() > 0)
                    return;
            }
        }
    }
}
