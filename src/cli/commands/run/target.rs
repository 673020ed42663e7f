//! Whether the agent can get into a program: what the dynamic loader will be asked to load, and by whom.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use allocsample_goheap::Runtime;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadCache};

use super::preload;

/// How the agent gets into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By LD_PRELOAD.
    Preload,
    /// It is a part of the program, which has its Rust allocator wrapped by `allocsample_global::Sampled`.
    Inside,
    /// Not at all: it is a Go program that no agent can get into, and the samples of its runtime are read from outside.
    Outside,
}

/// A program that LD_PRELOAD does not reach.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The program, or the interpreter of a script.
    pub path: PathBuf,
    /// Why.
    pub why: Why,
}

/// Why LD_PRELOAD does not reach a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has no dynamic loader.
    Static,
    /// It runs as another user.
    Setuid,
    /// It runs as another group.
    Setgid,
    /// It gets capabilities that we do not have.
    Capabilities,
    /// It is made for another machine, or for 32 bits.
    OtherMachine,
    /// Its dynamic loader is one that the agent was not tried with; this one.
    OtherLoader(String),
    /// It runs with a sanitizer; this one.
    Sanitizer(&'static str),
    /// The loader does not take the agent, for this reason.
    NotLoadable(String),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Why::Static => write!(f, "{path} is statically linked: LD_PRELOAD cannot reach it"),
            Why::Setuid => write!(f, "{path} is setuid: the loader ignores LD_PRELOAD for it"),
            Why::Setgid => write!(f, "{path} is setgid: the loader ignores LD_PRELOAD for it"),
            Why::Capabilities => write!(
                f,
                "{path} has file capabilities: the loader ignores LD_PRELOAD for it"
            ),
            Why::OtherMachine => write!(
                f,
                "{path} is not a 64-bit {} program: the agent does not fit into it",
                std::env::consts::ARCH
            ),
            Why::OtherLoader(loader) => write!(
                f,
                "{path} uses {loader}, which is neither glibc's loader nor musl's: the agent does not fit into it"
            ),
            Why::Sanitizer(name) => {
                write!(f, "{path} runs with {name}, which replaces malloc itself")
            }
            Why::NotLoadable(why) => {
                write!(f, "{path} cannot take the agent's library ({why})")
            }
        }?;
        f.write_str("; it runs without a profile")
    }
}

impl Why {
    /// Whether it is a Go program, whose samples can be read without an agent.
    fn leaves_go(&self, path: &Path) -> bool {
        let is_only_of_agent = matches!(
            self,
            Self::Static | Self::OtherLoader(_) | Self::Sanitizer(_) | Self::NotLoadable(_)
        );
        is_only_of_agent && Runtime::is_go(path).unwrap_or(false)
    }
}

/// Looks at the program that `path` starts, through the interpreters of scripts, with `preload` for LD_PRELOAD. What cannot be
/// read is left to the kernel to refuse.
pub fn check(path: &Path, preload: &OsString) -> Result<Way, Unreachable> {
    let mut path = path.to_owned();
    // The kernel follows four interpreters of interpreters.
    for _ in 0..=4 {
        let Ok(mut file) = File::open(&path) else {
            // Execute-only programs can be run and not read; setuid is all that can be seen of them.
            return match gains_privilege(&path) {
                Some(why) => Err(Unreachable { path, why }),
                None => Ok(Way::Preload),
            };
        };
        let mut start = [0; 256];
        let length = read_start(&mut file, &mut start);
        match &start[..length] {
            [b'#', b'!', line @ ..] => match interpreter(line) {
                Some(interpreter) => path = interpreter,
                None => return Ok(Way::Preload),
            },
            [0x7f, b'E', b'L', b'F', ..] => {
                let way = match contains_agent(&file) {
                    true => Way::Inside,
                    false => Way::Preload,
                };
                if let Some(why) = gains_privilege(&path) {
                    return Err(Unreachable { path, why });
                }
                let refusal = match way {
                    Way::Preload => cannot_load(&file, &path, preload),
                    Way::Inside | Way::Outside => None,
                };
                return match refusal {
                    None => Ok(way),
                    Some(why) if why.leaves_go(&path) => Ok(Way::Outside),
                    Some(why) => Err(Unreachable { path, why }),
                };
            }
            // Not a format that the kernel knows: the shell runs it as a script.
            _ => path = PathBuf::from("/bin/sh"),
        }
    }
    Ok(Way::Preload)
}

/// Whether an ELF file has the note of `allocsample_global`.
fn contains_agent(file: &File) -> bool {
    let file = ReadCache::new(file);
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(&file) else {
        return false;
    };
    let Ok(endian) = header.endian() else {
        return false;
    };
    let segments = header.program_headers(endian, &file).unwrap_or_default();
    segments.iter().any(|segment| {
        let Ok(Some(mut notes)) = segment.notes(endian, &file) else {
            return false;
        };
        std::iter::from_fn(move || notes.next().ok().flatten())
            .any(|note| note.name() == b"allocsample")
    })
}

fn read_start(file: &mut File, start: &mut [u8]) -> usize {
    let mut length = 0;
    while let Ok(more @ 1..) = file.read(&mut start[length..]) {
        length += more;
    }
    length
}

/// The interpreter in the rest of a `#!` line.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|&byte| byte == b' ' || byte == b'\t');
    let path = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// Whether the kernel will raise our privileges for this file, so that the loader stops trusting the environment.
fn gains_privilege(path: &Path) -> Option<Why> {
    let metadata = fs::metadata(path).ok()?;
    let no_setuid = rustix::fs::statvfs(path).is_ok_and(|filesystem| {
        filesystem
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::NOSUID)
    });
    if no_setuid {
        return None;
    }
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    if metadata.mode() & 0o4000 != 0 && metadata.uid() != uid.as_raw() {
        return Some(Why::Setuid);
    }
    // Without the group's execute bit, the setgid bit means something else.
    if metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != gid.as_raw() {
        return Some(Why::Setgid);
    }
    // Root has every capability already.
    let mut nothing: [u8; 0] = [];
    let has_capabilities =
        rustix::fs::getxattr(path, c"security.capability", &mut nothing[..]).is_ok();
    (has_capabilities && !uid.is_root()).then_some(Why::Capabilities)
}

/// Whether an ELF file's loader can take our library.
fn cannot_load(file: &File, path: &Path, preload: &OsString) -> Option<Why> {
    let file = ReadCache::new(file);
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(&file) else {
        return Some(Why::OtherMachine);
    };
    let endian = header.endian().ok()?;
    let machine = match std::env::consts::ARCH {
        "x86_64" => elf::EM_X86_64,
        "aarch64" => elf::EM_AARCH64,
        // A machine that we know nothing about: the loader will tell.
        _ => header.e_machine(endian),
    };
    if header.e_machine(endian) != machine {
        return Some(Why::OtherMachine);
    }
    let segments = header.program_headers(endian, &file).ok()?;
    let loader = segments
        .iter()
        .find_map(|segment| segment.interpreter(endian, &file).ok().flatten());
    let Some(loader) = loader else {
        return (!is_glibc_loader_itself(segments, endian, &file)).then_some(Why::Static);
    };
    let name = loader.rsplit(|&byte| byte == b'/').next()?;
    if !is_known_loader(name) {
        return Some(Why::OtherLoader(
            String::from_utf8_lossy(loader).into_owned(),
        ));
    }
    if let Some(sanitizer) = preload::linked_sanitizer(dynamic_symbols(header, endian, &file)) {
        return Some(Why::Sanitizer(sanitizer));
    }
    preload::refusal(preload::path_of(loader), path, preload)
}

/// The names of the symbols that a file offers to libraries and needs of them, each with whether the file defines it.
fn dynamic_symbols<'data>(
    header: &elf::FileHeader64<Endianness>,
    endian: Endianness,
    file: &'data ReadCache<&File>,
) -> impl Iterator<Item = (&'data [u8], bool)> {
    let sections = header.sections(endian, file).ok();
    let symbols = sections.and_then(|it| it.symbols(endian, file, elf::SHT_DYNSYM).ok());
    let symbols = symbols.unwrap_or_default();
    symbols.symbols().iter().filter_map(move |symbol| {
        let name = symbols.symbol_name(endian, symbol).ok()?;
        Some((name, !symbol.is_undefined(endian)))
    })
}

/// glibc's, or musl's where the agent was tried with it.
fn is_known_loader(name: &[u8]) -> bool {
    [&b"ld-linux"[..], b"ld64.so", b"ld.so", b"ld-musl-x86_64"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// The loader can be run as a program (`/lib64/ld-linux-x86-64.so.2 ./app`): it has no loader, but heeds LD_PRELOAD.
fn is_glibc_loader_itself<'data, R: object::ReadRef<'data>>(
    segments: &[elf::ProgramHeader64<Endianness>],
    endian: Endianness,
    file: R,
) -> bool {
    let Some(dynamic) = segments
        .iter()
        .find_map(|segment| segment.dynamic(endian, file).ok().flatten())
    else {
        return false;
    };
    // A static position-independent program has a dynamic section as well, but no name.
    dynamic
        .iter()
        .any(|entry| entry.d_tag.get(endian) == elf::DT_SONAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn interpreters_are_read_as_the_kernel_does() {
        let read = |line: &[u8]| interpreter(line).map(|path| path.display().to_string());
        assert_eq!(read(b"/bin/sh\necho"), Some("/bin/sh".into()));
        assert_eq!(
            read(b" \t/usr/bin/env python3\n"),
            Some("/usr/bin/env".into())
        );
        assert_eq!(read(b"  \n"), None);
    }

    #[test]
    fn a_dynamic_program_can_be_reached_and_so_can_its_scripts() {
        let (directory, none) = (tempfile::tempdir().unwrap(), OsString::new());
        let script = directory.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(check(Path::new("/bin/sh"), &none), Ok(Way::Preload));
        assert_eq!(check(&script, &none), Ok(Way::Preload));
    }

    #[test]
    fn a_script_that_interprets_itself_ends() {
        let (directory, none) = (tempfile::tempdir().unwrap(), OsString::new());
        let script = directory.path().join("script");
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(check(&script, &none), Ok(Way::Preload));
    }

    #[test]
    fn a_32_bit_header_is_another_machine() {
        let (directory, none) = (tempfile::tempdir().unwrap(), OsString::new());
        let program = directory.path().join("program");
        let mut header = [0u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        fs::write(&program, header).unwrap();
        let error = check(&program, &none).unwrap_err();
        assert_eq!(error.why, Why::OtherMachine);
        assert!(error.to_string().contains("it runs without a profile"));
    }

    #[test]
    fn a_setuid_bit_counts_only_for_another_users_file() {
        let (directory, none) = (tempfile::tempdir().unwrap(), OsString::new());
        let program = directory.path().join("program");
        fs::copy("/bin/true", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(check(&program, &none), Ok(Way::Preload));
    }
}
