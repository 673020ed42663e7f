import java.io.IOException;

/** Three methods that allocate the same, with a line on standard input before each of the last two. Prints its process number
 * before it reads. */
public class SteeredSites {
    static volatile Object sink;

    static void first(int count) {
        for (int i = 0; i < count; i++) {
            sink = new byte[984];
        }
    }

    static void second(int count) {
        for (int i = 0; i < count; i++) {
            sink = new byte[984];
        }
    }

    static void third(int count) {
        for (int i = 0; i < count; i++) {
            sink = new byte[984];
        }
    }

    static void await() throws IOException {
        System.out.println(ProcessHandle.current().pid());
        while (System.in.read() != '\n') { }
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        first(count);
        await();
        second(count / 2);
        Thread thread = new Thread(() -> second(count / 2));
        thread.start();
        thread.join();
        await();
        third(count);
    }
}
