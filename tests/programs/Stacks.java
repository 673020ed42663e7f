import java.io.InputStream;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Allocates under stacks that are hard to walk, of the kind that is named. */
public class Stacks {
    public static volatile Object sink;

    interface Shape {
        Object make(int size);
    }

    static class Base {
        int make() {
            sink = new int[50];
            return 1;
        }
    }

    static class Late extends Base {
        @Override
        int make() {
            sink = new long[20];
            return 2;
        }
    }

    static int deep(int calls) {
        sink = new int[calls];
        return calls == 0 ? 0 : deep(calls - 1) + 1;
    }

    static synchronized int throughShape(Shape shape, int size, int calls) {
        if (calls > 0) {
            return throughShape(shape, size, calls - 1);
        }
        sink = shape.make(size);
        try {
            if (size % 16 == 0) {
                throw new IllegalStateException("size " + size);
            }
        } catch (IllegalStateException exception) {
            sink = exception;
        }
        return 1;
    }

    /** Types that come late undo what was compiled for those before. */
    static int shapes() {
        Shape[] all = {size -> new byte[size], size -> new int[size], size -> new String[size], size -> new ArrayList<>(size)};
        int sum = 0;
        for (int round = 0; round < 20; round++) {
            Shape[] some = Arrays.copyOf(all, 1 + round % all.length);
            for (int i = 0; i < 20_000; i++) {
                sum += throughShape(some[i % some.length], 16 + i % 40, 8);
            }
        }
        return sum;
    }

    static Base base = new Base();

    static int overBase(int calls, boolean isLast) throws ReflectiveOperationException {
        if (calls > 0) {
            return overBase(calls - 1, isLast) + 1;
        }
        int made = base.make();
        if (isLast) {
            // The frames below were compiled as if this class could not come.
            base = (Base) Class.forName("Stacks$Late").getDeclaredConstructor().newInstance();
            for (int i = 0; i < 20_000; i++) {
                sink = new byte[100];
            }
        }
        return made;
    }

    static int undone() throws ReflectiveOperationException {
        int sum = 0;
        for (int i = 0; i <= 200_000; i++) {
            sum += overBase(20, i == 200_000);
        }
        return sum;
    }

    /** Is loaded many times, and unloaded. */
    public static class Fleeting {
        public static int work(int calls) {
            sink = new long[calls];
            return calls == 0 ? 0 : work(calls - 1) + 1;
        }
    }

    static class Loader extends ClassLoader {
        private final byte[] code;

        Loader(byte[] code) {
            super(Stacks.class.getClassLoader());
            this.code = code;
        }

        Class<?> define() {
            return defineClass("Stacks$Fleeting", code, 0, code.length);
        }
    }

    static int fleeting() throws Throwable {
        byte[] code;
        try (InputStream stream = Stacks.class.getResourceAsStream("Stacks$Fleeting.class")) {
            code = stream.readAllBytes();
        }
        int sum = 0;
        for (int round = 0; round < 400; round++) {
            Method method = new Loader(code).define().getMethod("work", int.class);
            MethodHandle handle = MethodHandles.lookup().unreflect(method);
            for (int i = 0; i < 20; i++) {
                sum += (Integer) method.invoke(null, 30);
                sum += (int) handle.invoke(20);
            }
            if (round % 40 == 0) {
                System.gc();
            }
        }
        return sum;
    }

    static int ofAThread(int seed) {
        int sum = 0;
        for (int i = 0; i < 5_000; i++) {
            sum += deep(20 + seed + i % 30);
            List<String> words = new ArrayList<>();
            for (int word = 0; word < 5; word++) {
                words.add("x" + word + i);
            }
            words.sort((left, right) -> {
                sink = new byte[16];
                return right.compareTo(left);
            });
            sum += (int) words.stream().map(word -> word + "y").filter(word -> word.length() > 2).count();
        }
        return sum;
    }

    static int threads() throws InterruptedException {
        Thread[] threads = new Thread[8];
        for (int i = 0; i < threads.length; i++) {
            int seed = i;
            threads[i] = new Thread(() -> ofAThread(seed));
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return threads.length;
    }

    static int waiting(int calls) throws InterruptedException {
        int sum = 0;
        for (int i = 0; i < 20; i++) {
            sum += deep(calls);
            Thread.sleep(0, 1000);
            sum += deep(calls / 2);
        }
        return sum;
    }

    /** Asked for by name: JDK 17 has none. */
    static int virtual() throws Exception {
        Method make = Executors.class.getMethod("newVirtualThreadPerTaskExecutor");
        ExecutorService service = (ExecutorService) make.invoke(null);
        List<Future<Integer>> all = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            int calls = i % 40;
            all.add(service.submit(() -> waiting(calls)));
        }
        int sum = 0;
        for (Future<Integer> one : all) {
            sum += one.get();
        }
        service.shutdown();
        return sum;
    }

    public static void main(String[] arguments) throws Throwable {
        switch (arguments[0]) {
            case "shapes" -> System.out.println(shapes());
            case "undone" -> System.out.println(undone());
            case "fleeting" -> System.out.println(fleeting());
            case "threads" -> System.out.println(threads());
            case "virtual" -> System.out.println(virtual());
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }
}
