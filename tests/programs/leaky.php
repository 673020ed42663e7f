<?php
// A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.

$sessions = [];

function build_table(): array
{
    $table = [];
    for ($i = 0; $i < 4_000; $i++) {
        $table[] = str_repeat("t", 1_000);
    }

    return $table;
}

function open_session(): void
{
    global $sessions;
    $sessions[] = str_repeat("s", 99);
}

function serve_request(): string
{
    return str_repeat("r", 400);
}

$table = build_table();
for ($i = 0; $i < (int) $argv[1]; $i++) {
    serve_request();
    open_session();
}
echo count($table) + count($sessions), "\n";
