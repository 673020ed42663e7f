<?php
// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
//
// str_repeat asks for 32 bytes more than its string has. OPcache would call it only once with constants.

const ROUNDS = 200_000;
const CACHED = 2_000;

class Program
{
    private static int $small = 144, $large = 5_000, $cached = 288, $leaked = 96;

    public static function churn_small(): string
    {
        return str_repeat("a", self::$small);
    }

    public static function churn_large(): string
    {
        return str_repeat("b", self::$large);
    }

    public static function fill_cache(): string
    {
        return str_repeat("c", self::$cached);
    }

    public static function leak_session(): string
    {
        return str_repeat("d", self::$leaked);
    }

    public static function site(string $function, int $size, int $count, int $live): array
    {
        $line = (new ReflectionMethod('Program', $function))->getStartLine() + 2;
        $each = 32 + $size;

        return ["bytes" => $each * $count, "live_bytes" => $each * $live, "line" => $line];
    }
}

function main(array $arguments): array
{
    if (in_array("wait", $arguments)) {
        echo "ready\n";
        fgets(STDIN);
    }
    $before = memory_get_usage();
    $cache = new SplFixedArray(CACHED);
    $leaked = new SplFixedArray(ROUNDS);
    for ($i = 0; $i < ROUNDS; $i++) {
        Program::churn_small();
        if ($i % 20 == 0) {
            Program::churn_large();
        }
        $cache[$i % CACHED] = Program::fill_cache();
        $leaked[$i] = Program::leak_session();
        // It takes some seconds to tell a leak from a cache that fills.
        if ($i % 1000 == 0) {
            usleep(12_000);
        }
    }
    $truth = getenv("KNOWN_TRUTH_OWN") === false ? [
        "sites" => [
            "churn_small" => Program::site("churn_small", 144, ROUNDS, 0),
            "churn_large" => Program::site("churn_large", 5_000, intdiv(ROUNDS, 20), 0),
            "fill_cache" => Program::site("fill_cache", 288, ROUNDS, CACHED),
            "leak_session" => Program::site("leak_session", 96, ROUNDS, ROUNDS),
        ],
        "leak" => "leak_session",
        "cache" => "fill_cache",
    ] : ["own_live_bytes" => memory_get_usage() - $before];
    echo json_encode($truth), "\n";

    return [$cache, $leaked];
}

// What is kept is alive at the end.
$kept = main($argv);
exit(7);
