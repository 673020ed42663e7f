import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Allocates in the main thread, and prints how many bytes the JVM has counted for it meanwhile. */
class Counted {
    public static void main(String[] arguments) {
        var threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        long id = Thread.currentThread().getId();
        long before = threads.getThreadAllocatedBytes(id);
        long sum = work();
        long bytes = threads.getThreadAllocatedBytes(id) - before;
        System.out.println(sum == 0 ? -1 : bytes);
    }

    static long work() {
        long sum = 0;
        for (int round = 0; round < 40; round++) {
            Map<String, List<int[]>> table = new HashMap<>();
            for (int i = 0; i < 5000; i++) {
                List<int[]> list = new ArrayList<>();
                list.add(new int[i % 300]);
                table.put("key " + i, list);
            }
            sum += table.size() + new byte[3_000_000].length;
        }
        return sum;
    }
}
