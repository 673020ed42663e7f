import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.Array;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.SynchronousQueue;

/** Allocates what each line of its input asks for, and says `done`: what the JVM's own tests of its sampler allocate. */
public class Monitored {
    static volatile Object sink;
    static volatile boolean isOver;

    /** 24 bytes in all. */
    static class Plain {
        int first, second, third;
    }

    static void arrays(int count, int length) {
        for (int i = 0; i < count; i++) {
            sink = new int[length];
        }
    }

    /** Six objects each time: five rows of 40 bytes (16 and 4 times 5, rounded up), and 40 bytes that hold them. */
    static void nested(int count) {
        for (int i = 0; i < count; i++) {
            sink = new int[5][5];
        }
    }

    static void plain(int count) {
        for (int i = 0; i < count; i++) {
            sink = new Plain();
        }
    }

    /** What the JVM itself allocates on behalf of a library. */
    static void cloned(int count) {
        int[] first = new int[100];
        for (int i = 0; i < count; i++) {
            sink = first.clone();
        }
    }

    static void reflected(int count) {
        for (int i = 0; i < count; i++) {
            sink = Array.newInstance(long.class, 100);
        }
    }

    /** Two sizes in turn, whose sum divides many intervals. */
    static void small() {
        sink = new Object();
    }

    static void medium() {
        sink = new long[4];
    }

    static void turns(int count) {
        for (int i = 0; i < count; i++) {
            medium();
            small();
        }
    }

    static void early(int count) {
        arraysOfPhase(count);
    }

    static void second(int count) {
        arraysOfPhase(count);
    }

    static void third(int count) {
        arraysOfPhase(count);
    }

    static void fourth(int count) {
        arraysOfPhase(count);
    }

    static void arraysOfPhase(int count) {
        for (int i = 0; i < count; i++) {
            sink = new byte[984];
        }
    }

    static void first() {
        sink = new Plain();
    }

    /** Threads that allocate one object each. */
    static void threads(int count) throws InterruptedException {
        Thread[] all = new Thread[count];
        for (int i = 0; i < count; i++) {
            all[i] = new Thread(Monitored::first);
            all[i].start();
        }
        for (Thread thread : all) {
            thread.join();
        }
    }

    static Object deep(int depth) {
        return depth == 0 ? new byte[984] : deep(depth - 1);
    }

    /** Threads that allocate, each at a depth of its own, until they are told to end. */
    static Thread[] begin(int count) {
        Thread[] all = new Thread[count];
        for (int i = 0; i < count; i++) {
            int depth = i;
            all[i] = new Thread(() -> {
                while (!isOver) {
                    sink = deep(depth);
                }
            });
            all[i].setDaemon(true);
            all[i].start();
        }
        return all;
    }

    /** A thread that makes arrays when it is asked to, and stays. */
    static class Worker extends Thread {
        final SynchronousQueue<Integer> asked = new SynchronousQueue<>();
        final SynchronousQueue<Integer> answered = new SynchronousQueue<>();

        Worker(String name) {
            super(name);
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try {
                while (true) {
                    int count = asked.take();
                    arraysOfPhase(count);
                    answered.put(count);
                }
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Map<String, Worker> workers = new HashMap<>();
        Thread[] running = {};
        // The JVM samples from a thread's next buffer on.
        System.gc();
        System.out.println("ready");
        String line;
        while ((line = input.readLine()) != null) {
            String[] words = line.split(" ");
            int count = words.length > 1 ? Integer.parseInt(words[1]) : 0;
            switch (words[0]) {
                case "arrays": arrays(count, Integer.parseInt(words[2])); break;
                case "nested": nested(count); break;
                case "plain": plain(count); break;
                case "cloned": cloned(count); break;
                case "reflected": reflected(count); break;
                case "turns": turns(count); break;
                case "early": early(count); break;
                case "second": second(count); break;
                case "third": third(count); break;
                case "fourth": fourth(count); break;
                case "threads": threads(count); break;
                case "begin": running = begin(count); break;
                case "end":
                    isOver = true;
                    for (Thread thread : running) {
                        thread.join();
                    }
                    break;
                case "worker":
                    Worker worker = workers.computeIfAbsent(words[2], Worker::new);
                    worker.asked.put(count);
                    worker.answered.take();
                    break;
                default: throw new IllegalArgumentException(line);
            }
            System.out.println("done");
        }
    }
}
