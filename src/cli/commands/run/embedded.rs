//! The agent's library inside of the command, for a command that was installed alone.
//!
//! The dynamic loader opens the library by its path in every process of the program, also in those that outlive the
//! command or run as another user. So it is a file with a name that stays: one for each content, so that several versions
//! can be used at the same time. Nobody else may write to it or replace it, and what is there is compared before it is used.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::library::{NAME, is_plain};
use crate::output_file;

#[cfg(embedded)]
const LIBRARY: Option<&[u8]> = Some(include_bytes!(env!("ALLOCSAMPLE_EMBEDDED_LIBRARY")));
#[cfg(not(embedded))]
const LIBRARY: Option<&[u8]> = None;

/// The library; `None` in a build for tests.
pub fn library() -> Option<&'static [u8]> {
    LIBRARY
}

/// A file with this library that the loader can open, written if it is not there yet.
pub fn write_out(library: &[u8]) -> anyhow::Result<PathBuf> {
    let places = places();
    let mut refusals = Vec::new();
    for place in &places {
        match write_into(place, library) {
            Ok(path) => return Ok(path),
            Err(error) => refusals.push(format!("{error:#}")),
        }
    }
    bail!(
        "no directory can take {NAME} ({}); set TMPDIR, or write it with `allocsample install --into DIR` and set ALLOCSAMPLE_LIBRARY",
        refusals.join("; ")
    )
}

/// Directories of ours to try, in this order. Programs that root runs may become other users, who must be able to read it.
fn places() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = match uid {
        0 => Some(PathBuf::from("/var/cache")),
        _ => variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache"))),
    };
    let own = cache.map(|cache| cache.join("allocsample"));
    let shared = [
        std::env::temp_dir(),
        "/tmp".into(),
        "/var/tmp".into(),
        "/dev/shm".into(),
    ];
    let shared = shared.map(|directory| directory.join(format!("allocsample-{uid}")));
    let mut places: Vec<PathBuf> = own.into_iter().chain(shared).collect();
    places.retain(|place| place.is_absolute() && is_plain(place));
    places.dedup();
    places
}

fn write_into(place: &Path, library: &[u8]) -> anyhow::Result<PathBuf> {
    make_ours(place)?;
    let flags = statvfs(place)
        .with_context(|| place.display().to_string())?
        .f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        bail!("{}: is mounted noexec", place.display());
    }
    let directory = place.join(directory_name(library));
    make_ours(&directory)?;
    let path = directory.join(NAME);
    if !holds(&path, library) {
        output_file::install(&path, library, 0o755)?;
    }
    Ok(path)
}

/// Differs with the content.
fn directory_name(library: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
}

/// Makes a directory, unless it is there and nobody else can write to it.
fn make_ours(directory: &Path) -> anyhow::Result<()> {
    let named = || directory.display().to_string();
    output_file::shared_directory(directory).with_context(named)?;
    let about = fs::symlink_metadata(directory).with_context(named)?;
    if !about.is_dir() || !is_only_ours(&about) {
        bail!("{}: is not a directory of this user alone", named());
    }
    Ok(())
}

fn is_only_ours(about: &fs::Metadata) -> bool {
    about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0
}

/// Whether a file is there that has this content and that nobody else can change.
fn holds(path: &Path, library: &[u8]) -> bool {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path);
    let Ok(mut file) = file else {
        return false;
    };
    let is_ours = file.metadata().is_ok_and(|about| {
        about.is_file() && is_only_ours(&about) && about.len() == library.len() as u64
    });
    let mut found = Vec::new();
    is_ours && file.read_to_end(&mut found).is_ok() && found == library
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_library_is_written_once_and_again_if_it_was_changed() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("cache/allocsample");
        let path = write_into(&place, b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert!(path.ends_with(NAME));
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let first = inode(&path);
        assert_eq!(write_into(&place, b"one").unwrap(), path);
        assert_eq!(inode(&path), first);
        // Another content is another file; this one stays.
        let other = write_into(&place, b"two").unwrap();
        assert_ne!(other, path);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::write(&path, b"odd").unwrap();
        write_into(&place, b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        // Everybody can write to it: perhaps somebody has it open.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let before = inode(&path);
        write_into(&place, b"one").unwrap();
        assert_ne!(inode(&path), before);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("allocsample");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(write_into(&place, b"one").is_err());
        let link = home.path().join("link");
        let target = home.path().join("target");
        fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert!(write_into(&link, b"one").is_err());
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_place_of_the_library_is_replaced_and_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("allocsample");
        let path = write_into(&place, b"one").unwrap();
        let target = home.path().join("target");
        fs::write(&target, b"one").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&target, &path).unwrap();
        write_into(&place, b"one").unwrap();
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn every_place_is_one_that_ld_preload_can_carry() {
        let places = places();
        assert!(places.len() >= 3, "{places:?}");
        assert!(places.iter().all(|place| is_plain(place)));
    }
}
