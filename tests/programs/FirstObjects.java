// Begins with 300 arrays of 1,016 bytes, before anything else.
public class FirstObjects {
    static final byte[][] kept = new byte[300][];

    static void first() {
        for (int i = 0; i < kept.length; i++)
            kept[i] = new byte[1000];
    }

    public static void main(String[] arguments) {
        first();
        System.out.println(kept.length);
    }
}
