//! A profile that is read again and again while its process runs.

use std::path::{Path, PathBuf};

use allocsample_profile::{Inspected, Profile, SymbolTable, root_of};
use anyhow::Context;

use crate::running;

/// A profile that grows.
pub struct GrowingProfile {
    path: PathBuf,
    symbols: Option<SymbolTable>,
    /// Number of files that were inspected, and the results.
    inspected: (usize, Vec<Inspected>),
}

impl GrowingProfile {
    /// Not read yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            symbols: None,
            inspected: (0, Vec::new()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the profile in its present state, with names.
    pub fn read(&mut self) -> anyhow::Result<Profile> {
        self.read_since(u64::MAX)
    }

    /// Like [`Self::read`], plus the files that were completed since then, as long as they exist.
    pub fn read_since(&mut self, since_ns: u64) -> anyhow::Result<Profile> {
        let named = || self.path.display().to_string();
        let mut profile = Profile::open_since(&self.path, since_ns).with_context(named)?;
        // Locations keep their numbers while a process runs: only new ones are looked up.
        if let Some(symbols) = self.symbols.take() {
            profile.symbols = symbols;
        }
        running::add_memory(&mut profile, &self.path);
        let files = profile.code_files();
        if profile.inspected.is_empty() && files == self.inspected.0 {
            profile.inspected.clone_from(&self.inspected.1);
        }
        profile.symbolize_below(root_of(&self.path));
        self.inspected = (files, profile.inspected.clone());
        self.symbols = Some(profile.symbols.clone());
        crate::profiles::fold(&mut profile);
        Ok(profile)
    }
}

/// Whether the process of the profile still writes it.
pub fn is_running(profile: &Profile) -> bool {
    profile.recovery.ring_found && profile.exit.is_none()
}
