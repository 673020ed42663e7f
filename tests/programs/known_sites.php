<?php
// Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.
//
// A string of n bytes takes 24 + n + 1, in words of 8 bytes; str_repeat asks for 32 + n.

class Site
{
    public static function small_and_kept(): string
    {
        return str_repeat("b", 39);
    }

    // A concatenation, of which the interpreter does not note the line.
    public function large_and_kept(): string
    {
        $half = self::$half;

        return $half . "d";
    }

    public static string $half;
}

function small_and_freed(): string
{
    return str_repeat("a", 135);
}

function large_and_freed(): string
{
    return str_repeat("c", 5_095);
}

// Blocks that the heap maps one by one.
function huge_and_freed(): string
{
    return str_repeat("e", 3_000_000);
}

function site(string $name, callable $make, int $count, int $size, bool $keep): void
{
    global $truth, $kept;
    $mine = $keep ? new SplFixedArray($count) : null;
    for ($i = 0; $i < $count; $i++) {
        $string = $make();
        if ($keep) {
            $mine[$i] = $string;
        }
    }
    $kept[] = $mine;
    $live = $keep ? $count : 0;
    $truth[$name] = ["bytes" => $count * $size, "allocations" => $count, "live_bytes" => $live * $size, "live_blocks" => $live];
}

function main(int $times): void
{
    global $truth;
    Site::$half = str_repeat("h", 2_974);
    site("small_and_freed", 'small_and_freed', 50_000 * $times, 167, false);
    site("Site::small_and_kept", ['Site', 'small_and_kept'], 20_000 * $times, 71, true);
    site("large_and_freed", 'large_and_freed', 4_000 * $times, 5_127, false);
    site("Site::large_and_kept", [new Site(), 'large_and_kept'], 1_000 * $times, 3_000, true);
    site("huge_and_freed", 'huge_and_freed', 20 * $times, 3_000_032, false);
    echo json_encode($truth), "\n";
}

$truth = $kept = [];
main((int) $argv[1]);
