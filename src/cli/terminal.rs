//! Facts about stdout.

use std::io::{IsTerminal, stdout};

/// Columns of the terminal on stdout; `None` if stdout is not a terminal.
pub fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Colour only on a terminal that supports it, and not against the user's wish (no-color.org).
pub fn wants_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}
