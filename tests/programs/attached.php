<?php
// Says "ready". For each line, a number, it allocates that many strings in a method, keeps the last thousand, and says how many
// bytes they have.

class Worker
{
    private array $kept = [];

    public function grow(int $i): void
    {
        $this->kept[$i % 1000] = str_repeat("g", 100 + $i % 50);
    }

    public function work(int $count): int
    {
        for ($i = 0; $i < $count; $i++) {
            $this->grow($i);
        }

        return array_sum(array_map('strlen', $this->kept));
    }
}

$worker = new Worker();
echo "ready\n";
while (($line = fgets(STDIN)) !== false && strncmp($line, "end", 3) !== 0) {
    echo $worker->work((int) $line), "\n";
}
