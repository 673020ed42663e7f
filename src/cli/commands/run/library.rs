//! Where liballocsample.so is, and a path to it that LD_PRELOAD can carry.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::TempDir;

use super::embedded;

/// Its name, by which an attach knows it again.
pub const NAME: &str = "liballocsample.so";

/// The agent's library, under a path without the characters that LD_PRELOAD splits at or expands.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    /// Holds the link that `path` is, if one was needed; removed with it.
    _link: Option<TempDir>,
}

impl Library {
    /// Looks for the library: `$ALLOCSAMPLE_LIBRARY`, around the executable, inside of it.
    pub fn find() -> anyhow::Result<Self> {
        let given = std::env::var_os("ALLOCSAMPLE_LIBRARY").filter(|path| !path.is_empty());
        let path = match given {
            Some(path) => {
                let path = PathBuf::from(path);
                if !path.is_file() {
                    bail!(
                        "{}: no such file; ALLOCSAMPLE_LIBRARY must name {NAME}",
                        path.display()
                    );
                }
                path
            }
            None => {
                let executable =
                    std::env::current_exe().context("cannot find the path of this program")?;
                match (around(&executable), embedded::library()) {
                    (Err(_), Some(library)) => embedded::write_out(library)?,
                    (found, _) => found?,
                }
            }
        };
        let path = std::path::absolute(&path).with_context(|| path.display().to_string())?;
        Self::under_plain_path(path)
    }

    /// The path to put into LD_PRELOAD.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn under_plain_path(path: PathBuf) -> anyhow::Result<Self> {
        if is_plain(&path) {
            return Ok(Self { path, _link: None });
        }
        let directories = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()];
        let directory = directories
            .iter()
            .filter(|directory| is_plain(directory))
            .find_map(|directory| {
                // Readable for a program that gives up its user id, writable only for us.
                tempfile::Builder::new()
                    .prefix("allocsample-")
                    .permissions(fs::Permissions::from_mode(0o755))
                    .tempdir_in(directory)
                    .ok()
            });
        let Some(directory) = directory else {
            bail!(
                "{}: LD_PRELOAD cannot carry this path, and no directory for a link to it is writable; move it, or set TMPDIR",
                path.display()
            );
        };
        let link = directory.path().join(NAME);
        std::os::unix::fs::symlink(&path, &link)
            .with_context(|| format!("{}: cannot link to {NAME}", link.display()))?;
        Ok(Self {
            path: link,
            _link: Some(directory),
        })
    }
}

/// LD_PRELOAD with our library in front of what the user has in it.
pub fn preload(library: &Path, users: Option<&OsStr>) -> OsString {
    let mut preload = library.as_os_str().to_owned();
    let entries = users
        .map(OsStr::as_bytes)
        .unwrap_or_default()
        .split(|&byte| is_separator(byte))
        // A run inside of a run: once is enough.
        .filter(|entry| !entry.is_empty() && *entry != library.as_os_str().as_bytes());
    for entry in entries {
        preload.push(":");
        preload.push(OsStr::from_bytes(entry));
    }
    preload
}

fn is_separator(byte: u8) -> bool {
    byte == b':' || byte == b' '
}

/// The loader splits LD_PRELOAD at colons and blanks, and replaces `$ORIGIN`, `$LIB` and `$PLATFORM`.
pub fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    !bytes.iter().any(|&byte| is_separator(byte) || byte == b'$')
}

fn around(executable: &Path) -> anyhow::Result<PathBuf> {
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(Path::new("/"));
    // In cargo's target directory the two copies are built by different commands: the newer one counts.
    let built = [directory.join(NAME), directory.join("deps").join(NAME)]
        .into_iter()
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max_by_key(|(modified, _)| *modified)
        .map(|(_, path)| path);
    let installed = || {
        [prefix.join("lib/allocsample"), prefix.join("lib")]
            .into_iter()
            .map(|directory| directory.join(NAME))
            .find(|path| path.is_file())
    };
    built.or_else(installed).with_context(|| {
        format!(
            "{NAME} was not found in {}, {prefix}/lib/allocsample and {prefix}/lib; build or install it, or set ALLOCSAMPLE_LIBRARY to its path",
            directory.display(),
            prefix = prefix.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_entries_stay_behind_ours() {
        let library = Path::new("/opt/liballocsample.so");
        let with = |users: &str| preload(library, Some(OsStr::new(users)));
        assert_eq!(preload(library, None), "/opt/liballocsample.so");
        assert_eq!(with(""), "/opt/liballocsample.so");
        assert_eq!(
            with("/a.so /b.so::c.so"),
            "/opt/liballocsample.so:/a.so:/b.so:c.so"
        );
        assert_eq!(
            with("/a.so:/opt/liballocsample.so"),
            "/opt/liballocsample.so:/a.so"
        );
    }

    #[test]
    fn a_path_that_the_loader_would_split_gets_a_link_that_goes_away() {
        for name in ["a:b", "a b", "a$LIB"] {
            let directory = tempfile::tempdir().unwrap();
            let odd = directory.path().join(name);
            fs::create_dir(&odd).unwrap();
            fs::write(odd.join(NAME), "elf").unwrap();
            let library = Library::under_plain_path(odd.join(NAME)).unwrap();
            let link = library.path().to_owned();
            assert!(is_plain(&link));
            assert_eq!(fs::read_to_string(&link).unwrap(), "elf");
            drop(library);
            assert!(!link.parent().unwrap().exists());
        }
    }

    #[test]
    fn the_newer_of_two_built_libraries_counts_and_the_build_comes_before_an_installation() {
        let prefix = tempfile::tempdir().unwrap();
        let bin = prefix.path().join("bin");
        let executable = bin.join("allocsample");
        fs::create_dir_all(bin.join("deps")).unwrap();
        fs::create_dir_all(prefix.path().join("lib/allocsample")).unwrap();
        assert!(around(&executable).is_err());
        let installed = prefix.path().join("lib/allocsample").join(NAME);
        fs::write(&installed, "").unwrap();
        assert_eq!(around(&executable).unwrap(), installed);
        let built = [bin.join(NAME), bin.join("deps").join(NAME)];
        for newer in [0, 1] {
            for (number, path) in built.iter().enumerate() {
                let seconds = if number == newer { 2000 } else { 1000 };
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
                fs::File::create(path).unwrap().set_modified(time).unwrap();
            }
            assert_eq!(around(&executable).unwrap(), built[newer]);
        }
    }
}
