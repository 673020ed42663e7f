// A cache of 20,000 arrays of 1,016 bytes, filled once, while threads allocate, ask for stacks (a safepoint for all threads), load
// classes, start threads and collect. Prints the process's number once all of them run, and goes on until its input ends.
import java.lang.reflect.Proxy;

public class CollectedUnderLoad {
    static final byte[][] cache = new byte[20000][];
    static volatile Object sink;
    static volatile boolean isOver;

    static byte[] makeEntry() {
        return new byte[1000];
    }

    static void drop() {
        sink = new byte[984];
    }

    static void allocate() throws InterruptedException {
        for (int i = 0; i < 200; i++)
            drop();
        Thread.sleep(1);
    }

    static void stop() {
        sink = Thread.getAllStackTraces();
    }

    static void start() throws InterruptedException {
        Thread thread = new Thread(CollectedUnderLoad::drop);
        thread.start();
        thread.join();
    }

    // A class of its own for every loader.
    static void load() throws Exception {
        ClassLoader loader = new ClassLoader(CollectedUnderLoad.class.getClassLoader()) {};
        sink = Proxy.newProxyInstance(loader, new Class<?>[] {Runnable.class}, (proxy, method, arguments) -> null);
    }

    static void collect() throws InterruptedException {
        Thread.sleep(50);
        System.gc();
    }

    interface Work {
        void run() throws Exception;
    }

    static void begin(Work work) {
        Thread thread = new Thread(() -> {
            try {
                while (!isOver)
                    work.run();
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(3);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < cache.length; i++)
            cache[i] = makeEntry();
        begin(CollectedUnderLoad::allocate);
        begin(CollectedUnderLoad::allocate);
        begin(CollectedUnderLoad::stop);
        begin(CollectedUnderLoad::start);
        begin(CollectedUnderLoad::load);
        begin(CollectedUnderLoad::collect);
        System.out.println(ProcessHandle.current().pid());
        System.in.read();
        isOver = true;
    }
}
