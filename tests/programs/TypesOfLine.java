import java.io.File;
import java.lang.reflect.Array;
import java.net.URL;
import java.net.URLClassLoader;

/** Arrays of seven classes, and of classes of one name that are unloaded, all of which the same line allocates: 300 of each name. */
public class TypesOfLine {
    static final int COUNT = 300, LOADERS = 10;
    static final Class<?>[] KINDS = {byte.class, short.class, int.class, long.class, float.class, double.class, String.class};
    static volatile Object sink;

    public static class Loaded {}

    static void drop() {
        sink = new byte[1000];
    }

    static void make(Class<?> kind) {
        sink = Array.newInstance(kind, 10);
    }

    static void makeLoaded() throws Exception {
        URL[] classes = {new File(System.getProperty("java.class.path")).toURI().toURL()};
        try (URLClassLoader loader = new URLClassLoader(classes, null)) {
            Class<?> loaded = loader.loadClass("TypesOfLine$Loaded");
            for (int i = 0; i < COUNT / LOADERS; i++) {
                make(loaded);
            }
        }
        sink = null;
        System.gc();
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < 20000; i++) {
            drop();
        }
        for (int i = 0; i < LOADERS; i++) {
            makeLoaded();
            for (int j = 0; j < COUNT / LOADERS * KINDS.length; j++) {
                make(KINDS[j % KINDS.length]);
            }
        }
    }
}
