//! A permanent secret, in a file that no other user can read.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};

use crate::output_file;

/// Minimum length: so many random characters cannot be guessed.
const SHORTEST: usize = 16;

/// The secret in the file, which is created if it does not exist.
pub fn of_file(path: &Path) -> anyhow::Result<String> {
    let named = || path.display().to_string();
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let secret = crate::http::secret();
            let mut file = output_file::create_new(path).with_context(named)?;
            writeln!(file, "{secret}").with_context(named)?;
            return Ok(secret);
        }
        Err(error) => return Err(error).with_context(named),
        Ok(about) if about.mode() & 0o077 != 0 => {
            bail!("{}: others can read it; run chmod 600 on it", named())
        }
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).with_context(named)?;
    let secret = text.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if secret.len() < SHORTEST || !secret.chars().all(is_plain) {
        bail!(
            "{}: expected one line of at least {SHORTEST} letters and digits",
            named()
        );
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_stays_and_is_ours_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let made = of_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(of_file(&path).unwrap(), made);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(of_file(&path).unwrap_err().to_string().contains("chmod"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for bad in [
            "short",
            "../../../../etc/passwd",
            "two words are not one secret",
        ] {
            fs::write(&path, bad).unwrap();
            assert!(of_file(&path).is_err(), "{bad}");
        }
    }
}
