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
    // SAFETY: the caller's promise.
    let ours = unsafe { settings_among(environment) };
    let lookup = |name: &str| {
        // SAFETY: the caller's promise: each of them is a C string.
        let mut settings = ours.iter().map(|&entry| unsafe { text_of(entry) });
        settings.find_map(|entry| {
            entry
                .strip_prefix(name.as_bytes())
                .and_then(|rest| rest.strip_prefix(b"="))
        })
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
    // SAFETY: as above.
    let unknown = UnknownSetting::among(ours.iter().map(|&entry| unsafe { text_of(entry) }));
    Some((config, unknown))
}

/// Whether a profile can be created where the settings say; if not, why.
pub fn check_directory(config: &Config) -> Result<(), &'static str> {
    is_writable_directory(config.output.directory().as_c_str()).map_err(|reason| match reason.0 {
        libc::ENOENT | libc::ENOTDIR => "no such directory",
        libc::EROFS => "the file system is read-only",
        libc::EACCES | libc::EPERM => "its user may not create files there",
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

/// The part of an environment block from the first setting of ours to the last. Every setting is looked up by its name, and most
/// environments have dozens of other variables.
///
/// # Safety
/// As for [`entries`].
unsafe fn settings_among(environment: *const *const c_char) -> &'static [*const c_char] {
    if environment.is_null() {
        return &[];
    }
    let (mut first, mut end, mut index) = (0, 0, 0);
    loop {
        // SAFETY: the caller's promise: entries up to the NULL, at which the loop ends.
        let entry = unsafe { *environment.add(index) };
        if entry.is_null() {
            break;
        }
        // SAFETY: the caller's promise.
        if unsafe { is_setting(entry) } {
            first = if end == 0 { index } else { first };
            end = index + 1;
        }
        index += 1;
    }
    // SAFETY: `first` to `end` are entries before the NULL, or nothing; they live for ever by the caller's promise.
    unsafe { std::slice::from_raw_parts(environment.add(first), end - first) }
}

/// Whether an entry has the name of a setting of ours. Most differ in the first byte, so that their length is not worth asking.
///
/// # Safety
/// `entry` is a C string.
unsafe fn is_setting(entry: *const c_char) -> bool {
    // `c_char` has a sign on x86-64 and none on aarch64.
    let entry = entry.cast::<u8>();
    // SAFETY: the bytes before `at` are not 0, since they are those of the prefix: so `at` is within the string or at its end.
    let byte_at = |at| unsafe { *entry.add(at) };
    (0..PREFIX.len()).all(|at| PREFIX.get(at) == Some(&byte_at(at)))
}

/// How the names of all settings begin.
const PREFIX: &[u8] = b"ALLOCSAMPLE_";

/// The bytes of an entry.
///
/// # Safety
/// `entry` is a C string that lives for ever.
unsafe fn text_of(entry: *const c_char) -> &'static [u8] {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(entry) }.to_bytes()
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
        Some(unsafe { text_of(text) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_found_among_other_variables_and_nothing_before_or_after() {
        let kinds = [
            c"",
            c"HOME=/",
            c"ALLOCSAMPLE",
            c"ALLOCSAMPLE_",
            c"ALLOCSAMPLE_SEED=1",
        ];
        let is_setting = |text: &&CStr| text.to_bytes().starts_with(b"ALLOCSAMPLE_");
        // Every environment of up to five variables of these kinds.
        for length in 0..=5 {
            for number in 0..kinds.len().pow(length) {
                let variables: Vec<_> = (0..length)
                    .map(|place| kinds[number / kinds.len().pow(place) % kinds.len()])
                    .collect();
                let block: Vec<_> = variables
                    .iter()
                    .map(|text| text.as_ptr())
                    .chain([std::ptr::null()])
                    .collect();
                // SAFETY: `block` points to C string constants and ends in NULL; it outlives the slice.
                let found: Vec<_> = unsafe { settings_among(block.as_ptr()) }
                    .iter()
                    .map(|&entry| unsafe { CStr::from_ptr(entry) })
                    .collect();
                assert!(found.first().is_none_or(is_setting));
                assert!(found.last().is_none_or(is_setting));
                let settings = |texts: Vec<&'static CStr>| -> Vec<_> {
                    texts.into_iter().filter(|text| is_setting(text)).collect()
                };
                assert_eq!(settings(found), settings(variables));
            }
        }
        // SAFETY: an environment may be NULL.
        assert!(unsafe { settings_among(std::ptr::null()) }.is_empty());
    }
}
