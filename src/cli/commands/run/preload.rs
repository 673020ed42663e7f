//! Whether the dynamic loader will take the agent into a program: asked before the program is started.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::target::Why;

/// Why the loader would not take the library; `None` if it takes it, or if that cannot be found out.
///
/// The loader lists what it would load, and runs nothing of it. A complaint that it has with the agent and not without would
/// stand on the program's stderr, or keep the program from running: a library that the agent needs is missing, the file
/// system of the agent is mounted noexec, the libc is too old.
pub fn refusal(loader: &Path, program: &Path, preload: &OsString) -> Option<Why> {
    let with = list(loader, program, Some(preload))?;
    if let Some(name) = loaded_sanitizer(&with.stdout) {
        return Some(Why::Sanitizer(name));
    }
    let complaint = complaint(&with)?;
    let without = list(loader, program, None)?;
    // It has a trouble of its own then, and will say so.
    (without.status.success() && !has_complaint(&without)).then_some(Why::NotLoadable(complaint))
}

/// What the loader says with this LD_PRELOAD, or with the user's.
fn list(loader: &Path, program: &Path, preload: Option<&OsString>) -> Option<Output> {
    let mut command = Command::new(loader);
    command.arg("--list").arg(program).stdin(Stdio::null());
    if let Some(preload) = preload {
        command.env("LD_PRELOAD", preload);
    }
    // These make the loader say or write something else.
    for variable in [
        "LD_DEBUG",
        "LD_DEBUG_OUTPUT",
        "LD_PROFILE",
        "LD_AUDIT",
        "LD_VERBOSE",
    ] {
        command.env_remove(variable);
    }
    command.output().ok()
}

fn has_complaint(output: &Output) -> bool {
    complaint(output).is_some()
}

/// The first line that is about something missing.
fn complaint(output: &Output) -> Option<String> {
    let lines = |bytes: &[u8]| -> Vec<String> {
        let lines = bytes.split(|&byte| byte == b'\n');
        let text = lines.map(|line| String::from_utf8_lossy(line).trim().to_owned());
        text.filter(|line| !line.is_empty()).collect()
    };
    let on_stderr = lines(&output.stderr);
    let missing = lines(&output.stdout)
        .into_iter()
        .filter_map(|line| Some(line.strip_suffix("=> not found")?.trim().to_owned()))
        .map(|library| format!("{library} is missing"));
    let first = on_stderr.into_iter().chain(missing).next()?;
    // "sh: error while loading shared libraries: x.so: why", or
    // "ERROR: ld.so: object '/x.so' from LD_PRELOAD cannot be preloaded (why): ignored."
    const NOT_LOADED: &str = "error while loading shared libraries: ";
    if let Some((_, why)) = first.split_once(NOT_LOADED) {
        return Some(why.to_owned());
    }
    let why = first
        .split_once("cannot be preloaded (")
        .and_then(|(_, rest)| rest.split_once(')'))
        .map(|(why, _)| why.to_owned());
    Some(why.unwrap_or(first))
}

/// The sanitizer that is linked into a program, by the names of its dynamic symbols, each with whether the program defines
/// it. Sanitizers replace malloc themselves, and their programs end at once if another library does so before them.
///
/// Other names are not looked at: there can be hundreds of megabytes of them, and Go's race detector has one of these among
/// them, though it leaves malloc alone.
pub fn linked_sanitizer<'a>(
    symbols: impl Iterator<Item = (&'a [u8], bool)>,
) -> Option<&'static str> {
    /// Its runtime is in the program, and nothing says which it is: gcc's, without names.
    const UNNAMED: &str = "a sanitizer";
    let (mut has_malloc, mut has_runtime) = (false, false);
    for (name, is_defined) in symbols {
        match name {
            b"__asan_init" => return Some("AddressSanitizer"),
            b"__hwasan_init" => return Some("HWAddressSanitizer"),
            b"__tsan_init" => return Some("ThreadSanitizer"),
            b"__msan_init" => return Some("MemorySanitizer"),
            b"__lsan_init" => return Some("LeakSanitizer"),
            b"malloc" => has_malloc |= is_defined,
            // UndefinedBehaviorSanitizer has it too, without a malloc.
            _ => has_runtime |= name.starts_with(b"__sanitizer_"),
        }
    }
    (has_malloc && has_runtime).then_some(UNNAMED)
}

/// The sanitizer whose library is among those that the loader lists: another library needs it, or the user preloads it.
fn loaded_sanitizer(listed: &[u8]) -> Option<&'static str> {
    const LIBRARIES: [(&str, &str); 7] = [
        ("libasan.so", "AddressSanitizer"),
        ("libclang_rt.asan", "AddressSanitizer"),
        ("libhwasan.so", "HWAddressSanitizer"),
        ("libclang_rt.hwasan", "HWAddressSanitizer"),
        ("libtsan.so", "ThreadSanitizer"),
        ("libclang_rt.tsan", "ThreadSanitizer"),
        ("liblsan.so", "LeakSanitizer"),
    ];
    let listed = String::from_utf8_lossy(listed);
    listed.lines().find_map(|line| {
        // "\tlibc.so.6 => /lib/libc.so.6 (0x7f)", or only a path where the name is one.
        let path = line.split_whitespace().next()?;
        let name = path.rsplit('/').next()?;
        let mut found = LIBRARIES.iter();
        found
            .find(|(start, _)| name.starts_with(start))
            .map(|&(_, sanitizer)| sanitizer)
    })
}

/// A path as the loader gives it in an ELF file.
pub fn path_of(name: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_sanitizer_is_known_by_the_dynamic_symbols_of_its_program() {
        let linked = |symbols: &[(&'static str, bool)]| {
            linked_sanitizer(symbols.iter().map(|(name, is)| (name.as_bytes(), *is)))
        };
        assert_eq!(linked(&[]), None);
        let of_library = [("malloc", false), ("__asan_init", false)];
        assert_eq!(linked(&of_library), Some("AddressSanitizer"));
        assert_eq!(linked(&[("__asan_init_v4", true)]), None);
        let runtime = ("__sanitizer_symbolize_code", false);
        let in_program = [runtime, ("malloc", true)];
        assert_eq!(linked(&in_program), Some("a sanitizer"));
        assert_eq!(linked(&[runtime, ("malloc", false)]), None);
        assert_eq!(linked(&[("malloc", true)]), None);
    }

    #[test]
    fn a_sanitizer_is_known_by_its_library() {
        let listed = |line: &str| {
            loaded_sanitizer(format!("\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n{line}").as_bytes())
        };
        assert_eq!(listed(""), None);
        assert_eq!(
            listed("\tlibtsan.so.2 => /lib/libtsan.so.2 (0x7f)"),
            Some("ThreadSanitizer")
        );
        assert_eq!(
            listed("\t/opt/libasan.so.8 (0x7f)"),
            Some("AddressSanitizer")
        );
        assert_eq!(listed("\t/libasan.so/libx.so (0x7f)"), None);
    }

    #[test]
    fn the_loader_is_quoted_in_a_few_words() {
        let said = |stdout: &str, stderr: &str| {
            complaint(&Output {
                status: ExitStatus::from_raw(0),
                stdout: stdout.into(),
                stderr: stderr.into(),
            })
        };
        assert_eq!(said("\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n", ""), None);
        assert_eq!(
            said("\tlibgcc_s.so.1 => not found\n", "").as_deref(),
            Some("libgcc_s.so.1 is missing")
        );
        let ignored = "ERROR: ld.so: object '/a.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.\n";
        let fatal = "/bin/sh: error while loading shared libraries: a.so: cannot open\n";
        assert_eq!(said("", fatal).as_deref(), Some("a.so: cannot open"));
        assert_eq!(
            said("", ignored).as_deref(),
            Some("cannot open shared object file")
        );
    }
}
