//! Promise: LuaJIT's functions are in the profile, and programs that it runs and compiles are as they were.

use super::lua::{name_of_profile, profile};
use crate::support::room::{stderr, stdout};
use crate::support::{Program, bridge, is_installed, skip};

fn has_luajit() -> bool {
    let has = is_installed("luajit");
    if !has {
        skip("no LuaJIT (Debian: luajit)");
    }
    has
}

/// Also in coroutines, error handlers, metamethods, hooks, iterators and callbacks from C.
#[test]
fn functions_of_luajits_interpreter_are_within_their_errors() {
    if !has_luajit() {
        return;
    }
    let file = bridge::program("luajit_sites.lua");
    let arguments = ["-joff", &file.to_string_lossy(), "20000"];
    let (output, profile, room) = profile("luajit", &["--interval", "4K"], &arguments);
    bridge::assert_near_truth(&profile, &output.stdout, 9);
    bridge::assert_audit(&profile);
    bridge::assert_line(&profile, "plain", &file, ".. \"a\" end");
    bridge::assert_line(&profile, "of_a_callback", &file, ".. \"h\" end");
    for stack in [
        &["main chunk", "main", "plain"][..],
        &["main chunk", "main", "of_a_coroutine"],
        // The second coroutine was resumed by the first.
        &[
            "main chunk",
            "main",
            "function at line_46",
            "function at line_51",
            "of_a_wrapped_one",
        ],
        &["main chunk", "main", "protected"],
        &["main chunk", "main", "of_a_callback"],
    ] {
        bridge::assert_stack(&profile, stack);
    }
    let heap = bridge::heap(&profile, "lua");
    assert!(heap["major_collections"].as_f64() > Some(2.0), "{heap}");
    let report = stdout(&room.output(&["report", &name_of_profile(&room)]));
    assert!(!report.contains("LuaJIT compiles"), "{report}");
}

/// What a compiled loop or function allocates is charged to the function in which it begins, and the report says so.
#[test]
fn functions_of_luajits_compiled_code_are_those_in_which_it_begins() {
    const CODE: &str = "
        local kept = {}
        for i = 1, 200 do kept[i] = false end
        function fill(count) for i = 1, count do kept[i % 200 + 1] = {i, i} end end
        function one(i) return {i, i, i} end
        function inlines(count) for i = 1, count do kept[i % 200 + 1] = one(i) end end
        local function work()
            fill(200000)
            coroutine.wrap(function() inlines(200000) end)()
        end
        work()
        print(#kept)";
    if !has_luajit() {
        return;
    }
    let (_, compiled, room) = profile("luajit", &["--interval", "4K"], &["-e", CODE]);
    let of_lua = bridge::heap(&compiled, "lua")["allocated_bytes"].as_f64();
    let of = |name| compiled.site(name).allocated_bytes;
    let share = (of("fill") + of("inlines")) / of_lua.expect("bytes");
    assert!(share > 0.97, "{share}");
    // Of two and three numbers: the arrays of the former have 24 bytes or more, and all tables 32 or more.
    assert!(of("fill") > 200e3 * 56.0 && of("inlines") > 200e3 * 64.0);
    bridge::assert_stack(&compiled, &["main chunk", "work", "fill"]);
    bridge::assert_stack(&compiled, &["main chunk", "work", "inlines"]);
    let report = stdout(&room.output(&["report", &name_of_profile(&room)]));
    assert!(report.contains("LuaJIT compiles code"), "{report}");
    assert!(!report.contains("lines of Lua are not shown"), "{report}");
    let options = ["--interval", "4K", "--inlining", "off"];
    let (_, apart, _room) = profile("luajit", &options, &["-e", CODE]);
    assert!(apart.site("one").allocated_bytes > 200e3 * 64.0);
}

/// Samples of nearly every block: in traces while they are recorded, entered and left, on stacks that grow, and in failing code.
#[test]
fn luajit_is_as_it_was_when_nearly_every_block_is_a_sample() {
    const CODE: &str = "
        local function deep(n) if n == 0 then return {} end local t = deep(n - 1) t[#t + 1] = n return t end
        local sum = 0
        for i = 1, 30 do sum = sum + #coroutine.wrap(function() return deep(100 * i) end)() end
        print(sum, (select(2, pcall(function() local function f() return 1 + f() end return f() end))))
        local function fib(n) if n < 2 then return {n} end return {fib(n - 1)[1] + fib(n - 2)[1]} end
        print(fib(18)[1])
        local P = {} ; P.__index = P ; P.__add = function(a, b) return setmetatable({v = a.v + b.v}, P) end
        P.__concat = function(a, b) return tostring(a.v) .. tostring(b) end
        local p = setmetatable({v = 0}, P)
        for i = 1, 3000 do p = p + setmetatable({v = i}, P) end
        print(p.v, p .. 'x')
        local words, count = {}, 0
        for i = 1, 3000 do
            local w = ('w%d'):format(i * 7919 % 997)
            words[w] = (words[w] or 0) + 1
            if i % 3 == 0 then w = w:gsub('%d', function(d) return d .. d end):upper() end
            count = count + #w
        end
        local names = {} for w in pairs(words) do names[#names + 1] = w end table.sort(names)
        print(count, #names, names[1], table.concat(names, ',', 1, 5))
        local failed = 0
        for i = 1, 2000 do
            local ok, e = pcall(function() local t = {i} if i % 5 == 0 then error(t) end return t[1] .. '' end)
            if not ok then failed = failed + e[1] end
        end
        print(failed)
        local all = {}
        for i = 1, 200 do
            all[i] = coroutine.create(function(a) for k = 1, 20 do a = coroutine.yield({a, k})[1] end error({}) end)
        end
        local total = 0
        for k = 1, 20 do for i = 1, 200 do
            local _, v = coroutine.resume(all[i], {i + k}) total = total + (type(v[1]) == 'table' and v[1][1] or v[1]) + v[2]
        end end
        print(total)
        local ffi = require('ffi')
        ffi.cdef('typedef struct { double x, y; } point_of_test;')
        local point, x = ffi.metatype('point_of_test', {__add = function(a, b) return ffi.new('point_of_test', a.x + b.x, a.y + b.y) end}), 0
        local q = point(0, 0) for i = 1, 3000 do q = q + point(i, -i) if i % 100 == 0 then x = x + q.x end end
        print(q.x, q.y, x)
        for i = 1, 3 do local f = loadstring('local s = 0 for i = 1, 200 do local t = {i} s = s + #t + t[1] end return s') sum = sum + f() jit.flush() end
        print(sum)
        jit.opt.start('hotloop=2', 'hotexit=2')
        for i = 1, 2000 do local t = i % 7 == 0 and {i} or i % 5 == 0 and tostring(i) or i % 3 == 0 and {} or i sum = sum + (type(t) == 'number' and t or #t) end
        print(sum)
        collectgarbage('step', 100) collectgarbage() collectgarbage()
        os.exit(5, true)";
    if !has_luajit() {
        return;
    }
    for (mode, interval) in [
        ("-jon", "64"),
        ("-joff", "64"),
        ("-jon", "1K"),
        ("-jon", "64K"),
    ] {
        let arguments = [mode, "-e", CODE];
        let (output, _, _room) = profile("luajit", &["--interval", interval], &arguments);
        assert_eq!(output.status.code(), Some(5));
        assert_eq!(stdout(&output).lines().count(), 9, "{}", stderr(&output));
    }
}

#[test]
fn luajit_may_be_closed_after_the_library_that_wraps_its_functions() {
    if !has_luajit() {
        return;
    }
    let library = Program::library("luajit_wrapper.c", "luajit_wrapper.so", &[]);
    let load = format!(
        "print(package.loadlib('{}', 'luaopen_wrapper')())",
        library.path().display()
    );
    // What is finalized after the library was: all that is older, the witness of a collection too.
    let (_, profile, _room) = profile("luajit", &["--interval", "4K"], &["-e", &load]);
    let heap = bridge::heap(&profile, "lua");
    assert!(heap["major_collections"].as_f64() >= Some(1.0), "{heap}");
}
