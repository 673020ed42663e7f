//! A profile that is read again and again while its process runs.

use std::path::{Path, PathBuf};

use allocsample_profile::{Profile, SymbolTable};
use anyhow::Context;

/// A profile that grows.
pub struct GrowingProfile {
    path: PathBuf,
    symbols: Option<SymbolTable>,
}

impl GrowingProfile {
    /// Not read yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            symbols: None,
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As it stands now, with names.
    pub fn read(&mut self) -> anyhow::Result<Profile> {
        let named = || self.path.display().to_string();
        let mut profile = Profile::open(&self.path).with_context(named)?;
        // Locations keep their numbers while a process runs: only new ones are looked up.
        if let Some(symbols) = self.symbols.take() {
            profile.symbols = symbols;
        }
        profile.symbolize();
        self.symbols = Some(profile.symbols.clone());
        Ok(profile)
    }
}

/// Whether the process of the profile still writes it.
pub fn is_running(profile: &Profile) -> bool {
    profile.recovery.ring_found && profile.exit.is_none()
}
