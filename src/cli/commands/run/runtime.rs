//! Language runtimes that must be told of the agent in their environment.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// An interpreter of Lua is a small program, which runs what this variable holds, and names it in its code.
const LUA_INIT: &str = "LUA_INIT";
const LARGEST_INTERPRETER: u64 = 1 << 20;

/// The variables for the program's runtime; `variable` looks one up in the user's environment.
///
/// Lua's interpreters run LUA_INIT first, or LUA_INIT_5_4 and its like instead: what the user has in them comes after
/// what we put in front. Children that are not under the agent must not load it.
pub fn environment(
    program: &Path,
    agent: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    if !may_run_lua(program) {
        return Vec::new();
    }
    let names = ["", "_5_1", "_5_2", "_5_3", "_5_4", "_5_5"];
    names
        .iter()
        .filter_map(|version| {
            let name = format!("{LUA_INIT}{version}");
            let users = variable(&name);
            let is_wanted = version.is_empty() || users.is_some();
            is_wanted.then(|| (name.into(), lua_init(agent, users.as_deref())))
        })
        .collect()
}

fn lua_init(agent: &Path, users: Option<&OsStr>) -> OsString {
    let quoted = |text: &[u8]| {
        let escaped = text.iter().flat_map(|&byte| match byte {
            b'"' | b'\\' => vec![b'\\', byte],
            b'\n' => b"\\n".to_vec(),
            other => vec![other],
        });
        [b"\"", &escaped.collect::<Vec<u8>>()[..], b"\""].concat()
    };
    let agent = quoted(agent.as_os_str().as_bytes());
    let users = match users.map(OsStr::as_bytes) {
        Some([b'@', file @ ..]) => [b"dofile(", &quoted(file)[..], b")"].concat(),
        code => code.unwrap_or_default().to_vec(),
    };
    let join = b" if (os.getenv('LD_PRELOAD') or ''):find(agent, 1, true) then \
        local join = package.loadlib(agent, 'luaopen_allocsample') \
        if join then join(coroutine.resume, coroutine.wrap(print)) end end end ";
    let parts: [&[u8]; 4] = [b"do local agent = ", &agent, join, &users];
    OsString::from_vec(parts.concat())
}

/// Whether it is an interpreter of Lua, or a script whose first line asks for one.
fn may_run_lua(program: &Path) -> bool {
    let holds = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    let is_small = fs::metadata(program).is_ok_and(|file| file.len() <= LARGEST_INTERPRETER);
    is_small
        && fs::read(program).is_ok_and(|bytes| match &bytes[..] {
            [b'#', b'!', ..] => {
                let line = bytes.split(|&byte| byte == b'\n').next();
                line.is_some_and(|line| holds(line, b"lua"))
            }
            _ => bytes.starts_with(b"\x7fELF") && holds(&bytes, LUA_INIT.as_bytes()),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interpreters_of_lua_get_variables_and_keep_the_users() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let agent = Path::new("/a \"b\"/agent.so");
        let lua = write("lua", b"\x7fELF....LUA_INIT\0");
        let set = environment(&lua, agent, |name| match name {
            "LUA_INIT" => Some("@/etc/init.lua".into()),
            "LUA_INIT_5_4" => Some("x = 1".into()),
            _ => None,
        });
        let set: Vec<(String, String)> = set
            .into_iter()
            .map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap()))
            .collect();
        assert_eq!(set.len(), 2);
        assert!(set[0].0 == "LUA_INIT" && set[0].1.ends_with("dofile(\"/etc/init.lua\")"));
        assert!(set[1].0 == "LUA_INIT_5_4" && set[1].1.ends_with("end x = 1"));
        assert!(set[0].1.contains(r#""/a \"b\"/agent.so""#), "{set:?}");
        let count = |path: &Path| environment(path, agent, |_| None).len();
        assert_eq!(
            count(&write("script", b"#!/usr/bin/env lua5.4\nprint(1)\n")),
            1
        );
        assert_eq!(count(&write("other", b"\x7fELF....")), 0);
        assert_eq!(count(&write("shell", b"#!/bin/sh\nlua x\n")), 0);
    }
}
