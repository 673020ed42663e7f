//! Files that are complete or not there.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail};

use crate::exit::Usage;
use crate::harmless::Harmless;

/// Writes `path` through `fill`: aside first, then renamed, so that an error leaves what was there before. Pipes and
/// devices, which cannot be replaced, are written to directly.
pub fn write(
    path: &Path,
    fill: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    // A symbolic link stays one: it is its target that gets replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|metadata| !metadata.is_file()) {
        let file = File::options()
            .write(true)
            .open(&target)
            .with_context(named)?;
        return finish(BufWriter::new(file), fill)
            .map(drop)
            .with_context(named);
    }
    let directory = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let aside = tempfile::Builder::new()
        .prefix(".allocsample-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .with_context(|| {
            format!(
                "{}: cannot write into {}",
                path.display(),
                directory.display()
            )
        })?;
    let aside = finish(BufWriter::new(aside), fill).with_context(named)?;
    aside.persist(&target).with_context(named)?;
    Ok(())
}

/// Makes a profile through `make`, which gets the path of a file aside, and puts it at `path`, where nothing is yet, when it
/// is whole.
pub fn profile_aside<T>(
    path: &Path,
    make: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if path.as_os_str() == "-" {
        return Err(Usage("-: a profile is a file; name one".to_owned()).into());
    }
    if path.exists() {
        bail!("{}: is there already", path.display());
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Beside its place, so that it can be moved there whole.
    let aside = tempfile::Builder::new()
        .prefix(".allocsample-")
        .tempdir_in(directory)
        .with_context(|| format!("{}: cannot write there", directory.display()))?;
    let copy = aside.path().join("x.allocsample");
    let made = make(&copy)?;
    fs::rename(&copy, path).with_context(|| path.display().to_string())?;
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

fn finish<W: Write + Send>(
    mut writer: BufWriter<W>,
    fill: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<()>,
) -> anyhow::Result<W> {
    fill(&mut writer)?;
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
    fn a_link_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("link"), directory.path().join("file"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        write(Path::new("/dev/null"), |out| Ok(out.write_all(b"gone")?)).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
