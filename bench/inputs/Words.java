import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Text and collections on the JVM; most of its native allocations are the compiler's. No random, no clock. */
public class Words {
    public static void main(String[] arguments) {
        int rounds = Integer.parseInt(arguments[0]);
        Map<String, Integer> counts = new TreeMap<>();
        long total = 0;
        for (int turn = 0; turn < rounds; turn++) {
            List<String> words = new ArrayList<>();
            for (int i = 0; i < 4000; i++) {
                words.add("word" + (i * 7919L + turn) % 1009);
            }
            for (String word : words) {
                counts.merge(word, 1, Integer::sum);
            }
            total += words.stream().filter(word -> word.endsWith("7")).map(String::toUpperCase).distinct().count();
            total += String.join(" ", words).split("1").length;
        }
        System.out.println(counts.size() + " " + total);
    }
}
