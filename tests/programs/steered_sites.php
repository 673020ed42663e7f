<?php
// Three functions that allocate the same, with a line on standard input before each of the last two. Prints its process number
// before it reads.
//
// str_repeat asks for 32 bytes more than its string has: 175.

function first(): string
{
    return str_repeat("a", 143);
}

function second(): string
{
    return str_repeat("b", 143);
}

function third(): string
{
    return str_repeat("c", 143);
}

function site(callable $make, int $count): void
{
    for ($i = 0; $i < $count; $i++) {
        $make();
    }
}

function wait(): void
{
    echo getmypid(), "\n";
    fgets(STDIN);
}

$count = (int) $argv[1];
site('first', $count);
wait();
site('second', $count);
wait();
site('third', $count);
