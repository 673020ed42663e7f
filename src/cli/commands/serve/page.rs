//! The page of all processes.

use std::path::{Path, PathBuf};

use allocsample_profile::readable;

/// Media type of the page.
pub const MIME: &str = "text/html; charset=utf-8";

/// The page, with a line for each process.
pub fn of(prefix: &str, processes: &[(String, PathBuf)]) -> String {
    let mut rows = String::new();
    for (name, file) in processes {
        let file = escaped(&file.display().to_string());
        let about = escaped(&command(name).unwrap_or_default());
        let link = |to: &str, text: &str| format!("<a href=\"{prefix}/{name}/{to}\">{text}</a>");
        rows.push_str(&format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{about}<td>{file}\n",
            link("", name),
            link("flamegraph.svg", "allocated"),
            link("live.svg", "live"),
            link("debug/pprof/heap", "pprof"),
        ));
    }
    if rows.is_empty() {
        rows.push_str("<tr><td colspan=6>No process writes a profile now.\n");
    }
    format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>allocsample</title>\n<style>\n\
         :root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }}\n\
         body {{ margin: 2em }}\nth, td {{ text-align: left; padding: .2em 1em .2em 0 }}\n</style>\n\
         <h1>Where memory goes</h1>\n<table>\n\
         <tr><th>process<th colspan=2>flame graphs<th>for tools<th>command<th>profile\n{rows}</table>\n"
    )
}

/// The command line of a pid.
fn command(pid: &str) -> Option<String> {
    let pid: u32 = pid.parse().ok()?;
    let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
    let text = line.split(|&byte| byte == 0).map(readable);
    let text = text.collect::<Vec<_>>().join(" ");
    Some(text.trim().chars().take(120).collect())
}

fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text() {
        let path = PathBuf::from("/tmp/<script>\"&x.allocsample");
        let page = of("/s", &[("a.allocsample".into(), path)]);
        assert!(!page.contains("<script>"));
        assert!(page.contains("/tmp/&lt;script&gt;&quot;&amp;x.allocsample"));
        assert!(page.contains("href=\"/s/a.allocsample/debug/pprof/heap\""));
        assert!(of("/s", &[]).contains("No process"));
    }
}
