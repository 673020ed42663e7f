//! Promise: Lua's blocks, types, functions and collections are in the profile, in coroutines too, and the program is as it
//! was.

use std::process::Output;

use crate::support::attached::Attached;
use crate::support::profile::{Profile, Site};
use crate::support::room::{stderr, stdout};
use crate::support::{Agent, Program, Room, bridge, is_installed, skip};

fn has_lua() -> bool {
    let has = is_installed("lua5.4");
    if !has {
        skip("no Lua (Debian: lua5.4)");
    }
    has
}

/// Runs it as a user does.
fn run(room: &Room, options: &[&str], command: &[&str]) -> Output {
    let run = ["run", "-q", "--seed", "7", "-o", "x.%p.allocsample"];
    room.output(&[&run, options, &["--"], command].concat())
}

fn profiles(room: &Room) -> Vec<Profile> {
    room.names()
        .iter()
        .filter(|name| name.ends_with(".allocsample"))
        .map(|name| Profile::read(&room.path(name)))
        .collect()
}

pub(super) fn name_of_profile(room: &Room) -> String {
    let mut names = room.names().into_iter();
    (names.find(|name| name.ends_with(".allocsample"))).expect("a profile")
}

/// One process; what it prints must be what it prints without the agent.
pub(super) fn profile(lua: &str, options: &[&str], arguments: &[&str]) -> (Output, Profile, Room) {
    let room = Room::new();
    let command = [&[lua], arguments].concat();
    let output = run(&room, options, &command);
    let bare = std::process::Command::new(lua)
        .args(arguments)
        .output()
        .expect("Lua");
    assert_eq!(
        (stdout(&output), stderr(&output), output.status.code()),
        (stdout(&bare), stderr(&bare), bare.status.code())
    );
    let mut profiles = profiles(&room);
    assert_eq!(profiles.len(), 1);
    (output, profiles.remove(0), room)
}

fn known_sites(options: &[&str], times: &str) -> (Output, Profile, Room) {
    let program = bridge::program("known_sites.lua");
    profile("lua5.4", options, &[&program.to_string_lossy(), times])
}

#[test]
fn each_site_is_within_its_error() {
    if !has_lua() {
        return;
    }
    for (interval, times) in [("4K", "1"), ("64K", "4")] {
        let (output, profile, _room) = known_sites(&["--interval", interval], times);
        bridge::assert_near_truth(&profile, &output.stdout, 6);
        bridge::assert_audit(&profile);
    }
}

/// Every version numbers the types of new blocks differently. Lua 5.1 reports none.
#[test]
fn every_version_has_functions_and_the_types_that_it_reports() {
    const OBJECTS: [&str; 4] = ["string", "table", "function", "thread"];
    let program = bridge::program("kinds.lua");
    for (lua, types) in [
        ("lua5.1", &[][..]),
        ("lua5.2", &["upvalue", "prototype"]),
        ("lua5.3", &["prototype"]),
        ("lua5.4", &["upvalue", "prototype"]),
        ("lua5.5", &["upvalue", "prototype"]),
    ] {
        if !is_installed(lua) {
            // Debian 12 has no 5.5.
            skip(&match lua {
                "lua5.5" => "no lua5.5".to_owned(),
                _ => format!("no {lua} (Debian: {lua})"),
            });
            continue;
        }
        let arguments = [&*program.to_string_lossy()];
        let (output, profile, room) = profile(lua, &["--interval", "2K"], &arguments);
        bridge::assert_near_truth(&profile, &output.stdout, 1);
        let named: Vec<_> = (types_of(&room).into_iter())
            .filter(|(_, name, _)| !name.contains("part of"))
            .collect();
        let bytes_of = |function: &str, name: &str| {
            let rows = named
                .iter()
                .filter(|row| row.0 == function && row.1 == name);
            rows.map(|row| row.2).sum::<f64>()
        };
        if types.is_empty() {
            assert!(named.is_empty(), "{lua}: {named:?}");
            continue;
        }
        // 20,000 of each have at least 32 bytes.
        for (kind, function) in OBJECTS.iter().zip(["string", "table", "closure", "thread"]) {
            let bytes = bytes_of(&format!("make_{function}"), kind);
            assert!(bytes > 500e3, "{lua}: {kind} {bytes} {named:?}");
        }
        for (kind, function) in [("upvalue", "make_closure"), ("prototype", "make_prototype")] {
            let bytes = bytes_of(function, kind);
            assert_eq!(
                bytes > 500e3,
                types.contains(&kind),
                "{lua}: {kind} {bytes}"
            );
        }
        let of_others: f64 =
            bytes_of("make_closure", "prototype") + bytes_of("make_string", "table");
        assert!(of_others < 50e3, "{lua}: {named:?}");
    }
}

/// Functions, with the types and bytes of their blocks.
fn types_of(room: &Room) -> Vec<(String, String, f64)> {
    let sql = "SELECT function, type, sum(bytes) AS bytes FROM samples JOIN functions USING (function_id) \
               JOIN types USING (type_id) GROUP BY 1, 2";
    let name = (room.names().into_iter()).find(|name| name.ends_with(".allocsample"));
    let output = room.output(&["query", "--format", "json", &name.expect("a profile"), sql]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().expect(key).to_owned();
    (rows.as_array().expect("rows").iter())
        .map(|row| {
            (
                text(row, "function"),
                text(row, "type"),
                row["bytes"].as_f64().expect("bytes"),
            )
        })
        .collect()
}

/// From Lua 5.4.5 on, a stack cannot be read while it moves to a larger block; it can be read while any other block grows.
#[test]
fn blocks_that_grow_have_functions() {
    const FUNCTIONS: [&str; 3] = ["fill", "insert", "substitute"];
    let program = bridge::program("grows.lua");
    let program = program.to_string_lossy();
    for lua in ["lua5.4", "lua5.5"] {
        if !is_installed(lua) {
            skip(&format!("no {lua}"));
            continue;
        }
        let (_, grown, _room) = profile(lua, &["--interval", "2K"], &[&program]);
        let of_lua = bridge::heap(&grown, "lua")["allocated_bytes"].as_f64();
        let of_functions: f64 = FUNCTIONS
            .iter()
            .map(|name| grown.site(name).allocated_bytes)
            .sum();
        let share = of_functions / of_lua.expect("bytes");
        assert!(share > 0.97, "{lua}: {share}");
        // Stacks that move are in the way of every sample.
        let (_, deep, _room) = profile(lua, &["--interval", "4K"], &[&program, "deep"]);
        assert!(deep.site("descend").samples > 100, "{lua}");
    }
}

fn steered_sites(count: u32, told: bridge::Told) -> [Site; 3] {
    let program = bridge::program("steered_sites.lua");
    let command = ["lua5.4", &*program.to_string_lossy(), &count.to_string()];
    let profile = bridge::steered(&Room::new(), &command, told);
    ["first", "second", "third"].map(|name| profile.site(name))
}

#[test]
fn luas_heap_follows_the_interval() {
    const COUNT: u32 = 1_100_000;
    if has_lua() {
        let sites = steered_sites(COUNT, bridge::INTERVALS);
        bridge::assert_follows(sites, f64::from(COUNT) * 175.0);
    }
}

#[test]
fn luas_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 400_000;
    if has_lua() {
        let sites = steered_sites(COUNT, bridge::STOP_AND_START);
        bridge::assert_rests(sites, f64::from(COUNT) * 175.0, 4e6);
    }
}

#[test]
fn types_lines_coroutines_and_collections_are_told() {
    if !has_lua() {
        return;
    }
    let (_, profile, _room) = known_sites(&["--interval", "4K"], "1");
    let file = bridge::program("known_sites.lua");
    bridge::assert_line(&profile, "small_and_freed", &file, "A .. \"a\"");
    bridge::assert_line(&profile, "of_a_wrapped_one", &file, "F .. \"f\"");
    // The second coroutine was resumed by the first.
    bridge::assert_stack(
        &profile,
        &["main chunk", "main", "site", "call", "small_and_kept"],
    );
    bridge::assert_stack(
        &profile,
        &["main chunk", "main", "site", "call", "of_a_coroutine"],
    );
    bridge::assert_stack(
        &profile,
        &["main chunk", "main", "site", "call", "of_a_wrapped_one"],
    );
    let types = profile.report["types"].as_array().expect("types");
    let strings = types.iter().find(|row| row["type"] == "string");
    let strings = strings.expect("strings")["allocated_bytes"].as_f64();
    // All sites make strings: 46.8 MB of 48 MB.
    assert!(strings > Some(45e6), "{types:?}");
    let heap = bridge::heap(&profile, "lua");
    assert!(heap["major_collections"].as_f64() > Some(2.0), "{heap}");
    let of_malloc = bridge::heap(&profile, "malloc")["allocated_bytes_exact"].as_f64();
    assert!(of_malloc < Some(500e3), "counted twice: {of_malloc:?}");
}

#[test]
fn collections_are_told_one_by_one() {
    if !has_lua() {
        return;
    }
    let code = "collectgarbage('stop'); for _ = 1, 50 do collectgarbage() end; print('done')";
    let (_, profile, _room) = profile("lua5.4", &["--interval", "4K"], &["-e", code]);
    let told = bridge::heap(&profile, "lua")["major_collections"].as_f64();
    // The witness of the last one is finalized at its end, or when the state is closed.
    assert!((Some(49.0)..=Some(52.0)).contains(&told), "{told:?}");
}

#[test]
fn the_leak_is_found() {
    if has_lua() {
        let program = bridge::program("leaky.lua");
        let command = ["lua5.4", &program.to_string_lossy(), "300000"];
        bridge::assert_leak(&command, "open_session");
    }
}

/// Stacks that grow, errors, tail calls, deep recursion, closed states and finalizers at the end.
#[test]
fn the_program_is_as_it_was() {
    if !has_lua() {
        return;
    }
    let code = "
        local function deep(n) if n == 0 then return 0 end return 1 + deep(n - 1) end
        for i = 1, 20 do assert(coroutine.wrap(function() return deep(1000 * i) end)() == 1000 * i) end
        print(pcall(deep, 1e7))
        local function tail(n) if n == 0 then return ('t'):rep(5000) end return tail(n - 1) end
        for _ = 1, 200 do tail(50) end
        local t = setmetatable({}, {__gc = function() print('finalized') end})
        local co = coroutine.create(function(...) coroutine.yield(...) ; error(7) end)
        print(coroutine.resume(co, 1, 2), coroutine.status(co)) ; print(coroutine.resume(co))
        print(coroutine.close(coroutine.create(print)))
        collectgarbage('generational') ; local all = {}
        for i = 1, 20000 do all[i % 1000] = {i, tostring(i)} end
        local f = load('local x = ... ; return {x, x .. \"!\"}') ; for i = 1, 5000 do f(i) end
        table.sort(all, function(a, b) return a[2] < b[2] end)
        io.stderr:write('said\\n')
        os.exit(7, true)";
    for interval in ["256", "4K", "512K"] {
        let (output, _, _room) = profile("lua5.4", &["--interval", interval], &["-e", code]);
        assert_eq!(output.status.code(), Some(7));
        assert!(stdout(&output).ends_with("finalized\n"));
    }
}

#[test]
fn the_users_own_init_runs_and_the_bridge_can_be_left_out() {
    if !has_lua() {
        return;
    }
    let room = Room::new();
    let arguments = [
        "run",
        "-q",
        "-o",
        "a.allocsample",
        "--",
        "lua5.4",
        "-e",
        "print(greeting)",
    ];
    let mut command = room.command(&arguments);
    let output = command
        .env("LUA_INIT_5_4", "greeting = 'hello'")
        .output()
        .expect("Lua");
    assert_eq!(
        (stdout(&output).as_str(), stderr(&output).as_str()),
        ("hello\n", "")
    );
    assert!(bridge::has_heap(
        &Profile::read(&room.path("a.allocsample")),
        "lua"
    ));
    let (_, profile, _room) = known_sites(&["--interval", "4K", "--runtime", "none"], "1");
    assert!(!bridge::has_heap(&profile, "lua"));
    let of_malloc = bridge::heap(&profile, "malloc")["allocated_bytes_exact"].as_f64();
    assert!(of_malloc > Some(45e6), "{of_malloc:?}");
}

/// By a script and by a first line with #!. What the user has set for Lua runs, and is all that the program and its
/// children find in their environment.
#[test]
fn an_interpreter_is_seen_whoever_starts_it() {
    if !has_lua() {
        return;
    }
    let room = Room::new();
    room.write_executable(r#"a "b" \ c.lua"#, "greeting = 'hello'");
    room.write_executable(
        "of_first_line",
        "#!/usr/bin/env lua5.4\n\
         print(greeting, os.getenv('LUA_INIT'), os.getenv('LUA_INIT_5_3'))\n\
         kept = {} ; for i = 1, 20000 do kept[i] = 'kept ' .. i end\n\
         os.execute('env | grep ^LUA_INIT | sort')\n\
         os.execute([[lua5.4 -e 'print(greeting)']])\n",
    );
    let script = "env SOME=thing nice ./of_first_line";
    for (options, has_heaps) in [(&[][..], true), (&["--runtime", "none"], false)] {
        let run = ["run", "-q", "-o", "%n.%p.allocsample", "--interval", "4K"];
        let command = [&run, options, &["--", "sh", "-c", script]].concat();
        let output = (room.command(&command))
            .env("LUA_INIT", r#"@a "b" \ c.lua"#)
            .env("LUA_INIT_5_3", "greeting = 'no'")
            .output()
            .expect("Lua");
        let variables = "LUA_INIT=@a \"b\" \\ c.lua\nLUA_INIT_5_3=greeting = 'no'\n";
        let expected = format!("hello\t@a \"b\" \\ c.lua\tgreeting = 'no'\n{variables}hello\n");
        assert_eq!(
            (stdout(&output), stderr(&output)),
            (expected, String::new())
        );
        let (of_lua, others): (Vec<_>, Vec<_>) = (room.names().into_iter())
            .filter(|name| name.ends_with(".allocsample"))
            .partition(|name| name.starts_with("lua5.4."));
        assert_eq!(of_lua.len(), 2, "{of_lua:?} {others:?}");
        let heaps: Vec<_> = (of_lua.iter())
            .map(|name| Profile::read(&room.path(name)))
            .filter(|profile| bridge::has_heap(profile, "lua"))
            .map(|profile| bridge::heap(&profile, "lua")["allocated_bytes"].as_f64())
            .collect();
        assert_eq!(heaps.len(), if has_heaps { 2 } else { 0 }, "{heaps:?}");
        let has_kept = heaps.iter().any(|bytes| *bytes > Some(8e5));
        assert_eq!(has_kept, has_heaps, "{heaps:?}");
        for name in room.names() {
            if name.ends_with(".allocsample") {
                std::fs::remove_file(room.path(&name)).expect("a profile");
            }
        }
    }
}

/// Who joins again has each block once.
#[test]
fn a_state_is_joined_once() {
    if !has_lua() {
        return;
    }
    let bytes_of = |times: u32| {
        let room = Room::new();
        let code = format!(
            "local join = package.loadlib('{}', 'luaopen_allocsample')
             for i = 1, {times} do join(coroutine.resume, coroutine.wrap(function() end)) end
             for i = 1, 100000 do local s = 'x' .. i .. ('y'):rep(100) end",
            room.agent().display()
        );
        run(&room, &["--interval", "4K"], &["lua5.4", "-e", &code]);
        let profile = profiles(&room).remove(0);
        let bytes = bridge::heap(&profile, "lua")["allocated_bytes_exact"].as_f64();
        bytes.expect("bytes")
    };
    let (none, three) = (bytes_of(0), bytes_of(3));
    assert!(none > 20e6, "{none}");
    assert!((three / none - 1.0).abs() < 1e-3, "{three} {none}");
}

/// As in Neovim and HAProxy: such a program does not read LUA_INIT.
#[test]
fn a_program_that_embeds_the_shared_library_has_its_interpreters_sampled() {
    let code = "local kept = {}
         function keep(i) kept[i] = {('x'):rep(90) .. i} end
         for i = 1, 40000 do keep(i) end
         local fill = coroutine.create(function() for i = 40001, 60000 do keep(i) end end)
         coroutine.resume(fill)
         collectgarbage() print(#kept)";
    for (flags, is_jit) in [
        (&["-l:libluajit-5.1.so.2", "-DJIT", "-lpthread"][..], true),
        (&["-l:liblua5.4.so.0", "-lpthread"], false),
    ] {
        if !has_library(flags[0].trim_start_matches("-l:")) {
            skip(&format!("no {}", flags[0]));
            continue;
        }
        let program = Program::compiled_with("lua_embedded.c", flags);
        let outcome = (program.run().args(&[code])).unchanged(&Agent::at_interval("4K").seeded(7));
        outcome.assert_success();
        let profile = outcome.profile();
        let heap = bridge::heap(&profile, "lua");
        // 60,000 tables, each with an array and a string.
        assert!(heap["allocated_bytes"].as_f64() > Some(9e6), "{heap}");
        if is_jit {
            assert!(heap["major_collections"].as_f64() >= Some(1.0), "{heap}");
        } else {
            bridge::assert_stack(&profile, &["main", "main chunk", "keep"]);
            bridge::assert_stack(
                &profile,
                &["main", "main chunk", "function at line_4", "keep"],
            );
        }
        bridge::assert_audit(&profile);
    }
}

/// The agent would wait for a lock that the thread has that it is called by.
#[test]
fn a_build_with_locks_of_its_own_is_left_alone_and_the_report_says_so() {
    const FLAGS: [&str; 3] = ["-rdynamic", "-l:liblua5.4.so.0", "-lpthread"];
    if !has_library("liblua5.4.so.0") {
        skip("no liblua5.4.so.0");
        return;
    }
    let program = Program::compiled_with("lua_locked.c", &FLAGS);
    let outcome = program.run().unchanged(&Agent::at_interval("4K"));
    outcome.assert_success();
    assert_has_locks(&outcome.profile());

    let mut running = Attached::start_by("lua_locked.c", &FLAGS, |room| {
        std::process::Command::new(room.path("attached"))
    });
    running.attach(&["--interval", "4K"]);
    for _ in 0..2 {
        assert_eq!(running.ask("work"), "worked");
    }
    assert_has_locks(&running.detach());
    assert_eq!(running.ask("work"), "worked");
    running.ends_well();
}

#[track_caller]
fn assert_has_locks(profile: &Profile) {
    let notes = profile.report["notes"].to_string();
    assert!(notes.contains("has locks of its own"), "{notes}");
    assert_eq!(bridge::heap(profile, "lua")["allocated_bytes"], 0.0);
    let malloc = bridge::heap(profile, "malloc")["allocated_bytes"].as_f64();
    assert!(malloc > Some(1e6), "{malloc:?}");
}

fn has_library(name: &str) -> bool {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ];
    (folders.iter()).any(|folder| std::path::Path::new(folder).join(name).exists())
}

const RUNNING: &str = r#"
local prefix, body = {}, ("g"):rep(2966)
for i = 1, 60000 do prefix[i] = ("%08d"):format(i) end
local made = 0
function grow(i) return prefix[i] .. body .. "!" end
function work(count)
  -- Of the functions that Lua 5.3 calls up to here none can be watched.
  local sum = 0 * os.clock()
  for i = 1, count do made = made % 60000 + 1 sum = sum + #grow(made) end
  return ("%d"):format(sum)
end
print("ready")
io.stdout:flush()
while true do
  local count = tonumber(io.read() or "end")
  if not count then break end
  print(work(count))
  io.stdout:flush()
end
os.exit(3)
"#;

/// The interpreters have no calls through slots, and LuaJIT's functions seldom call its interface.
#[test]
fn a_running_interpreter_is_attached_to_with_functions() {
    for command in [
        &["lua5.1"][..],
        &["lua5.2"],
        &["lua5.3"],
        &["lua5.4"],
        &["luajit", "-joff"],
    ] {
        if !is_installed(command[0]) {
            skip(&format!("no {} (Debian: {0})", command[0]));
            continue;
        }
        let running = Attached::start_as(|room| {
            let file = room.path("running.lua");
            std::fs::write(&file, RUNNING).expect("the script");
            let mut interpreter = std::process::Command::new(command[0]);
            interpreter.args(&command[1..]).arg(file);
            interpreter
        });
        bridge::assert_joined_by_attach(
            running,
            &bridge::Work {
                stack: &["main chunk", "work", "grow"],
                bytes: 3000.0,
                answer: 2975,
            },
        );
    }
}
