//! The settings of a process that begins: its environment, and what of it can be used.

use std::ffi::{CStr, c_char};

use allocsample_agent::config::{Config, UnknownSetting};
use allocsample_agent::os::file::{complain, is_writable_directory};
use allocsample_agent::os::process;

/// The settings in an environment. `None`: the program runs without a profile, because that was asked for or because
/// a line on stderr says why.
///
/// # Safety
/// `environment` is NULL, or an array of C strings, which live for ever, and NULL.
pub unsafe fn read(environment: *const *const c_char) -> Option<(Config, Option<UnknownSetting>)> {
    let lookup = |name: &str| {
        // SAFETY: the caller's promise.
        unsafe { find_variable(environment, name) }
    };
    let mut buffer = [0; 4096];
    let config = match Config::read(lookup, process::working_directory(&mut buffer)) {
        Ok(config) => config,
        Err(error) => {
            let parts: [&[u8]; 7] = [
                b"allocsample: ",
                error.name.as_bytes(),
                b"=",
                error.value,
                b": ",
                error.expected.as_bytes(),
                b"; the program runs without a profile\n",
            ];
            complain(&parts);
            return None;
        }
    };
    config.interval?;
    if let Err(reason) = check_directory(&config) {
        let directory = config.output.directory();
        let parts: [&[u8]; 5] = [
            b"allocsample: ",
            directory.as_bytes(),
            b": ",
            reason.as_bytes(),
            b"; the program runs without a profile\n",
        ];
        complain(&parts);
        return None;
    }
    // SAFETY: the caller's promise.
    let unknown = UnknownSetting::among(unsafe { entries(environment) });
    Some((config, unknown))
}

/// Whether a profile can be created where the settings say; if not, why.
pub fn check_directory(config: &Config) -> Result<(), &'static str> {
    is_writable_directory(config.output.directory().as_c_str()).map_err(|reason| match reason.0 {
        libc::ENOENT | libc::ENOTDIR => "no such directory",
        libc::EROFS => "the file system is read-only",
        _ => "no files can be created there",
    })
}

/// A program that got rights by its file (set-user-id, set-group-id, capabilities) does nothing that an environment asks
/// for which somebody without these rights has made. It does not even complain.
pub fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The path that the program was started by, which the kernel keeps beside its arguments.
pub fn called_as() -> &'static [u8] {
    // SAFETY: reads the auxiliary vector.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) };
    let path: *const c_char = std::ptr::with_exposed_provenance(path as usize);
    if path.is_null() {
        b"unknown"
    } else {
        // SAFETY: not 0, so the address of a C string that lives as long as the process.
        unsafe { CStr::from_ptr(path) }.to_bytes()
    }
}

/// The value of a variable in an environment block.
///
/// # Safety
/// As for [`entries`].
unsafe fn find_variable(environment: *const *const c_char, name: &str) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    unsafe { entries(environment) }.find_map(|entry| {
        entry
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
    })
}

/// The entries of an environment block, `NAME=value`.
///
/// # Safety
/// `environment` is NULL, or an array of C strings, which live for ever, and NULL.
pub unsafe fn entries(environment: *const *const c_char) -> impl Iterator<Item = &'static [u8]> {
    let mut entry = environment;
    std::iter::from_fn(move || {
        if entry.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: entries up to the NULL.
        let text = unsafe { *entry };
        if text.is_null() {
            return None;
        }
        // SAFETY: not yet at the NULL.
        entry = unsafe { entry.add(1) };
        // SAFETY: the caller's promise.
        Some(unsafe { CStr::from_ptr(text) }.to_bytes())
    })
}
