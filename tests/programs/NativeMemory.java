import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;

/** Takes memory outside of Java's heap in methods of known names, and prints how much. */
public class NativeMemory {
    static final List<ByteBuffer> kept = new ArrayList<>();
    static final List<Deflater> deflaters = new ArrayList<>();

    static ByteBuffer direct() {
        return ByteBuffer.allocateDirect(3000);
    }

    static void keep(int count) {
        for (int i = 0; i < count; i++) {
            kept.add(direct());
        }
    }

    static int compress(byte[] text) {
        Deflater deflater = new Deflater();
        deflater.setInput(text);
        deflater.finish();
        int length = deflater.deflate(new byte[text.length]);
        deflater.end();
        return length;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        keep(count);
        Thread thread = new Thread(() -> keep(count), "buffer-maker");
        thread.start();
        thread.join();
        int sum = 0;
        for (int i = 0; i < 200; i++) {
            sum += compress(new byte[10_000]);
        }
        // Garbage, so that collectors and compilers allocate meanwhile.
        for (int i = 0; i < 200_000; i++) {
            sum += new byte[1000].length % 7;
        }
        System.out.println(kept.size() + " " + sum);
    }
}
