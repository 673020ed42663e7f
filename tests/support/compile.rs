//! Compiles the programs of tests/programs, each combination of source and flags once.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Run, is_installed, scratch};

/// A compiled program or library.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
}

impl Program {
    /// Compiles tests/programs/`source`, by the compiler that its ending asks for, into a program.
    pub fn compiled(source: &str) -> Program {
        Self::compiled_with(source, &[])
    }

    /// The same with further flags.
    pub fn compiled_with(source: &str, flags: &[&str]) -> Program {
        Self::build(source, flags, "")
    }

    /// Compiles a shared library; `name` is its file name.
    pub fn library(source: &str, name: &str, flags: &[&str]) -> Program {
        let flags = [&["-shared", "-fPIC"], flags].concat();
        Self::build(source, &flags, name)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Prepares to run it.
    pub fn run(&self) -> Run {
        Run::of(&self.path)
    }

    fn build(source: &str, flags: &[&str], name: &str) -> Program {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let source = sources.join(source);
        let stem = source.file_stem().expect("a source file").to_string_lossy();
        let mut hasher = DefaultHasher::new();
        hash_source(&source, &mut hasher);
        (flags, compiler(&source)).hash(&mut hasher);
        let directory = scratch()
            .join("programs")
            .join(format!("{stem}-{:016x}", hasher.finish()));
        let path = directory.join(if name.is_empty() { &*stem } else { name });
        if !path.exists() {
            compile(&source, flags, &path);
        }
        Program { path }
    }
}

/// Whether the compiler for a source file is there: not every machine has Fortran or Go.
pub fn can_compile(source: &str) -> bool {
    is_installed(compiler(Path::new(source))[0])
}

fn compiler(source: &Path) -> &'static [&'static str] {
    match source.extension().and_then(|ending| ending.to_str()) {
        Some("c") => &[
            "cc",
            "-std=gnu11",
            "-O2",
            "-g",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
        ],
        Some("cpp") => &[
            "c++",
            "-std=gnu++17",
            "-O2",
            "-g",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
        ],
        Some("rs") => &["rustc", "--edition", "2021", "-O", "-g"],
        Some("f90") => &["gfortran", "-O2", "-g", "-Wall"],
        Some("go") => &["go", "build"],
        _ => panic!("no compiler is known for {}", source.display()),
    }
}

/// A source file is what is in it and in the files of ours that it includes.
fn hash_source(source: &Path, hasher: &mut DefaultHasher) {
    let text =
        fs::read_to_string(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    text.hash(hasher);
    for line in text.lines() {
        if let Some(included) = line.strip_prefix("#include \"") {
            hash_source(
                &source.with_file_name(included.trim_end_matches('"')),
                hasher,
            );
        }
    }
}

/// Compiles aside, then gives it its name, for other tests may want the same program at the same time.
fn compile(source: &Path, flags: &[&str], path: &Path) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let directory = path.parent().expect("a directory");
    fs::create_dir_all(directory).expect("a place for compiled programs");
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let aside = directory.join(format!("{}.{number}", std::process::id()));
    let [program, fixed @ ..] = compiler(source) else {
        unreachable!("every compiler has a name");
    };
    let is_go = *program == "go";
    let mut command = Command::new(program);
    command.args(fixed).arg("-o").arg(&aside);
    if is_go {
        command
            .args(flags)
            .arg(source)
            .env("CGO_ENABLED", "1")
            .env("GO111MODULE", "off");
    } else {
        // Libraries to link with come after what needs them.
        command.arg(source).args(flags);
    }
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Not over a file that is there: a test that runs it already would find it deleted.
    match fs::hard_link(&aside, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            panic!("{}: {error}", path.display())
        }
        _ => fs::remove_file(&aside).expect("a compiled program"),
    }
}
