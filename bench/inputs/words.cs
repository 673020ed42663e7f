// Text and collections on Mono and .NET: words counted, sorted, joined and split. No random, no clock.
using System;
using System.Collections.Generic;
using System.Linq;

static class Words
{
    static void Main(string[] arguments)
    {
        int rounds = int.Parse(arguments[0]);
        var counts = new Dictionary<string, int>();
        long total = 0;
        for (int turn = 0; turn < rounds; turn++) {
            var words = new List<string>();
            for (int i = 0; i < 4000; i++)
                words.Add("word" + (i * 7919L + turn) % 1009);
            foreach (string word in words) {
                int count;
                counts.TryGetValue(word, out count);
                counts[word] = count + 1;
            }
            total += words.Where(word => word.EndsWith("7", StringComparison.Ordinal)).Select(word => word + word).Distinct().Count();
            words.Sort(string.CompareOrdinal);
            total += string.Join(" ", words).Split('1').Length;
        }
        Console.WriteLine("{0} {1}", counts.Count, total);
    }
}
