//! Language runtimes that must be told of the agent on their command line.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

/// A JVM's launchers are small programs that load this library.
const LAUNCHER_LIBRARY: &[u8] = b"libjli.so\0";
const LARGEST_LAUNCHER: u64 = 1 << 20;

/// The command line with what the program's runtime needs; `agent` is the library's path.
///
/// A JVM takes `-agentpath`, as `java` itself or with `-J` as its tools (`javac`, `jar`, ...). It could be told in
/// JAVA_TOOL_OPTIONS too, for children as well, but says so on stderr then.
pub fn command_line(program: &Path, command: &[OsString], agent: &Path) -> Vec<OsString> {
    let mut command = command.to_vec();
    if is_jvm_launcher(program) {
        let is_java = program.file_name() == Some(OsStr::new("java"));
        let mut option = OsString::from(if is_java {
            "-agentpath:"
        } else {
            "-J-agentpath:"
        });
        option.push(agent);
        command.insert(1.min(command.len()), option);
    }
    command
}

fn is_jvm_launcher(program: &Path) -> bool {
    let is_small = fs::metadata(program).is_ok_and(|file| file.len() <= LARGEST_LAUNCHER);
    is_small
        && fs::read(program).is_ok_and(|bytes| {
            bytes.starts_with(b"\x7fELF")
                && bytes
                    .windows(LAUNCHER_LIBRARY.len())
                    .any(|window| window == LAUNCHER_LIBRARY)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_launchers_of_a_jvm_get_an_option() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let elf = |library: &[u8]| [b"\x7fELF....", library].concat();
        let command: Vec<OsString> = ["java", "Main"].map(OsString::from).to_vec();
        let with = |path: &Path| command_line(path, &command, Path::new("/lib/agent.so"));
        let java = write("java", &elf(b"libjli.so\0"));
        assert_eq!(with(&java), ["java", "-agentpath:/lib/agent.so", "Main"]);
        let javac = write("javac", &elf(b"libjli.so\0"));
        assert_eq!(with(&javac)[1], "-J-agentpath:/lib/agent.so");
        for other in [
            write("other", &elf(b"libc.so.6\0")),
            write("script", b"#!/bin/sh\nexec java -cp libjli.so\0"),
            directory.path().join("none"),
        ] {
            assert_eq!(with(&other), command);
        }
    }
}
