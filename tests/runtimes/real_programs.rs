//! Promise: any program, any runtime. Real programs print and return under the agent what they do without, and their
//! profiles name functions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::directory::Directory;
use crate::support::{Agent, Outcome, Program, Run, is_installed, regrtest, skip};

/// Runs a shell script both ways.
fn script(text: &str) -> Run {
    Run::of("/bin/sh").args(&["-euc", text])
}

fn missing(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs
        .iter()
        .filter(|program| !is_installed(program))
        .collect();
    if !missing.is_empty() {
        skip(&format!("{missing:?} not installed"));
    }
    !missing.is_empty()
}

/// The same output and status at two intervals; at least one profile of `program` with samples that have names.
#[track_caller]
fn comes_through(run: &Run, program: &str) {
    run.unchanged(&Agent::at_interval("4K")).assert_success();
    let outcome = run.unchanged(&Agent::at_interval("64K"));
    outcome.assert_success();
    assert_named(&outcome, program);
}

/// Most of what the program's profiles show has a name.
#[track_caller]
fn assert_named(outcome: &Outcome, program: &str) {
    let is_of = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(program))
    };
    let paths = outcome.profile_paths();
    let profiles: Vec<_> = paths
        .iter()
        .filter(is_of)
        .map(|path| crate::support::profile::Profile::read(path))
        .collect();
    assert!(!profiles.is_empty(), "no profile of {program}: {paths:?}");
    let (mut named, mut all) = (0.0, 0.0);
    for profile in &profiles {
        assert!(
            profile.is_complete(),
            "{}: {}",
            profile.path().display(),
            profile.exit()
        );
        for row in profile.report["functions"].as_array().expect("functions") {
            let samples = row["samples"].as_f64().expect("samples");
            let name = row["function"].as_str().expect("a name");
            all += samples;
            if !name.contains("+0x") && !name.starts_with('(') && !name.starts_with("0x") {
                named += samples;
            }
        }
    }
    assert!(all > 0.0, "no samples of {program}");
    eprintln!("{program}: {named} of {all} samples have a name");
}

#[test]
fn python_comes_through() {
    if missing(&["python3"]) {
        return;
    }
    let text = "import json; x=[json.loads(\"[1,2,3]\"*1) for _ in range(10**5)]; print(len(x))";
    comes_through(&Run::of("python3").args(&["-c", text]), "python3");
}

#[test]
fn python_with_threads_and_processes_comes_through() {
    if missing(&["python3"]) {
        return;
    }
    let text = "
import multiprocessing, subprocess, threading
def work(n): return sum(len(str(i)) for i in range(n))
if __name__ == '__main__':
    threads = [threading.Thread(target=work, args=(20000,)) for _ in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    pool = multiprocessing.get_context('fork').Pool(4)
    print(pool.map(work, [1000, 2000, 3000]))
    pool.close(); pool.join()  # leaving by `with` kills the workers
    print(subprocess.run(['echo', 'a child'], capture_output=True).stdout)
";
    comes_through(&Run::of("python3").args(&["-c", text]), "python3");
}

#[test]
fn sqlite_comes_through() {
    if missing(&["sqlite3"]) {
        return;
    }
    let text = "sqlite3 test.db <<'END'
create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000)
  insert into t select i, 'row ' || i || hex(zeroblob(20)), i * 1.5 from n;
create index by_text on t(b);
select count(*), sum(c), max(b), group_concat(substr(b, 1, 5)) from (select * from t order by b desc limit 1000);
select length(group_concat(b)) from t;
pragma integrity_check;
END
cksum test.db";
    comes_through(&script(text), "sqlite3");
}

#[test]
fn gcc_comes_through() {
    if missing(&["gcc"]) {
        return;
    }
    let mut source = String::from("#include <stdio.h>\n");
    for number in 0..400 {
        source += &format!(
            "static int f{number}(int a, int *b) {{ int s = 0; for (int i = 0; i < a; i++) {{ s += b[i] * {number}; if (s > {}) s -= b[i % 7]; }} return s; }}\n",
            number * 37
        );
    }
    source += "int all(int a, int *b) { int s = 0;\n";
    for number in 0..400 {
        source += &format!("s ^= f{number}(a, b);\n");
    }
    source += "return s; }\n";
    let directory = Directory::new();
    let file = directory.join("large.c");
    fs::write(&file, source).expect("a source file");
    let run = script("gcc -O2 -c -o large.o \"$FILE\"; cksum large.o").env("FILE", &file);
    comes_through(&run, "cc1");
}

#[test]
fn git_comes_through() {
    if missing(&["git"]) {
        return;
    }
    let text = "
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main repository; cd repository
for i in 1 2 3 4 5 6 7 8 9 10; do
    seq $i 400 | sed \"s/^/$i line /\" > file$i; seq 1 $((i * 100)) > grows; git add .
    GIT_AUTHOR_DATE=\"2020-01-0${i}T00:00:00Z\" GIT_COMMITTER_DATE=\"2020-01-01T00:00:${i}Z\" git commit -qm \"number $i\"
done 2>/dev/null || git add . && GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z git commit -q --allow-empty -m last
git log --stat --format='%H %s' | cat; git gc -q; git fsck --full; git log -p --format=%H | cksum";
    let text = text
        .replace("2020-01-0${i}T00:00:00Z", "2020-01-01T00:00:0${i}Z")
        .replace("00:00:${i}Z", "00:01:${i}Z");
    comes_through(&script(&text), "git");
}

#[test]
fn perl_comes_through() {
    if missing(&["perl"]) {
        return;
    }
    let text = "my %h; for my $i (1..50000) { $h{\"key $i\"} = [ map { $_ * $i } 1..5 ]; } my $s = 0; $s += $_->[4] for values %h; print \"$s\\n\"; exit 3 if $s < 0;";
    comes_through(&Run::of("perl").args(&["-e", text]), "perl");
}

#[test]
fn node_comes_through() {
    if missing(&["node"]) {
        return;
    }
    let text = "const zlib = require('zlib'); let s = 0; for (let i = 0; i < 300; i++) { s += zlib.deflateSync(Buffer.alloc(20000, 'x' + i)).length; } \
        const {Worker} = require('worker_threads'); const w = new Worker('require(\"worker_threads\").parentPort.postMessage([1,2,3].map(x => x * 2))', {eval: true}); \
        w.on('message', m => console.log(s, m)); w.on('exit', c => console.log('worker', c));";
    comes_through(&Run::of("node").args(&["-e", text]), "node");
}

#[test]
fn java_comes_through() {
    if missing(&["java"]) {
        return;
    }
    let directory = Directory::new();
    let source = directory.join("Work.java");
    let text = "import java.util.*; import java.util.stream.*;
public class Work { public static void main(String[] a) throws Exception {
    Map<String, List<Integer>> m = IntStream.range(0, 200000).boxed().collect(Collectors.groupingByConcurrent(i -> \"key \" + i % 100));
    Thread[] t = new Thread[8]; int[] s = new int[8];
    for (int i = 0; i < 8; i++) { int n = i; t[i] = new Thread(() -> { for (int k = 0; k < 1000; k++) s[n] += new byte[1000].length; }); t[i].start(); }
    for (Thread x : t) x.join();
    System.out.println(m.values().stream().mapToLong(List::size).sum() + \" \" + Arrays.toString(s)); System.exit(5); } }";
    fs::write(&source, text).expect("a source file");
    let compiled = Command::new("javac").arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        skip("no javac");
        return;
    }
    let run = Run::of("java").arg("-cp").arg(&*directory).arg("Work");
    for interval in ["4K", "512K"] {
        let outcome = run.unchanged(&Agent::at_interval(interval));
        assert_eq!(outcome.status.code(), Some(5));
        assert_named(&outcome, "java");
    }
}

#[test]
fn redis_comes_through_under_load() {
    if missing(&["redis-server", "redis-benchmark", "redis-cli"]) {
        return;
    }
    let text = "
env LD_PRELOAD=\"$SERVER_PRELOAD\" redis-server --port 0 --unixsocket $PWD/s --save '' --appendonly no --logfile $PWD/log --dir $PWD & server=$!
for i in $(seq 200); do redis-cli -s s ping >/dev/null 2>&1 && break; sleep 0.1; done
redis-benchmark -s s -q -n 20000 -c 20 -d 200 -r 1000 -t set,get,lpush,lrange_100,incr,sadd,hset,zadd > benchmark
redis-cli -s s eval 'for i = 1, 20000 do redis.call(\"set\", \"k\" .. i, string.rep(\"v\", i % 500)) end return redis.call(\"get\", \"k499\")' 0
redis-cli -s s bgsave >/dev/null; redis-cli -s s dbsize | awk '{print ($1 >= 20000)}'; redis-cli -s s memory usage k100 >/dev/null
redis-cli -s s shutdown nosave 2>/dev/null || true; wait $server; echo status $?";
    let run = script(text);
    let bare = run.clone().env("SERVER_PRELOAD", "").bare();
    let outcome = run
        .env("SERVER_PRELOAD", crate::support::agent_library())
        .observed(&Agent::at_interval("64K"));
    assert_eq!(
        (outcome.status, outcome.text()),
        (bare.assert_success().status, bare.text()),
        "{}",
        outcome.complaints()
    );
    assert_named(&outcome, "redis");
}

/// An interpreter that has CPython's own regression tests.
fn python_with_tests() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let check = Command::new(python)
            .args(["-c", "import test.test_threading, test.libregrtest"])
            .output();
        check.is_ok_and(|output| output.status.success())
    })
}

const REGRESSION_TESTS: [&str; 7] = [
    "test_threading",
    "test_subprocess",
    "test_multiprocessing_fork",
    "test_gc",
    "test_os",
    "test_signal",
    "test_ctypes",
];

/// Those of the regression tests that an interpreter has: some are installed without a few.
fn tests_of(python: &str) -> Vec<&'static str> {
    let has = |name: &&str| {
        let find = format!(
            "import importlib.util, sys; sys.exit(not importlib.util.find_spec('test.{name}'))"
        );
        let found = Command::new(python)
            .args(["-c", &find])
            .status()
            .is_ok_and(|status| status.success());
        if !found {
            skip(&format!("{python} has no {name}"));
        }
        found
    };
    REGRESSION_TESTS.into_iter().filter(has).collect()
}

#[test]
fn cpythons_own_tests_pass_as_without() {
    let Some(python) = python_with_tests() else {
        skip("no Python with its regression tests (Debian: libpython3.11-testsuite)");
        return;
    };
    let regrtest = Run::of(python)
        .args(&["-m", "test", "-w"])
        .args(&tests_of(python))
        .patience(1800);
    regrtest::assert_same_verdicts(&regrtest, &Agent::at_interval("64K"), 500);
}

/// A bridge looks for its runtime by a symbol, which most processes lack.
#[test]
fn no_symbol_that_the_loader_finds_is_taken_for_absent() {
    let shim = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("c_shim");
    let include = |path: PathBuf| format!("-I{}", path.display());
    let places = [shim.clone(), shim.join("include"), shim.join("bridges")].map(include);
    let mut flags: Vec<&str> = places.iter().map(String::as_str).collect();
    let program = Program::compiled_with("absent_symbols.c", &flags);
    program.run().bare().assert_success();
    // An object that another thread unloads is not read any more.
    program.run().arg("storm").bare().assert_success();
    // An object without the table from which absence is read may have any symbol.
    flags.push("-Wl,--hash-style=sysv");
    let program = Program::compiled_with("absent_symbols.c", &flags);
    program.run().arg("none").bare().assert_success();
}
