//! `allocsample report`: a profile's answers, on stdout.

use allocsample_profile::{Held, Profile};
use allocsample_report::lifetimes::Answer;
use allocsample_report::redundancy;
use allocsample_report::text::{self, Options, Shape};
use allocsample_report::{
    By, Direction, Document, Frames, Grouped, Request, Selection, Sort, Totals, Tree, Width, csv,
    json,
};
use anyhow::bail;
use serde_json::{Value, json};

use crate::args::{self, Format, Report};
use crate::exit::{Ending, Usage};
use crate::progress::Progress;
use crate::{filter, output_file, profiles, terminal};

/// Prints the report.
pub fn run(arguments: &Report) -> anyhow::Result<Ending> {
    let mut selection = filter::selection(&arguments.narrow)?;
    refuse_what_has_no_table(arguments)?;
    let profile = profiles::open(&arguments.file)?;
    if let Some(name) = &arguments.type_name {
        selection.only_type = Some(the_type(arguments, &profile, name)?);
    }
    if let Some(function) = &arguments.from {
        check_function(arguments, &profile, function)?;
    }
    let progress = Progress::start("adding up");
    let (totals, frames) = add_up(&profile);
    if arguments.narrow.at_peak {
        selection.at_peak = Some(totals.peak.moments);
    }
    drop(progress);
    let question = Question {
        profile: &profile,
        totals: &totals,
        frames: &frames,
        selection,
        sort: sort(arguments, profile.held()),
        arguments,
    };
    match arguments.format {
        Format::Text => question.text()?,
        Format::Json => question.json()?,
        Format::Csv => question.csv()?,
    }
    Ok(Ending::SUCCESS)
}

fn refuse_what_has_no_table(arguments: &Report) -> Result<(), Usage> {
    let is_whole = arguments.by.is_none() && shape(arguments) == Shape::Table(By::default());
    match arguments.format {
        Format::Json if is_whole && arguments.top.is_some() => Err(Usage(
            "--format json prints all tables in full: omit --top, or select a table with --by"
                .into(),
        )),
        Format::Json | Format::Csv if arguments.summary => Err(Usage(
            "--summary prints text only; --format json has the same under totals".into(),
        )),
        _ => Ok(()),
    }
}

fn check_function(arguments: &Report, profile: &Profile, name: &str) -> anyhow::Result<()> {
    let frames = Frames::of(profile);
    if !frames.all().iter().any(|frame| frame.function == name) {
        let file = arguments.file.display();
        bail!("{file}: there is no function {name}; `allocsample report` lists them");
    }
    Ok(())
}

/// An expression for a type that is there.
fn the_type(
    arguments: &Report,
    profile: &Profile,
    name: &str,
) -> anyhow::Result<allocsample_report::Regex> {
    if !profile.vm.types.values().any(|known| known.name == name) {
        let file = arguments.file.display();
        bail!("{file}: there is no type {name}; `allocsample report --by type` lists them");
    }
    Ok(Selection::exactly(name)?)
}

/// Both go through all samples, and neither needs the other.
fn add_up(profile: &Profile) -> (Totals, Frames<'_>) {
    rayon::join(|| Totals::of(profile), || Frames::of(profile))
}

struct Question<'a> {
    profile: &'a Profile,
    totals: &'a Totals,
    frames: &'a Frames<'a>,
    selection: Selection,
    sort: Sort,
    arguments: &'a Report,
}

impl Question<'_> {
    fn text(self) -> anyhow::Result<()> {
        let options = Options {
            shape: shape(self.arguments),
            sort: self.sort,
            top: self.arguments.top.unwrap_or(text::ROWS),
            selection: self.selection,
            width: Width::new(terminal::width()),
            colour: terminal::wants_colour(),
        };
        let frames = (options.shape != Shape::Summary).then_some(self.frames);
        output_file::write_stdout(|out| {
            Ok(text::write(
                self.profile,
                self.totals,
                frames,
                &options,
                out,
            )?)
        })
    }

    fn json(self) -> anyhow::Result<()> {
        let frames = self.frames;
        let answer = match (shape(self.arguments), self.arguments.by) {
            (Shape::Table(by), Some(_)) => json::table(self.totals, self.table(by)),
            (Shape::Tree(direction), _) => Document::of(self.tree_json(&direction)),
            (Shape::Lifetimes, _) => Document::of(self.lifetimes().to_json()),
            (Shape::Redundancy, _) => Document::of(self.redundancy().to_json()),
            _ => json::report(
                self.profile,
                frames,
                self.totals,
                self.sort,
                &self.selection,
            ),
        };
        output_file::write_json(&answer)
    }

    fn csv(self) -> anyhow::Result<()> {
        match shape(self.arguments) {
            Shape::Tree(direction) => {
                let tree = self.tree(&direction);
                output_file::write_stdout(|out| Ok(tree.write_csv(out)?))
            }
            Shape::Lifetimes => {
                let answer = self.lifetimes();
                output_file::write_stdout(|out| Ok(csv::lifetimes(&answer, out)?))
            }
            Shape::Redundancy => {
                let answer = self.redundancy();
                output_file::write_stdout(|out| Ok(csv::redundancy(&answer, out)?))
            }
            Shape::Table(by) => {
                let table = self.table(by);
                output_file::write_stdout(|out| Ok(csv::table(&table, out)?))
            }
            Shape::Summary => Ok(()),
        }
    }

    fn table(&self, by: By) -> Grouped<'_> {
        let request = Request {
            by,
            sort: self.sort,
            selection: &self.selection,
            peak: Some(self.totals.peak.moments),
            limit: self.arguments.top.unwrap_or(usize::MAX),
        };
        Grouped::of(self.profile, self.frames, &request)
    }

    fn tree(&self, direction: &Direction) -> Tree {
        Tree::of(
            self.profile,
            self.frames,
            &self.selection,
            Some(self.totals.peak.moments),
            self.sort,
            direction,
        )
    }

    fn tree_json(&self, direction: &Direction) -> Value {
        let tree = self.tree(direction);
        json!({
            "schema": "allocsample-tree/1",
            "measure": match self.sort {
                // As scripts know it.
                Sort::Allocated => "bytes",
                Sort::Live => "live",
                Sort::Count => "count",
                Sort::Peak => "peak",
                Sort::Growth => "growth",
            },
            "selected": json::selected(&tree.selected),
            "tree": tree.to_json(),
        })
    }

    fn lifetimes(&self) -> Answer {
        Answer::of(self.profile, self.frames, &self.selection, self.groups())
    }

    fn redundancy(&self) -> redundancy::Answer {
        redundancy::Answer::of(self.profile, self.frames, &self.selection, self.groups())
    }

    /// Types and sites at most.
    fn groups(&self) -> usize {
        const GROUPS: usize = 100;
        self.arguments.top.unwrap_or(GROUPS)
    }
}

fn shape(arguments: &Report) -> Shape {
    if arguments.summary {
        Shape::Summary
    } else if arguments.lifetimes {
        Shape::Lifetimes
    } else if arguments.redundancy {
        Shape::Redundancy
    } else if arguments.tree {
        Shape::Tree(Direction::Down)
    } else if arguments.callgraph {
        Shape::Tree(match &arguments.from {
            Some(function) => Direction::From(function.clone()),
            None => Direction::Up,
        })
    } else {
        Shape::Table(arguments.by.map_or_else(By::default, by))
    }
}

/// What the rows are.
pub fn by(by: args::By) -> By {
    match by {
        args::By::Function => By::Function,
        args::By::Site => By::Site,
        args::By::Line => By::Line,
        args::By::Module => By::Module,
        args::By::Thread => By::Thread,
        args::By::Type => By::Type,
        args::By::Heap => By::Heap,
        args::By::Size => By::Size,
        args::By::Lifetime => By::Lifetime,
    }
}

/// Memory held, unless something else is asked for: live at the moment that was given, or at the one that `held` says.
/// How long blocks live is a question about all that were allocated.
fn sort(arguments: &Report, held: Held) -> Sort {
    let is_at_moment = arguments.narrow.at_peak || arguments.narrow.until.is_some();
    match arguments.sort {
        None if matches!(arguments.by, Some(args::By::Lifetime)) => Sort::Allocated,
        None if is_at_moment => Sort::Live,
        None => match held {
            Held::AtEnd => Sort::Live,
            Held::AtPeak => Sort::Peak,
        },
        Some(args::Sort::Allocated) => Sort::Allocated,
        Some(args::Sort::Live) => Sort::Live,
        Some(args::Sort::Count) => Sort::Count,
        Some(args::Sort::Peak) => Sort::Peak,
        Some(args::Sort::Growth) => Sort::Growth,
    }
}
