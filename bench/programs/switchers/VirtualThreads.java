import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.SynchronousQueue;

/** Virtual threads that allocate and hand each other objects. Usage: VirtualThreads SECONDS. By reflection: an older javac compiles it. */
final class VirtualThreads {
    private static long work(int depth, int seed) {
        if (depth > 0) return work(depth - 1, seed);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 10; i++) text.append("x".repeat(seed + i));
        return text.length();
    }

    public static void main(String[] words) throws Exception {
        Method start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        long finish = System.nanoTime() + Long.parseLong(words[0]) * 1_000_000_000L;
        long rounds = 0;
        for (; System.nanoTime() < finish; rounds++) {
            SynchronousQueue<Long> queue = new SynchronousQueue<>();
            List<Thread> threads = new ArrayList<>();
            for (int number = 0; number < 40; number++) {
                int seed = number;
                Runnable run = () -> {
                    try {
                        for (int turn = 0; turn < 8; turn++) queue.put(work(seed % 20, seed + turn));
                    } catch (InterruptedException e) {
                        throw new AssertionError(e);
                    }
                };
                threads.add((Thread) start.invoke(null, run));
            }
            long total = 0, wanted = 0;
            for (int i = 0; i < 40 * 8; i++) total += queue.take();
            for (int seed = 0; seed < 40; seed++)
                for (int turn = 0; turn < 8; turn++) wanted += 10L * (seed + turn) + 45;
            for (Thread thread : threads) thread.join();
            if (total != wanted) {
                System.out.println("wrong");
                System.exit(1);
            }
        }
        System.out.println("right: " + rounds);
    }
}
