import java.net.URI;
import java.nio.file.FileSystem;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.util.LinkedHashMap;
import java.util.Map;

/** JDK-8260621: the reader of another JDK's classes keeps its class loader in a thread-local. Arguments: seconds, the other JDK. */
public class Jrt {
    private static final Map<Integer, byte[]> ANSWERS = new LinkedHashMap<>() {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Integer, byte[]> eldest) {
            return size() > 2000;
        }
    };

    private static int handle(String home) throws Exception {
        try (FileSystem files = FileSystems.newFileSystem(URI.create("jrt:/"), Map.of("java.home", home))) {
            return Files.readAllBytes(files.getPath("/modules/java.base/java/lang/Object.class")).length;
        }
    }

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000L;
        for (int number = 0; System.nanoTime() < end; number++) {
            handle(arguments[1]);
            ANSWERS.put(number, new byte[1000]);
            if (number % 50 == 0) {
                Thread.sleep(2);
            }
        }
        System.gc();
    }
}
