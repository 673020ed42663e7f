//! Names made for the purpose, any text, and the names of the libraries of D.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;

#[path = "../../../../../tests/support/skip.rs"]
mod skip;

fn shown(name: &str) -> Option<String> {
    demangle(name, Parameters::Hidden)
}

#[test]
fn names_are_without_parameters() {
    for (mangled, name) in [
        ("_Dmain", "D main"),
        (
            "_D11known_truth11leakSessionFZAh",
            "known_truth.leakSession",
        ),
        (
            "_D4core8internal2gc4bits6GCBits5allocMFNbNimbZv",
            "core.internal.gc.bits.GCBits.alloc",
        ),
        ("_D3app5Queue6__ctorMFiZCQwQu", "app.Queue.this"),
        ("_D3app__T3mapTiZQhFNfiZi", "app.map!(int).map"),
        ("_D3app4mainFZ5innerMFZv", "app.main.inner"),
    ] {
        assert_eq!(shown(mangled).as_deref(), Some(name), "{mangled}");
    }
}

#[test]
fn other_names_are_none_of_d() {
    for name in [
        "", "_D", "_Data", "_Z3foov", "_DYNAMIC", "_D3app", "_D3appQ", "_D9app", "_D0",
    ] {
        assert_eq!(shown(name), None, "{name}");
    }
}

/// GNU binutils demangle the names of the libraries of D as we do. They are there where a compiler of D is.
#[test]
fn binutils_demangle_the_libraries_of_d_alike() {
    let libraries = [
        "/usr/lib/x86_64-linux-gnu/libphobos2-ldc-shared.so.100",
        "/usr/lib/x86_64-linux-gnu/libdruntime-ldc-shared.so.100",
        "/usr/lib/x86_64-linux-gnu/libgphobos.so.3",
    ];
    let there: Vec<_> = libraries
        .into_iter()
        .filter(|it| std::path::Path::new(it).exists())
        .collect();
    if there.is_empty() {
        return skip::skip("no library of D is installed (Debian: gdc, ldc)");
    }
    let listed = Command::new("nm").arg("-D").args(there).output();
    let listed = String::from_utf8(listed.expect("nm").stdout).expect("names");
    // Data has other words before its name.
    let is_function = |line: &&str| line.contains(" T ") || line.contains(" W ");
    let names: Vec<&str> = listed
        .lines()
        .filter(is_function)
        .filter_map(|line| line.rsplit(' ').next())
        .map(|name| name.split('@').next().unwrap_or(name))
        .filter(|name| name.starts_with("_D"))
        .collect();
    let mut filter = Command::new("c++filt")
        .arg("--format=dlang")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("c++filt");
    let mut stdin = filter.stdin.take().expect("a pipe");
    let text = names.join("\n") + "\n";
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let theirs = filter.wait_with_output().expect("c++filt").stdout;
    writer.join().expect("a thread").expect("a pipe");
    let theirs = String::from_utf8_lossy(&theirs).into_owned();
    let mut compared = 0;
    let mut wrong = Vec::new();
    for (mangled, theirs) in names.iter().zip(theirs.lines()) {
        // Those that binutils give up are no measure, nor are those of data.
        if theirs == *mangled || theirs.contains(" for ") {
            continue;
        }
        compared += 1;
        // They know this one only where its type has no attributes.
        let theirs = theirs.replace(".__postblit()", ".this(this)()");
        let ours = demangle(mangled, Parameters::Shown).unwrap_or_default();
        if ours != theirs {
            wrong.push(format!("{mangled}\n  ours   {ours}\n  theirs {theirs}"));
        }
    }
    assert!(compared > 10_000, "{compared} of {}", names.len());
    eprintln!("compared {compared} of {} names", names.len());
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}

#[test]
fn a_name_that_refers_to_itself_ends() {
    let twice = |inner: &str| format!("S1a__T1bT{inner}TQ{}Z", "b");
    let mut name = "i".to_owned();
    for _ in 0..40 {
        name = twice(&name);
    }
    let _ = shown(&format!("_D1a1bF{name}Zv"));
    assert_eq!(shown("_D1aFAQbZv"), None);
    assert_eq!(shown(&format!("_D1aF{}iZv", "A".repeat(100_000))), None);
}

#[test]
fn entries_of_interfaces_have_the_name_of_their_function() {
    let name = "_D4core8internal2gc4impl6manualQp8ManualGC6mallocMFNbmkxC8TypeInfoZPv";
    let method = Some("core.internal.gc.impl.manual.gc.ManualGC.malloc".to_owned());
    assert_eq!(shown(name), method);
    for thunk in ["_DTi16", "_DTn8"] {
        assert_eq!(shown(&format!("{thunk}{name}")), method);
    }
    for none in ["_DTi16", "_DTi_D3app1fFZv", "_DTi163app1fFZv"] {
        assert_eq!(shown(none), None, "{none}");
    }
}

proptest! {
    #[test]
    fn any_text_is_demangled_or_not(tail in "[A-Za-z0-9_]{0,200}") {
        let _ = shown(&format!("_D{tail}"));
    }

    #[test]
    fn near_names_are_demangled_or_not(at in 0_usize..80, byte in "[A-Za-z0-9_]") {
        let name = "_D3std5range__T4takeTSQrQp__T6RepeatTiZQkZQBkFNaNbNiNfQBmmZSQCn__TQBzTQCkZQCq";
        let mut name = name.to_owned();
        name.replace_range(at.min(name.len() - 1)..=at.min(name.len() - 1), &byte);
        if let Some(shown) = shown(&name) {
            prop_assert!(shown.len() <= LONGEST + name.len());
        }
    }

    #[test]
    fn identifiers_are_kept(parts in proptest::collection::vec("[a-z][A-Za-z0-9_]{0,12}", 1..6)) {
        prop_assume!(parts.iter().all(|it| !it.starts_with("__")));
        let mangled: String = parts.iter().map(|it| format!("{}{it}", it.len())).collect();
        prop_assert_eq!(shown(&format!("_D{mangled}FZv")), Some(parts.join(".")));
    }
}
