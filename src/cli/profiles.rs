//! Profiles as the commands get them: read, with names, and with errors that name the file.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use allocsample_profile::{
    Charging, FinishError, Finished, MAPPINGS, PAGES, Profile, ReadError, Seen, finish_with,
    root_of,
};
use anyhow::{Context, bail};

use crate::args::Charge;
use crate::progress::Progress;
use crate::{exit, memory, output_bound, running};

static CHARGING: OnceLock<Charging> = OnceLock::new();
static ALL_FRAMES: OnceLock<bool> = OnceLock::new();
static VIEW: OnceLock<View> = OnceLock::new();

/// Sets which functions are charged in profiles that are opened from now on.
pub fn charge(charge: &Charge) {
    let _ = ALL_FRAMES.set(charge.all_frames);
    let mut charging = Charging::default();
    charging.skips_wrappers = !charge.no_skip;
    charging.allocators = charge.allocator_function.clone();
    let charging = CHARGING.set(charging);
    debug_assert!(charging.is_ok(), "a process has one command");
}

/// Leaves frames of runtimes in the stacks of profiles that are opened from now on.
pub fn keep_all_frames() {
    let _ = ALL_FRAMES.set(true);
}

/// Reads a profile. Names that it lacks are added in memory; the file stays as it is. From now on the command has the
/// memory limit for its profiles.
pub fn open(path: &Path) -> anyhow::Result<Profile> {
    let named = || path.display().to_string();
    allow(bytes_of(path));
    let progress = Progress::reading(&[path]);
    let read = Profile::open_watched(path, progress.read_bytes());
    let mut profile = match similar(path) {
        Some(advice) if read.is_err() => bail!("{}: {advice}", path.display()),
        _ => read.with_context(named)?,
    };
    drop(progress);
    profile.charging = CHARGING.get().cloned().unwrap_or_default();
    if let Some(stopped) = &profile.recovery.stopped {
        exit::remark(format_args!("{}: {stopped}", path.display()));
    }
    running::add_memory(&mut profile, path);
    profile.is_running = profile.is_being_written();
    name(&mut profile, path);
    fold(&mut profile);
    Ok(shown(profile))
}

/// What is shown in place of the samples of heaps.
#[derive(Clone, Copy, Debug)]
pub enum View {
    Mappings,
    Pages,
}

impl View {
    /// The one that this name of a heap selects.
    pub fn of_heap(name: &str) -> Option<Self> {
        match name {
            MAPPINGS => Some(Self::Mappings),
            PAGES => Some(Self::Pages),
            _ => None,
        }
    }
}

/// Shows this in profiles that are opened from now on.
pub fn show(view: View) {
    let _ = VIEW.set(view);
}

fn shown(profile: Profile) -> Profile {
    match VIEW.get() {
        Some(View::Mappings) => profile.of_mappings(),
        Some(View::Pages) => profile.of_pages(),
        None => profile,
    }
}

/// Takes frames of runtimes out of a profile's stacks, unless all frames are wanted, and counts the memory of their heaps once.
pub fn fold(profile: &mut Profile) {
    profile.set_backing_apart();
    match ALL_FRAMES.get() {
        Some(true) => profile.find_runtimes(),
        _ => profile.fold_runtime_frames(),
    }
}

/// What to say of a path that is no file: the profiles that may be meant.
fn similar(path: &Path) -> Option<String> {
    const LISTED: usize = 3;
    let (directory, what) = match std::fs::metadata(path) {
        Ok(it) if it.is_dir() => (path, "is a directory; name a profile"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
            (
                parent.unwrap_or(Path::new(".")),
                "No such file or directory",
            )
        }
        _ => return None,
    };
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let profiles = entries.map(|entry| entry.path());
    let mut profiles: Vec<PathBuf> = profiles
        .filter(|path| path.extension().is_some_and(|it| it == "allocsample"))
        .collect();
    // The last one that was written is the likeliest.
    let written = |path: &PathBuf| std::fs::metadata(path).and_then(|it| it.modified()).ok();
    profiles.sort_by_key(|path| std::cmp::Reverse(written(path)));
    let more = profiles.len().saturating_sub(LISTED);
    let names = profiles
        .iter()
        .take(LISTED)
        .map(|path| match path.strip_prefix(".") {
            Ok(path) => path.display().to_string(),
            Err(_) => path.display().to_string(),
        });
    let names = names.collect::<Vec<_>>().join(", ");
    Some(match more {
        _ if profiles.is_empty() => {
            format!("{what} (`allocsample run -- PROGRAM` writes a profile)")
        }
        0 => format!("{what} (there are {names})"),
        more => format!("{what} (there are {names} and {more} more)"),
    })
}

/// Gives names to a profile without any.
fn name(profile: &mut Profile, path: &Path) {
    if profile.symbols.frames.is_empty() {
        let _progress = Progress::start("symbolizing");
        memory::without_bound(|| profile.symbolize_below(root_of(path)));
    }
}

/// Reads files of one recording as one profile.
pub fn open_series(paths: &[PathBuf]) -> anyhow::Result<Profile> {
    if let [path] = paths {
        return open(path);
    }
    allow(paths.iter().map(|path| bytes_of(path)).sum());
    let progress = Progress::reading(paths);
    let mut profile = Profile::open_series(paths, progress.read_bytes())?;
    drop(progress);
    profile.charging = CHARGING.get().cloned().unwrap_or_default();
    // Some of the files may have names, and others not.
    let _progress = Progress::start("symbolizing");
    memory::without_bound(|| profile.symbolize());
    fold(&mut profile);
    Ok(shown(profile))
}

/// Raises the limits of memory and output for a profile of this size.
fn allow(file_bytes: u64) {
    memory::allow_profile(file_bytes);
    output_bound::allow_profile(file_bytes);
}

/// Of a profile and the ring beside it.
pub fn bytes_of(path: &Path) -> u64 {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let mut ring = path.as_os_str().to_owned();
    ring.push(".ring");
    length(path) + length(Path::new(&ring))
}

/// Completes a profile: adds the records that a killed process left beside it, and names if they are wanted.
pub fn complete(path: &Path, symbolize: bool) -> anyhow::Result<Finished> {
    complete_with(path, symbolize, &Seen::default())
}

/// The same, with what was seen of its process from outside.
pub fn complete_with(path: &Path, symbolize: bool, seen: &Seen<'_>) -> anyhow::Result<Finished> {
    let what = if symbolize {
        "symbolizing"
    } else {
        "completing"
    };
    let _progress = Progress::start(format!("{what} {}", path.display()));
    finish_with(path, symbolize, seen).with_context(|| path.display().to_string())
}

/// Whether the error means that the profile was read but cannot be written.
pub fn is_write_error(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(FinishError::Write(_)))
}

/// Whether the error means that the file is not a profile.
pub fn is_foreign(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(FinishError::Read(ReadError::Foreign(_)))
    )
}
