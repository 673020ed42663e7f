//! Promise: PHP's blocks are in the profile with functions and lines, they end with their request, and the program is as it was.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::attached::Attached;
use crate::support::profile::{Profile, Site};
use crate::support::room::stderr;
use crate::support::{Agent, Outcome, Room, Run, bridge, is_installed, skip};

fn has_php() -> bool {
    let has = is_installed("php");
    if !has {
        skip("no PHP (Debian: php-cli)");
    }
    has
}

/// What is kept counts as alive at the end, although PHP drops it then.
fn known_sites(times: u32, agent: &Agent) -> Outcome {
    Run::of("php")
        .arg(bridge::program("known_sites.php"))
        .arg(times.to_string())
        .unchanged(agent)
}

fn script(code: &str) -> Run {
    Run::of("php").args(&["-r", code])
}

#[test]
fn each_site_is_within_its_error() {
    if !has_php() {
        return;
    }
    for (interval, times) in [("4K", 1), ("64K", 4)] {
        let outcome = known_sites(times, &Agent::at_interval(interval).seeded(7));
        bridge::profile_near_truth(&outcome, 5);
    }
}

#[test]
fn functions_and_lines_are_named_and_stand_in_for_the_interpreter() {
    if !has_php() {
        return;
    }
    let outcome = known_sites(1, &Agent::at_interval("4K").seeded(7));
    let profile = outcome.profile();
    let file = bridge::program("known_sites.php");
    bridge::assert_line(&profile, "small_and_freed", &file, "str_repeat(\"a\"");
    // The interpreter has not stored this line when it allocates.
    bridge::assert_line(&profile, "Site::large_and_kept", &file, "$half . \"d\"");
    bridge::assert_stack(&profile, &["{main}", "main", "site", "huge_and_freed"]);
    bridge::assert_stack(
        &profile,
        &["{main}", "main", "site", "Site::small_and_kept"],
    );
    let stack = profile.stack_to("Site::large_and_kept");
    assert_eq!(
        stack.last().map(String::as_str),
        Some("Site::large_and_kept")
    );
    assert!(
        !stack.iter().any(|frame| frame.contains("execute_ex")),
        "{stack:?}"
    );
}

/// Evaluated code has no function, by which the frames of other programs are found.
#[test]
fn code_without_functions_has_lines() {
    if !has_php() {
        return;
    }
    let code = "$k = []; for ($i = 0; $i < 100000; $i++)\n $k[] = ['a' => $i];";
    let outcome = script(code).unchanged(&Agent::at_interval("16K").seeded(7));
    let profile = outcome.profile();
    let lines = profile.report["lines"].as_array().expect("lines");
    assert_eq!(lines[0]["function"], "{main}", "{}", lines[0]);
    assert_eq!(lines[0]["line"], 2, "{}", lines[0]);
}

#[test]
fn the_leak_is_found() {
    if has_php() {
        let program = bridge::program("leaky.php");
        let command = ["php", &program.to_string_lossy(), "200000"];
        bridge::assert_leak(&command, "open_session");
    }
}

/// Every statement of PHP that allocates in another way, on a line of its own; each line must have at least nine tenths of the
/// bytes of its function.
#[test]
fn lines_are_those_that_allocate() {
    const CODE: &str = r#"<?php
class Point { public $x = 1; public $y; }
function literal($i) { $x = 1;
    $r = [$i, $i + 1, "key" => $i]; // here
    return $r;
}
function concatenated($s) { $l = strlen($s);
    $t = $s . $l; // here
    return $t;
}
function interpolated($s) { $l = 5;
    $t = "a $s b $l c"; // here
    return $t;
}
function constructed() { $z = 1;
    $o = new Point; // here
    return $o;
}
function grown() { $t = "";
    for ($i = 0; $i < 50; $i++) {
        $t .= "0123456789abcdef"; // here
    }
    return $t;
}
function separated($a) { $b = $a;
    $b[] = 1; // here
    return $b;
}
function converted($i) { $z = 1;
    $s = (string)($i * 1000003); // here
    return $s;
}
function generated($n) { for ($i = 0; $i < $n; $i++) {
    yield str_repeat("g", 100); // here
} }
$many = range(1, 100);
for ($k = 0; $k < 4000; $k++) {
    literal($k); concatenated("some text"); interpolated("text"); constructed(); grown(); separated($many); converted($k);
}
foreach (generated(4000) as $v);
"#;
    if !has_php() {
        return;
    }
    let room = Room::new();
    room.write_executable("lines.php", CODE);
    let run = [
        "run",
        "-q",
        "--interval",
        "512",
        "--seed",
        "7",
        "-o",
        "x.allocsample",
        "--",
        "php",
        "lines.php",
    ];
    let output = room.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let profile = Profile::read(&room.path("x.allocsample"));
    let lines = profile.report["lines"].as_array().expect("lines");
    let mut function = "";
    let mut checked = 0;
    for (number, text) in (1u64..).zip(CODE.lines()) {
        if let Some(rest) = text.strip_prefix("function ") {
            function = rest.split('(').next().expect("a name");
        }
        if !text.ends_with("// here") {
            continue;
        }
        let bytes = |row: &&serde_json::Value| row["self_allocated_bytes"].as_f64().expect("bytes");
        let of_function = lines.iter().filter(|row| row["function"] == function);
        let all: f64 = of_function.clone().map(|row| bytes(&row)).sum();
        let here: f64 = of_function
            .filter(|row| row["line"] == number)
            .map(|row| bytes(&row))
            .sum();
        assert!(
            all > 50e3 && here > 0.9 * all,
            "{function}: {here} of {all}"
        );
        checked += 1;
    }
    assert_eq!(checked, 8);
}

#[test]
fn memory_figures_limits_and_the_end_of_the_program_are_as_they_were() {
    if !has_php() {
        return;
    }
    for (code, status) in [
        // Free pages are given back on request, and before the limit is said to be reached.
        (
            "ini_set('memory_limit', '40M'); $before = memory_get_usage(); $a = []; for ($i = 0; $i < 200000; $i++) $a[] = str_repeat('x', 80 + $i % 20);
             printf(\"%d %d\\n\", memory_get_usage() - $before, memory_get_peak_usage() - $before); $a = null;
             printf(\"%d %d\\n\", memory_get_usage() - $before, gc_mem_caches());
             for ($i = 0; $i < 150000; $i++) $a[] = str_repeat('y', 100); $a = array_slice($a, 0, 5);
             $b = str_repeat('b', 25000000); printf(\"%d %d\\n\", strlen($b), memory_get_usage(true));",
            0,
        ),
        // The limit is reached, below a function that runs at the end.
        (
            "ini_set('memory_limit', '16M'); register_shutdown_function(function () { echo str_repeat('s', 50), \"\\n\"; });
             $a = []; while (true) $a[] = str_repeat('x', 500);",
            255,
        ),
        // A list that is too deep to be freed link by link at the end.
        (
            "class Link { public $next; } $list = null;
             for ($i = 0; $i < 200000; $i++) { $new = new Link; $new->next = $list; $list = $new; } echo \"made\\n\";",
            0,
        ),
        // Destructors, cycles, exceptions, fibers, evaluated code, errors and an exit status.
        (
            "class D { public $o; public $t; function __construct() { $this->t = str_repeat('d', 500); }
                       function __destruct() { global $ended; $ended++; if ($ended % 5000 == 0) echo str_repeat('e', 10), $ended, \"\\n\"; } }
             for ($i = 0; $i < 20000; $i++) { $a = new D; $b = new D; $a->o = $b; $b->o = $a; } echo gc_collect_cycles() > 0, \"\\n\";
             try { (function () { throw new Exception(str_repeat('x', 30)); })(); } catch (Exception $e) { echo $e->getMessage(), \"\\n\"; }
             if (class_exists('Fiber')) { $f = new Fiber(function () { for ($i = 0; $i < 2000; $i++) Fiber::suspend(str_repeat('f', 200)); });
               $f->start(); while (!$f->isTerminated()) $f->resume(); }
             eval('function evaluated($n) { return $n == 0 ? str_repeat(\"z\", 99) : evaluated($n - 1); }');
             for ($i = 0; $i < 2000; $i++) evaluated($i % 60);
             $list = range(1, 5000); usort($list, fn($a, $b) => strcmp(\"$a\", \"$b\")); echo preg_replace('/a/', 'b', str_repeat('a', 100)), \"\\n\";
             echo json_encode(unserialize(serialize(array_fill(0, 1000, 'u')))) === '', \"\\n\";
             fwrite(STDERR, 'said'); exit(7);",
            7,
        ),
    ] {
        for interval in ["1K", "512K"] {
            let outcome = script(code).unchanged(&Agent::at_interval(interval).seeded(7));
            assert_eq!(outcome.status.code(), Some(status), "{}", outcome.complaints());
            bridge::assert_audit(&outcome.profile());
        }
    }
}

#[test]
fn forked_children_have_profiles_of_their_own() {
    if !has_php() {
        return;
    }
    let run = script(
        "function child() { return str_repeat('c', 5000); }
         if (!function_exists('pcntl_fork')) exit(9);
         $kept = []; for ($i = 0; $i < 3; $i++) { $pid = pcntl_fork();
           if ($pid == 0) { for ($j = 0; $j < 2000; $j++) $kept[] = child(); exit(4); } pcntl_waitpid($pid, $status); echo pcntl_wexitstatus($status); }",
    );
    if run.bare().status.code() == Some(9) {
        skip("PHP without pcntl");
        return;
    }
    let outcome = run.unchanged(&Agent::at_interval("4K").seeded(7));
    assert_eq!(outcome.text(), "444");
    let profiles = outcome.profiles();
    assert_eq!(profiles.len(), 4, "the program and three children");
    let with_site = profiles
        .iter()
        .filter(|profile| profile.site("child").samples > 100);
    assert_eq!(with_site.count(), 3);
}

#[test]
fn heaps_that_are_not_phps_own_are_left_alone() {
    if !has_php() {
        return;
    }
    // PHP passes all blocks on to malloc, where they get functions and lines.
    let run = Run::of("php")
        .arg(bridge::program("known_sites.php"))
        .arg("1")
        .env("USE_ZEND_ALLOC", "0");
    let outcome = run.unchanged(&Agent::at_interval("4K").seeded(7));
    let profile = outcome.profile();
    bridge::assert_stack(
        &profile,
        &["{main}", "main", "site", "Site::small_and_kept"],
    );
    assert_eq!(bridge::heap(&profile, "php")["samples"], 0);
    // Without the bridge.
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(1, &agent).profile();
    assert_eq!(profile.site("small_and_freed").samples, 0);
    assert!(!bridge::has_heap(&profile, "php"));
}

fn get(port: u16, path: &str) -> String {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    connection
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time limit");
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers");
    answer
}

/// The server that PHP has for tests answers one request after another in a process.
#[test]
fn requests_are_on_the_time_line_and_what_they_allocate_ends_with_them() {
    if !has_php() {
        return;
    }
    let room = Room::new();
    room.write_executable(
        "index.php",
        "<?php function kept_by_request() { return str_repeat('k', 2000); }
         for ($i = 0; $i < 1000; $i++) $all[] = kept_by_request(); echo count($all);",
    );
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let mut command = room.command(&[
        "run",
        "-q",
        "--interval",
        "16K",
        "--seed",
        "7",
        "-o",
        "x.allocsample",
        "--",
        "php",
        "-S",
        &format!("127.0.0.1:{port}"),
        "index.php",
    ]);
    let mut server = command
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let listens = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(listens);
    for _ in 0..20 {
        assert!(get(port, "/some/page?secret=1").ends_with("1000"));
    }
    // SAFETY: a signal to a process that was not waited for.
    unsafe { libc::kill(server.id() as i32, libc::SIGINT) };
    server.wait().expect("it ends");
    let profile = Profile::read(&room.path("x.allocsample"));
    let site = profile.site("kept_by_request");
    assert!(site.samples > 500, "{} samples", site.samples);
    let live = bridge::heap(&profile, "php")["live_bytes"].as_f64();
    assert_eq!(live, Some(0.0));
    let rows = room.output(&[
        "query",
        "--format",
        "json",
        "x.allocsample",
        "SELECT marker FROM markers",
    ]);
    let rows = String::from_utf8(rows.stdout).expect("text");
    assert_eq!(rows.matches("GET /some/page\"").count(), 20, "{rows}");
}

fn steered_sites(count: u32, told: bridge::Told) -> [Site; 3] {
    let program = bridge::program("steered_sites.php");
    let command = ["php", &*program.to_string_lossy(), &count.to_string()];
    let profile = bridge::steered(&Room::new(), &command, told);
    ["first", "second", "third"].map(|name| profile.site(name))
}

#[test]
fn phps_heap_follows_the_interval() {
    const COUNT: u32 = 1_200_000;
    if has_php() {
        let sites = steered_sites(COUNT, bridge::INTERVALS);
        bridge::assert_follows(sites, f64::from(COUNT) * 175.0);
    }
}

#[test]
fn phps_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 400_000;
    if has_php() {
        let sites = steered_sites(COUNT, bridge::STOP_AND_START);
        bridge::assert_rests(sites, f64::from(COUNT) * 175.0, 4e6);
    }
}

#[test]
fn a_running_program_is_joined_by_attach() {
    if !has_php() {
        return;
    }
    let room = Room::new();
    let mut command = Command::new("php");
    command.arg(bridge::program("attached.php"));
    let mut running = Attached::start_in(room, command);
    for interval in ["16K", "4K", "16K"] {
        running.attach(&["--interval", interval]);
        assert_eq!(running.ask("100000"), "124500");
        let profile = running.detach();
        let site = profile.site("Worker::grow");
        // A string of 124.5 bytes on average, for which str_repeat asks for 32 more.
        let deviation = (site.allocated_bytes - 100_000.0 * 156.5) / site.allocated_bytes_stderr;
        assert!(
            site.samples > 500 && deviation.abs() < 4.0,
            "{interval}: {deviation}"
        );
        bridge::assert_stack(&profile, &["{main}", "Worker::work", "Worker::grow"]);
        bridge::assert_audit(&profile);
        // Nobody listens now.
        assert_eq!(running.ask("2000"), "124500");
    }
    assert_eq!(running.end(0).1.code(), Some(0));
}

/// Whatever comes first of what a detach does: the blocks and their frees end at the same moment.
#[test]
fn a_detach_while_blocks_are_replaced_leaves_them_live() {
    if !has_php() {
        return;
    }
    let mut command = Command::new("php");
    command.arg(bridge::program("attached.php"));
    let mut running = Attached::start_in(Room::new(), command);
    running.attach(&["--interval", "4K"]);
    // More than it finishes before it is killed.
    running.tell("1000000000");
    let samples = |status: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with("samples"))?;
        line.split_whitespace()
            .nth(1)?
            .trim_end_matches(',')
            .parse()
            .ok()
    };
    while samples(&running.done(&["ctl", &running.pid(), "status"])).is_none_or(|it| it < 500) {}
    let site = running.detach().site("Worker::grow");
    // A thousand strings, which str_repeat asks 156.5 bytes for on average: 38 samples.
    assert!(
        (80_000.0..300_000.0).contains(&site.live_bytes),
        "{}",
        site.live_bytes
    );
}
