//! Any bytes as a profile: read, symbolised and walked without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = tempfile::NamedTempFile::new() else { return };
    if std::fs::write(file.path(), bytes).is_err() {
        return;
    }
    if let Ok(profile) = allocsample_profile::Profile::open(file.path()) {
        for sample in &profile.samples {
            let _ = (profile.stack_frames(&sample), profile.bytes(&sample));
        }
    }
});
