//! What `--embedded` leaves alone as a whole: libraries that nobody could search; in older profiles, processors without redirection.

use allocsample_profile::{Note, Profile};

/// How the detail of such a note begins. Others name a runtime or one allocator, and are printed where that is missing.
const WHOLE: &str = "embedded: ";

/// The line for a bridge that did not join, if it is about `--embedded` as a whole and the user asked for that.
pub(super) fn line(profile: &Profile, detail: &str) -> Option<String> {
    let what = detail.strip_prefix(WHOLE)?;
    let mut notes = profile.notes.iter();
    if !notes.any(|(note, _)| *note == Note::Embedded) {
        return None;
    }
    let rest = if what.contains("this processor") {
        // Before agents redirected functions on aarch64, too.
        "`--embedded` samples at most Arrow's pools and a jemalloc with hooks"
    } else if what.contains("another loader") {
        // Tried with musl's loader only.
        "of their allocators, `--embedded` samples Arrow's pools and a jemalloc with hooks, soon after their first mapping"
    } else {
        "`--embedded` leaves their allocators alone, if they have any"
    };
    Some(format!("note: {what}: {rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_for() -> Profile {
        let mut profile = Profile::default();
        profile.notes.push((Note::Embedded, String::new()));
        profile
    }

    #[test]
    fn a_processor_without_redirection_is_named_when_embedded_was_asked_for() {
        let detail = "embedded: no function can be redirected on this processor, only on x86-64";
        assert_eq!(
            line(&asked_for(), detail).as_deref(),
            Some(
                "note: no function can be redirected on this processor, only on x86-64: `--embedded` samples at most Arrow's pools and a jemalloc with hooks"
            )
        );
        assert_eq!(line(&Profile::default(), detail), None);
    }

    #[test]
    fn libraries_that_were_not_searched_are_named() {
        for (detail, rest) in [
            (
                "embedded: libraries of another loader are not searched",
                "Arrow's pools and a jemalloc with hooks, soon after their first mapping",
            ),
            (
                "embedded: libraries loaded later are not searched",
                "leaves their allocators alone, if they have any",
            ),
        ] {
            let line = line(&asked_for(), detail).expect("a line");
            assert!(line.ends_with(rest), "{line}");
        }
    }

    #[test]
    fn a_runtime_or_one_allocator_has_no_line_here() {
        for detail in ["ocaml: bytecode has no frames", "mimalloc in embedded: x"] {
            assert_eq!(line(&asked_for(), detail), None, "{detail}");
        }
    }
}
