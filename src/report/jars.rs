//! The jar of a class of Java, found by the class path in the command line.
//!
//! A virtual machine that names a class does not say which file it came from. The first jar of the class path that has the
//! class is the one that was loaded, unless the program has loaders of its own. `guava-33.0.0-jre.jar` says which version.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use allocsample_profile::Profile;
use zip::ZipArchive;

use crate::versions::is_unchanged;

/// Further ones are not opened.
const MOST_JARS: usize = 1000;
const CLASS: &str = ".class";

/// The jars of a process's class path.
#[derive(Debug, Default)]
pub struct Jars(Vec<Jar>);

#[derive(Debug)]
struct Jar {
    /// `guava 33.0.0-jre`
    package: Option<String>,
    /// It is the program: it was given with `-jar`, or has the main class.
    is_program: bool,
    /// The names of its classes: `com/google/common/cache/LocalCache$Segment.class`. In a set, because the archive's own lookup reads
    /// its whole list for a name that is missing, and every class is missing from most jars.
    classes: HashSet<Box<str>>,
}

impl Jars {
    /// Those that have not changed since a profile began; none without a heap of Java.
    pub fn of(profile: &Profile) -> Self {
        let mut heaps = profile.vm.heaps.values();
        if !heaps.any(|heap| heap.name == "java") {
            return Self::default();
        }
        let start = UNIX_EPOCH + Duration::from_nanos(profile.process.start_wall_ns);
        Self::of_command_line(&profile.process.command_line, start)
    }

    fn of_command_line(command_line: &[String], since: SystemTime) -> Self {
        let command = Command::parse(command_line);
        let files = command.jars().into_iter().take(MOST_JARS);
        let unchanged = files.filter(|file| is_unchanged(file, since));
        let mut jars: Vec<Jar> = unchanged.filter_map(|file| Jar::open(&file)).collect();
        let program = match command.main_class {
            Some(class) => jars.iter_mut().find(|jar| jar.has(class)),
            None => jars.first_mut(),
        };
        if let Some(program) = program {
            program.is_program = true;
        }
        Self(jars)
    }

    /// Name and version of the jar that has a class: `com.google.common.cache.LocalCache$Segment`.
    pub(crate) fn package(&self, class: &str) -> Option<String> {
        self.jar(class)?.package.clone()
    }

    /// Whether a class comes from a jar that is not the program's own.
    pub(crate) fn is_library(&self, class: &str) -> bool {
        self.jar(class).is_some_and(|jar| !jar.is_program)
    }

    fn jar(&self, class: &str) -> Option<&Jar> {
        self.0.iter().find(|jar| jar.has(class))
    }
}

impl Jar {
    fn open(file: &Path) -> Option<Self> {
        let archive = ZipArchive::new(BufReader::new(File::open(file).ok()?)).ok()?;
        let names = archive.file_names().flatten();
        Some(Self {
            package: package_of(file.file_stem()?.to_str()?),
            is_program: false,
            classes: (names.filter(|name| name.ends_with(CLASS)))
                .map(Box::from)
                .collect(),
        })
    }

    fn has(&self, class: &str) -> bool {
        let entry = class.replace('.', "/") + CLASS;
        self.classes.contains(entry.as_str())
    }
}

/// Maven's names: the version begins with a digit after the last such hyphen.
fn package_of(stem: &str) -> Option<String> {
    let mut hyphens = stem.rmatch_indices('-').map(|(at, _)| at);
    let is_version = |at: &usize| stem[at + 1..].starts_with(|it: char| it.is_ascii_digit());
    let at = hyphens.find(is_version).filter(|at| *at > 0)?;
    Some(format!("{} {}", &stem[..at], &stem[at + 1..]))
}

/// What a command line asks of the virtual machine.
struct Command<'a> {
    class_path: &'a str,
    /// `None` with `-jar`.
    main_class: Option<&'a str>,
}

impl<'a> Command<'a> {
    fn parse(command_line: &'a [String]) -> Self {
        /// Options with an argument of their own, besides those of the class path.
        const PAIRS: [&str; 9] = [
            "-p",
            "--module-path",
            "--upgrade-module-path",
            "--add-modules",
            "--add-exports",
            "--add-opens",
            "--add-reads",
            "--limit-modules",
            "--patch-module",
        ];
        let mut class_path = "";
        let mut arguments = command_line.iter().skip(1).map(String::as_str);
        while let Some(argument) = arguments.next() {
            match argument {
                "-cp" | "-classpath" | "--class-path" => {
                    class_path = arguments.next().unwrap_or_default();
                }
                // The class path does not count then.
                "-jar" => {
                    return Self {
                        class_path: arguments.next().unwrap_or_default(),
                        main_class: None,
                    };
                }
                _ if PAIRS.contains(&argument) => drop(arguments.next()),
                _ => match argument.strip_prefix("--class-path=") {
                    Some(given) => class_path = given,
                    // Arguments of the program follow.
                    None if !argument.starts_with('-') => {
                        return Self {
                            class_path,
                            main_class: Some(argument),
                        };
                    }
                    None => {}
                },
            }
        }
        Self {
            class_path,
            main_class: Some(""),
        }
    }

    /// Files of the class path, in its order; every jar of a directory for `lib/*`.
    fn jars(&self) -> Vec<PathBuf> {
        self.class_path.split(':').flat_map(expanded).collect()
    }
}

fn expanded(element: &str) -> Vec<PathBuf> {
    let is_jar = |path: &PathBuf| path.extension().is_some_and(|it| it == "jar");
    match element.strip_suffix('*') {
        Some(directory) => {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let mut jars: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_jar).collect();
            // The order of a directory means nothing; that of names can be repeated.
            jars.sort();
            jars
        }
        None => Some(PathBuf::from(element))
            .filter(is_jar)
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn write_jar(path: &Path, classes: &[&str]) {
        let mut jar = ZipWriter::new(File::create(path).unwrap());
        let stored =
            SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for class in classes {
            jar.start_file(*class, stored).unwrap();
            jar.write_all(b"\xca\xfe\xba\xbe").unwrap();
        }
        jar.finish().unwrap();
    }

    #[test]
    fn the_first_jar_with_the_class_names_the_version() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("lib")).unwrap();
        write_jar(
            &at("lib/guava-33.0.0-jre.jar"),
            &["com/g/Cache$Segment.class"],
        );
        write_jar(&at("lib/slf4j-api-2.0.9.jar"), &["org/slf4j/Logger.class"]);
        write_jar(&at("app.jar"), &["shop/Main.class"]);
        write_jar(&at("lib/zz-old-1.0.jar"), &["org/slf4j/Logger.class"]);
        std::fs::write(at("lib/broken-1.0.jar"), "no archive").unwrap();
        let path = format!(
            "{}:classes:{}/*",
            at("app.jar").display(),
            at("lib").display()
        );
        let command_line = ["java", "-Xmx1g", "-cp", &path, "shop.Main", "-jar", "x.jar"];
        let command_line = command_line.map(str::to_owned);
        let future = SystemTime::now() + Duration::from_secs(60);
        let jars = Jars::of_command_line(&command_line, future);
        let package = |class: &str| jars.package(class);
        assert_eq!(
            package("com.g.Cache$Segment").as_deref(),
            Some("guava 33.0.0-jre")
        );
        assert_eq!(
            package("org.slf4j.Logger").as_deref(),
            Some("slf4j-api 2.0.9")
        );
        // A jar without a version, and a class of none.
        assert_eq!(
            (package("shop.Main"), package("java.util.HashMap")),
            (None, None)
        );
        // The jar with the main class is the program, the others are not.
        for (class, is_library) in [
            ("shop.Main", false),
            ("com.g.Cache$Segment", true),
            ("java.util.HashMap", false),
        ] {
            assert_eq!(jars.is_library(class), is_library, "{class}");
        }
        let lib = at("lib/guava-33.0.0-jre.jar").display().to_string();
        let as_program = ["java", "-jar", &lib].map(str::to_owned);
        let jars_as_program = Jars::of_command_line(&as_program, future);
        assert!(!jars_as_program.is_library("com.g.Cache$Segment"));
        // Every file is younger than that.
        let jars = Jars::of_command_line(&command_line, UNIX_EPOCH);
        assert_eq!(jars.package("org.slf4j.Logger"), None);
    }

    #[test]
    fn the_class_path_is_what_the_virtual_machine_takes_for_it() {
        let jars = |arguments: &[&str]| -> Vec<String> {
            let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
            let jars = Command::parse(&arguments).jars().into_iter();
            jars.map(|jar| jar.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            jars(&["java", "-cp", "a.jar:classes:b.jar", "Main"]),
            ["a.jar", "b.jar"]
        );
        assert_eq!(jars(&["java", "--class-path=a.jar", "Main"]), ["a.jar"]);
        assert_eq!(
            jars(&["java", "-cp", "a.jar", "-jar", "b.jar", "-cp", "c.jar"]),
            ["b.jar"]
        );
        let opened = [
            "java",
            "--add-opens",
            "a/b=ALL-UNNAMED",
            "-cp",
            "a.jar",
            "Main",
        ];
        assert_eq!(jars(&opened), ["a.jar"]);
        assert_eq!(jars(&["java", "Main", "-cp", "a.jar"]), [""; 0]);
        assert_eq!(jars(&["java", "-cp"]), [""; 0]);
        assert_eq!(jars(&[]), [""; 0]);
    }

    #[test]
    fn a_version_begins_with_a_digit() {
        for (stem, package) in [
            ("guava-33.0.0-jre", Some("guava 33.0.0-jre")),
            ("log4j-1.2-api-2.20.0", Some("log4j-1.2-api 2.20.0")),
            ("app", None),
            ("commons-io", None),
            ("-1", None),
        ] {
            assert_eq!(package_of(stem).as_deref(), package, "{stem}");
        }
    }
}
