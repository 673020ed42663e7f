//! The place where every file that a command writes is created.
//!
//! The command may run as root, in directories where everybody may write. So it follows no symbolic link that another
//! user may have put there, writes aside under a random name, and renames: a file is complete or absent. Only their
//! owner can read new files (0600); a file that replaces one of the same user keeps its mode.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::exit::Usage;
use crate::harmless::Harmless;
use crate::memory::RemovedIfItEnds;
use crate::output_bound::Bounded;

const OWNER_ONLY: u32 = 0o600;

/// Writes `path` through `fill`: aside first, then renamed, so that after an error the earlier file is still there.
/// Pipes and devices, which cannot be replaced, are written to directly.
pub fn write(
    path: &Path,
    fill: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    let mode = match place(path)? {
        Place::Free => OWNER_ONLY,
        Place::File { mode } => mode,
        Place::Stream(target) => {
            let file = open_stream(&target).with_context(named)?;
            return finish(BufWriter::new(file), fill)
                .map(drop)
                .with_context(named);
        }
    };
    let directory = directory_of(path);
    let aside = tempfile::Builder::new()
        .prefix(".allocsample-")
        .permissions(Permissions::from_mode(OWNER_ONLY))
        .tempfile_in(directory)
        .with_context(|| {
            format!(
                "{}: cannot write into {}",
                path.display(),
                directory.display()
            )
        })?;
    let kept = RemovedIfItEnds::begin(aside.path());
    let aside = finish(BufWriter::new(aside), fill).with_context(named)?;
    drop(kept);
    aside
        .as_file()
        .set_permissions(Permissions::from_mode(mode))
        .with_context(named)?;
    aside.persist(path).with_context(named)?;
    Ok(())
}

/// Writes files into the directory `path`, creating it if necessary. `fill` writes them into a directory aside; they
/// are renamed when all are complete.
pub fn write_directory(
    path: &Path,
    fill: impl FnOnce(&Aside) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    let is_there = match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() => bail!(link_in_the_way(path)),
        Ok(about) if !about.is_dir() => bail!("{}: is a file; a directory is needed", named()),
        found => found.is_ok(),
    };
    let directory = tempfile::Builder::new()
        .prefix(".allocsample-")
        .tempdir_in(directory_of(path))
        .with_context(named)?;
    let aside = Aside(directory.path().to_owned());
    let kept = RemovedIfItEnds::begin(directory.path());
    fill(&aside).with_context(named)?;
    drop(kept);
    if !is_there {
        DirBuilder::new()
            .mode(0o700)
            .create(path)
            .with_context(named)?;
    }
    // Through a descriptor: the owner of an existing directory could meanwhile replace it by a link.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(path, flags, Mode::empty());
    let place = place.map_err(io::Error::from).with_context(named)?;
    for file in fs::read_dir(&aside.0).with_context(named)? {
        let file = file.with_context(named)?;
        let (name, from) = (file.file_name(), file.path());
        let replaced = rustix::fs::statat(&place, &name, AtFlags::SYMLINK_NOFOLLOW);
        let mode = match replaced {
            Ok(about)
                if FileType::from_raw_mode(about.st_mode) == FileType::RegularFile
                    && is_ours(about.st_uid) =>
            {
                about.st_mode & 0o777
            }
            _ => OWNER_ONLY,
        };
        fs::set_permissions(&from, Permissions::from_mode(mode)).with_context(named)?;
        rustix::fs::renameat(CWD, &from, &place, &name)
            .map_err(io::Error::from)
            .with_context(named)?;
    }
    Ok(())
}

/// Puts a file that everybody may read at `path`, in place of what is there.
pub fn install(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    let mut aside = tempfile::Builder::new()
        .prefix(".allocsample-")
        .permissions(Permissions::from_mode(OWNER_ONLY))
        .tempfile_in(directory_of(path))
        .with_context(named)?;
    let kept = RemovedIfItEnds::begin(aside.path());
    aside.write_all(bytes).with_context(named)?;
    aside
        .as_file()
        .set_permissions(Permissions::from_mode(mode))
        .with_context(named)?;
    drop(kept);
    aside.persist(path).with_context(named)?;
    Ok(())
}

/// Makes a directory and those above it that everybody may enter, whatever the umask is.
pub fn shared_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => shared_directory(parent)?,
        _ => {}
    }
    match DirBuilder::new().create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        // Somebody was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_ours(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

/// A directory that only we can write to.
pub struct Aside(PathBuf);

impl Aside {
    /// A new file in it.
    pub fn create(&self, name: &str) -> io::Result<Bounded<File>> {
        create_new(&self.0.join(name)).map(Bounded::new)
    }
}

/// A new file that only its owner can read.
pub fn create_new(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY)
        .open(path)
}

/// What an output would replace.
enum Place {
    Free,
    File {
        mode: u32,
    },
    /// A pipe, a device, a terminal.
    Stream(PathBuf),
}

/// Gives a file another name, which nothing may have so far.
pub fn rename_to_new(path: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(
        CWD,
        path,
        CWD,
        to,
        RenameFlags::NOREPLACE,
    )?)
}

/// Gives each of two files the other's name.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(
        CWD,
        one,
        CWD,
        other,
        RenameFlags::EXCHANGE,
    )?)
}

/// Makes a directory for its owner alone: `NAME`, or `NAME.2` and so on if there is one.
pub fn new_directory(name: &Path) -> io::Result<PathBuf> {
    const NUMBERS: u32 = 1000;
    let numbered = (2..NUMBERS).map(|number| {
        let mut name = name.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    });
    for name in std::iter::once(name.to_owned()).chain(numbered) {
        match DirBuilder::new().mode(0o700).create(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| name),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Looks at what is at the place of an output, which must be nobody else's.
fn place(path: &Path) -> anyhow::Result<Place> {
    let named = || path.display().to_string();
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Place::Free),
        Err(error) => return Err(error).with_context(named),
    };
    let is_own = is_ours(about.uid());
    if about.is_symlink() {
        // `/dev/stdout` and what a shell makes of `>(command)` are links that the kernel or the system made.
        let is_of_system = ["/dev", "/proc"].iter().any(|root| path.starts_with(root))
            && (is_own || about.uid() == 0);
        if !is_of_system {
            bail!(link_in_the_way(path));
        }
        if fs::metadata(path).with_context(named)?.is_file() {
            bail!(
                "{}: refers to a file; name that file, or write to - instead",
                named()
            );
        }
        return Ok(Place::Stream(path.to_owned()));
    }
    if about.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory)).with_context(named);
    }
    if about.is_file() {
        let mode = if is_own {
            about.mode() & 0o777
        } else {
            OWNER_ONLY
        };
        return Ok(Place::File { mode });
    }
    if !is_own && about.uid() != 0 {
        bail!("{}: is a pipe or device of another user", named());
    }
    Ok(Place::Stream(path.to_owned()))
}

fn link_in_the_way(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path}: is a symbolic link, which outputs do not follow; name its target, or remove it"
    )
}

fn open_stream(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true);
    if !fs::symlink_metadata(path)?.is_symlink() {
        options.custom_flags(libc::O_NOFOLLOW);
    }
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    // It may have been replaced since we looked.
    if kind.is_file() || kind.is_block_device() {
        return Err(io::Error::other("is not a pipe or a terminal"));
    }
    Ok(file)
}

fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Makes a profile through `make`, which gets the path of a file aside, and puts it at `path`, where nothing is yet, when it
/// is whole.
pub fn profile_aside<T>(
    path: &Path,
    make: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if path.as_os_str() == "-" {
        return Err(
            Usage("-: a profile cannot be written to stdout; name a file".to_owned()).into(),
        );
    }
    let is_there = || bail!("{}: already exists", path.display());
    if fs::symlink_metadata(path).is_ok() {
        return is_there();
    }
    let directory = directory_of(path);
    // Beside its place, so that it can be moved there whole.
    let aside = tempfile::Builder::new()
        .prefix(".allocsample-")
        .tempdir_in(directory)
        .with_context(|| format!("{}: cannot write there", directory.display()))?;
    let copy = aside.path().join("x.allocsample");
    let kept = RemovedIfItEnds::begin(aside.path());
    let made = make(&copy)?;
    drop(kept);
    let named = || path.display().to_string();
    fs::set_permissions(&copy, Permissions::from_mode(OWNER_ONLY)).with_context(named)?;
    // Not over what was put there meanwhile, where the file system can tell.
    match rustix::fs::renameat_with(CWD, &copy, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => return is_there(),
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(&copy, path).with_context(named)?,
        renamed => renamed.map_err(io::Error::from).with_context(named)?,
    }
    Ok(made)
}

/// Writes to stdout through `fill`; on a terminal what is written can only be read.
pub fn write_stdout(
    fill: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stdout = io::stdout();
    let written = if stdout.is_terminal() {
        finish(BufWriter::new(Harmless::new(stdout)), fill).map(drop)
    } else {
        finish(BufWriter::new(stdout), fill).map(drop)
    };
    written.context("stdout")
}

/// Writes an answer for scripts to stdout.
pub fn write_json(answer: &impl Serialize) -> anyhow::Result<()> {
    write_stdout(|out| {
        serde_json::to_writer_pretty(&mut *out, answer).map_err(io::Error::from)?;
        Ok(writeln!(out)?)
    })
}

fn finish<W: Write + Send>(
    writer: BufWriter<W>,
    fill: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<()>,
) -> anyhow::Result<W> {
    let mut writer = Bounded::new(writer);
    fill(&mut writer)?;
    let mut writer = writer.into_inner();
    // Also what a line buffer below still holds; `into_inner` flushes only its own.
    writer.flush()?;
    writer
        .into_inner()
        .map_err(|error| error.into_error().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn an_error_leaves_the_old_file_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        fs::write(&path, "old").unwrap();
        let error = write(&path, |out| {
            out.write_all(b"half")?;
            bail!("no more")
        });
        assert!(format!("{:#}", error.unwrap_err()).ends_with("out: no more"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_refused_and_its_target_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("link"), directory.path().join("file"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for _ in 0..2 {
            // The first time it leads nowhere.
            let error = write(&link, |out| Ok(out.write_all(b"new")?)).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_ne!(fs::read(&target).unwrap_or_default(), b"new");
            fs::write(&target, "old").unwrap();
        }
        let error = write_directory(&link, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }

    #[test]
    fn new_files_are_their_owners_alone_and_others_keep_their_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        write(&path, |out| Ok(out.write_all(b"a")?)).unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write(&path, |out| Ok(out.write_all(b"b")?)).unwrap();
        assert_eq!((mode(), &*fs::read_to_string(&path).unwrap()), (0o644, "b"));
    }

    #[test]
    fn files_of_a_directory_replace_links_and_keep_the_mode_of_files() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("out"), directory.path().join("file"));
        fs::write(&target, "old").unwrap();
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(&target, path.join("link")).unwrap();
        fs::write(path.join("shared"), "old").unwrap();
        fs::set_permissions(path.join("shared"), Permissions::from_mode(0o640)).unwrap();
        let fill = |aside: &Aside| {
            for name in ["link", "shared", "new"] {
                aside.create(name)?.write_all(b"new")?;
            }
            Ok(())
        };
        write_directory(&path, fill).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        for (name, expected) in [("link", 0o600), ("shared", 0o640), ("new", 0o600)] {
            let about = fs::symlink_metadata(path.join(name)).unwrap();
            assert!(about.is_file(), "{name}");
            assert_eq!(about.mode() & 0o777, expected, "{name}");
            assert_eq!(fs::read_to_string(path.join(name)).unwrap(), "new");
        }
    }

    #[test]
    fn a_profile_does_not_replace_what_came_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let made = profile_aside(&path, |aside| {
            fs::write(aside, "profile")?;
            fs::write(&path, "another's")?;
            Ok(())
        });
        assert!(made.unwrap_err().to_string().contains("already exists"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        write(Path::new("/dev/null"), |out| Ok(out.write_all(b"gone")?)).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
