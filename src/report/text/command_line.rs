//! The command line of a process, for a person to read.

use allocsample_profile::Profile;

use crate::elide;

/// The program and its arguments in one line, whatever is in them. A class path of many kilobytes would hide what follows, so the
/// middle of a long line is left out. A program that gave itself a title has filled the place of its arguments up with blanks.
pub fn command_line(profile: &Profile) -> String {
    const MOST_CHARACTERS: usize = 200;
    let words = profile.process.command_line.join(" ");
    let line = words.replace(char::is_control, " ");
    elide::cut_middle(line.trim_end(), MOST_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use crate::json;
    use crate::selection::Selection;
    use crate::table::Sort;
    use crate::text::summary_lines;
    use crate::totals::Totals;

    #[test]
    fn a_command_line_is_cut_in_the_middle_in_text_and_whole_for_scripts() {
        let mut profile = Profile::default();
        let path = "/opt/spark/jars/a-library-1.0.jar:".repeat(400);
        let words = ["java", "-cp", &path, "shop.Main", "--port", "80"];
        profile.process.command_line = words.map(str::to_owned).to_vec();
        let line = command_line(&profile);
        assert_eq!(line.chars().count(), 200);
        assert!(line.starts_with("java -cp /opt/spark/jars/a-library-1.0.jar:"));
        assert!(line.ends_with(" shop.Main --port 80") && line.contains('…'));
        let lines = summary_lines(&profile, &Totals::of(&profile));
        assert!(lines[0].chars().count() < 260, "{}", lines[0]);
        let frames = Frames::of(&profile);
        let (totals, all) = (Totals::of(&profile), Selection::default());
        let report = json::report(&profile, &frames, &totals, Sort::Live, &all);
        let json = report.into_value();
        assert_eq!(json["command"][2], path);
        // A title in the place of longer arguments, filled up with blanks or with zeros.
        for rest in [vec!["next-server      "], vec!["next-server", "", "", ""]] {
            profile.process.command_line = rest.into_iter().map(str::to_owned).collect();
            assert_eq!(command_line(&profile), "next-server");
        }
        // One that is not too long, in another script, with a line break.
        profile.process.command_line = vec!["функция\n".to_owned(), "é".repeat(191)];
        assert_eq!(
            command_line(&profile),
            format!("функция  {}", "é".repeat(191))
        );
    }
}
