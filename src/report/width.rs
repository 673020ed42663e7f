//! Output that fits into a terminal.

/// Columns where no terminal says how many.
const ELSEWHERE: usize = 120;

/// How wide the output may be.
#[derive(Clone, Copy, Debug)]
pub struct Width(Option<usize>);

impl Width {
    /// Of a terminal with so many columns; `None`: of a pipe or a file, in which a line is a line, however long.
    pub fn new(terminal: Option<usize>) -> Self {
        Self(terminal)
    }

    /// What the lines of a table are cut to.
    pub fn columns(self) -> usize {
        self.0.unwrap_or(ELSEWHERE)
    }

    /// What a line of a table has room for behind so many columns.
    pub fn room(self, used: usize) -> usize {
        const LEAST: usize = 20;
        self.columns().saturating_sub(used).max(LEAST)
    }

    /// The same for a line that is whole in a pipe.
    pub fn room_in_terminal(self, used: usize) -> usize {
        self.0.map_or(usize::MAX, |_| self.room(used))
    }

    /// Breaks a line of words where it is too long for the terminal; what follows is indented by so many blanks.
    pub fn broken(self, line: &str, indent: usize) -> String {
        let Some(columns) = self.0 else {
            return line.to_owned();
        };
        let indent = " ".repeat(indent);
        let options = textwrap::Options::new(columns)
            .subsequent_indent(&indent)
            // A path or a name is one word, and stays one.
            .break_words(false)
            .word_splitter(textwrap::WordSplitter::NoHyphenation)
            .word_separator(textwrap::WordSeparator::AsciiSpace);
        textwrap::fill(line, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_breaks_lines_and_never_a_word() {
        let line = "agent      12 ms: 3 us a sample; /a/path/that/is/longer/than/a/line";
        let broken = Width::new(Some(24)).broken(line, 11);
        let expected = [
            "agent      12 ms: 3 us a",
            "           sample;",
            "           /a/path/that/is/longer/than/a/line",
        ];
        assert_eq!(broken, expected.join("\n"));
        assert_eq!(Width::new(None).broken(line, 11), line);
        assert_eq!(Width::new(None).columns(), 120);
        assert_eq!(Width::new(Some(80)).room(50), 30);
        assert_eq!(Width::new(Some(80)).room_in_terminal(75), 20);
        assert_eq!(Width::new(None).room(75), 45);
        assert_eq!(Width::new(None).room_in_terminal(75), usize::MAX);
    }
}
