/** Starts threads, one after another, that allocate less than an interval or a few of them, and prints the truth as JSON. */
public class ShortThreads {
    static final StringBuilder truth = new StringBuilder("{");
    static volatile Object sink;

    static void few() {
        for (int i = 0; i < 20; i++) {
            sink = new byte[1000];
        }
    }

    static void some() {
        for (int i = 0; i < 60; i++) {
            sink = new byte[1000];
        }
    }

    static void many() {
        for (int i = 0; i < 200; i++) {
            sink = new byte[1000];
        }
    }

    static void start(String name, int threads, int arrays, Runnable body) throws InterruptedException {
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(body);
            thread.start();
            thread.join();
        }
        long count = (long) threads * arrays;
        truth.append(truth.length() > 1 ? "," : "").append(String.format(
            "\"ShortThreads.%s\":{\"bytes\":%d,\"allocations\":%d,\"live_bytes\":0,\"live_blocks\":0}", name, 1016 * count, count));
    }

    public static void main(String[] arguments) throws InterruptedException {
        int threads = Integer.parseInt(arguments[0]);
        start("few", threads * 4, 20, ShortThreads::few);
        start("some", threads * 2, 60, ShortThreads::some);
        start("many", threads, 200, ShortThreads::many);
        System.out.println(truth.append("}"));
    }
}
