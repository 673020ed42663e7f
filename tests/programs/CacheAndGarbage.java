// A cache of 20,000 entries, each of which holds an array of 1,016 bytes; an entry that comes in puts the oldest out. Beside it twenty
// times as much that is dropped at once. Ends without a word after so many entries, with the cache full; with a second argument only
// after a full collection and so many more arrays that are dropped.
import java.util.ArrayDeque;

public class CacheAndGarbage {
    static final int ENTRIES = 20000;
    static final ArrayDeque<byte[]> cache = new ArrayDeque<>();
    static volatile Object dropped;

    static byte[] makeEntry() {
        return new byte[1000];
    }

    static void makeGarbage(int count) {
        for (int i = 0; i < count; i++)
            dropped = new byte[1000];
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        for (int i = 0; i < count; i++) {
            cache.addLast(makeEntry());
            if (cache.size() > ENTRIES)
                cache.removeFirst();
            makeGarbage(20);
        }
        if (arguments.length > 1) {
            System.gc();
            makeGarbage(Integer.parseInt(arguments[1]));
        }
        System.out.println(cache.size());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
