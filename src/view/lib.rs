//! A profile as one page for a browser: a flame graph, memory over time, tables, a heat map, leaks, collections, sources,
//! and what changed since another profile.
//!
//! The page is one file without any reference to another: the charts' code (`page/vendor`), ours (`page/*.js`), and the
//! profile. The profile is added up before it goes in (`cells.rs`), so that the page stays small and quick whatever the
//! number of samples. Names come from programs, which may be hostile: they are data inside a JSON element in which
//! nothing can end the element, and they reach the document as text only.
#![forbid(unsafe_code)]

mod about;
mod against;
mod answer;
mod cells;
mod collections;
mod columns;
mod document;
mod groups;
mod ledger;
mod packed;
mod prefixes;
mod sites;
mod sources;
mod suspects;

use std::io::{self, Write};

use allocsample_profile::Profile;

pub use against::Against;

use packed::Embedded;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const VENDOR: &str = include_str!("page/vendor/charts.min.js");
const SCRIPTS: [&str; 16] = [
    include_str!("page/data.js"),
    include_str!("page/format.js"),
    include_str!("page/measure.js"),
    include_str!("page/timeline.js"),
    include_str!("page/flame.js"),
    include_str!("page/tables.js"),
    include_str!("page/heat.js"),
    include_str!("page/histograms.js"),
    include_str!("page/collections.js"),
    include_str!("page/ledger.js"),
    include_str!("page/leaks.js"),
    include_str!("page/sources.js"),
    include_str!("page/changes.js"),
    include_str!("page/overview.js"),
    include_str!("page/link.js"),
    include_str!("page/main.js"),
];

/// Writes the page of a profile, with what changed since an earlier one if there is one to compare with.
pub fn write(
    profile: &Profile,
    earlier: Option<&Against<'_>>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let data = document::document(profile, earlier);
    let program = about::program(profile);
    let scripts = SCRIPTS.concat();
    // The template is cut at its marks, never searched again: what was put in cannot be taken for a mark.
    let mut rest = TEMPLATE;
    let mut up_to = |mark: &str, out: &mut dyn Write| {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        rest = after;
        out.write_all(before.as_bytes())
    };
    up_to("{{title}}", out)?;
    out.write_all(escaped_text(program).as_bytes())?;
    up_to("{{style}}", out)?;
    out.write_all(STYLE.as_bytes())?;
    let embedded = Embedded::of(&data)?;
    up_to("{{packed}}", out)?;
    out.write_all(embedded.attribute().as_bytes())?;
    up_to("{{data}}", out)?;
    embedded.write(out)?;
    up_to("{{vendor}}", out)?;
    out.write_all(VENDOR.as_bytes())?;
    up_to("{{scripts}}", out)?;
    write!(
        out,
        "(async () => {{\n'use strict';\n{scripts}}})().catch(failed);"
    )?;
    out.write_all(rest.as_bytes())
}

fn escaped_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Module, Thread, ThreadId};

    fn page(profile: &Profile) -> String {
        let mut out = Vec::new();
        write(profile, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_name_ends_an_element() {
        let hostile = "</script><img src=x onerror=alert(1)>{{scripts}}<!--";
        let mut profile = Profile::default();
        profile.process.executable = format!("/bin/{hostile}");
        profile.process.command_line = vec![hostile.to_owned()];
        profile.modules.push(Module {
            path: hostile.to_owned(),
            build_id: Vec::new(),
            start: 0,
            end: 0,
            bias: 0,
        });
        let thread = Thread {
            name: hostile.to_owned(),
            ..Thread::default()
        };
        profile.threads.insert(ThreadId(1), thread);
        let page = page(&profile);
        let plain = self::page(&Profile::default());
        let count = |page: &str, what: &str| page.matches(what).count();
        for what in ["</script", "<img", "<!--", "<script"] {
            assert_eq!(count(&page, what), count(&plain, what), "{what}");
        }
    }

    #[test]
    fn the_page_refers_to_nothing_outside() {
        let page = page(&Profile::default());
        for what in ["<link", "src=", "@import", "url("] {
            assert!(!page.replace(VENDOR, "").contains(what), "{what}");
        }
        assert!(page.contains("default-src 'none'"));
        assert!(!VENDOR.contains("</script"));
    }
}
