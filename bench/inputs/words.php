<?php
// Text and collections in PHP: words counted, sorted, joined and split. No random, no clock.
$rounds = (int) $argv[1];
$counts = [];
$total = 0;
for ($turn = 0; $turn < $rounds; $turn++) {
    $words = [];
    for ($i = 0; $i < 4000; $i++) {
        $words[] = "word" . ($i * 7919 + $turn) % 1009;
    }
    foreach ($words as $word) {
        $counts[$word] = ($counts[$word] ?? 0) + 1;
    }
    $pairs = array_map(
        fn($a, $b) => ["key" => $a, "value" => $b, "text" => str_repeat($a . $b, 12)],
        array_slice($words, 0, 300),
        array_slice($words, 300, 300)
    );
    $unique = array_unique($words);
    sort($unique);
    $total += array_sum(array_map(fn($pair) => strlen($pair["text"]), $pairs));
    $total += count($unique) + count(explode("1", implode(" ", $words)));
}
echo count($counts), " ", $total, "\n";
