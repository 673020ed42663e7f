import java.util.ArrayList;
import java.util.List;

/** A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each. */
public class Leaky {
    static final List<byte[]> sessions = new ArrayList<>();
    static volatile Object answer;

    static List<byte[]> build_table() {
        List<byte[]> rows = new ArrayList<>();
        for (int i = 0; i < 4000; i++) {
            rows.add(new byte[1000]);
        }
        return rows;
    }

    static void open_session() {
        sessions.add(new byte[100]);
    }

    static void serve_request() {
        answer = new byte[400];
    }

    public static void main(String[] arguments) throws InterruptedException {
        List<byte[]> table = build_table();
        int count = Integer.parseInt(arguments[0]);
        for (int i = 0; i < count; i++) {
            serve_request();
            open_session();
            if (i % (count / 10) == 0) {
                System.gc();
                Thread.sleep(50);
            }
        }
        System.gc();
        System.out.println(table.size() + sessions.size());
        System.out.flush();
        // What is kept is alive at the end.
        Runtime.getRuntime().halt(0);
    }
}
