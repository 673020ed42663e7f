//! Groups sums into rows.

use std::collections::HashMap;

use allocsample_profile::{Frame, HeapId, Profile, Sample};
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;

use super::{By, Request, Row, Table, classes};
use crate::frames::{FrameId, FrameKeys, Frames, Paths};
use crate::heaps;
use crate::selection::Window;
use crate::sums::{Figures, Sum, Sums};

/// A row before it has a name.
struct Group<'a> {
    /// What it is named after.
    sum: &'a Sum<'a>,
    frame: Option<FrameId>,
    own: Figures,
    /// With what it called: allocated and live bytes. `None` where rows have no more than their own.
    total: Option<(Estimate, Estimate)>,
}

impl Group<'_> {
    fn total(&self) -> (Estimate, Estimate) {
        self.total.unwrap_or((self.own.allocated, self.own.live))
    }
}

/// The table, and if `keeps_samples` for each sample the index of the row that it is charged to.
pub(super) fn group<'a>(
    profile: &'a Profile,
    frames: &Frames<'a>,
    request: &Request<'_>,
    keeps_samples: bool,
) -> (Table, Vec<u32>) {
    let by = request.by;
    let window = Window::of(profile, request.selection, request.peak_ns);
    let types = match by {
        By::Type => TypeMarks::of(profile),
        _ => TypeMarks::default(),
    };
    let sums = Sums::of(
        profile,
        frames,
        request.selection,
        window,
        keeps_samples,
        |sample| match by {
            By::Thread => sample.thread.0,
            By::Type => types.mark(sample),
            By::Size => classes::of_size(sample.size),
            By::Lifetime => classes::of_lifetime(sample),
            By::Function | By::Site | By::Line | By::Module | By::Heap => 0,
        },
    );
    let (groups, charged) = if by.has_total() {
        by_frame(frames, by, &sums)
    } else {
        by_sum(frames, by, &sums)
    };
    let order = order(frames, request, &groups);
    let mut scratch = Vec::new();
    let rows = order
        .iter()
        .take(request.limit)
        .map(|&index| row(profile, frames, by, &groups[index], &mut scratch))
        .collect();
    let of_sample = if keeps_samples {
        let mut places = vec![Table::NONE; groups.len()];
        for (place, &index) in (0..).zip(&order) {
            places[index] = place;
        }
        let of_sum = |sum: u32| {
            let group = charged.get(sum as usize);
            group.map_or(Table::NONE, |&group| places[group])
        };
        sums.of_sample.iter().map(|&sum| of_sum(sum)).collect()
    } else {
        Vec::new()
    };
    let table = Table {
        rows,
        row_count: groups.len(),
        selected: sums.whole,
    };
    (table, of_sample)
}

/// Numbers for the types of each heap, by name: a machine may have several types of one name.
#[derive(Default)]
struct TypeMarks {
    by_id: FxHashMap<(HeapId, u32), u32>,
}

impl TypeMarks {
    fn of(profile: &Profile) -> Self {
        let mut marks = Self::default();
        let mut by_name: HashMap<(HeapId, &str), u32> = HashMap::new();
        for sample in &profile.samples {
            let Some(outcome) = sample.outcome() else {
                continue;
            };
            let key = (sample.heap, outcome.type_id);
            marks.by_id.entry(key).or_insert_with(|| {
                let name = profile.vm.type_name(sample.heap, &outcome);
                let name = name.unwrap_or(heaps::UNKNOWN_TYPE);
                let next = u32::try_from(by_name.len() + 1).unwrap_or(u32::MAX);
                *by_name.entry((sample.heap, name)).or_insert(next)
            });
        }
        marks
    }

    /// 0 for samples that have none.
    fn mark(&self, sample: &Sample) -> u32 {
        let known = sample
            .outcome()
            .and_then(|outcome| self.by_id.get(&(sample.heap, outcome.type_id)));
        known.copied().unwrap_or(0)
    }
}

/// Groups of frames: a sum is part of each that is on its stack, and charged to one. Returns for each sum which.
fn by_frame<'a>(frames: &Frames<'_>, by: By, sums: &'a Sums<'a>) -> (Vec<Group<'a>>, Vec<usize>) {
    let keys = keys(frames, by);
    /// No group yet.
    const NONE: usize = usize::MAX;
    let mut places = vec![NONE; keys.first.len()];
    // The last sum, plus one, that was added to a group: a function may be on a stack several times.
    let mut seen = vec![0u32; keys.first.len()];
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut charged = Vec::with_capacity(sums.iter().len());
    let mut stack = Vec::new();
    for (sum, stamp) in sums.iter().zip(1..) {
        frames.fill(sum.sample, &mut stack);
        for id in &stack {
            let key = keys.of_frame[id.index()] as usize;
            if std::mem::replace(&mut seen[key], stamp) == stamp {
                continue;
            }
            if places[key] == NONE {
                places[key] = groups.len();
                groups.push(Group {
                    sum,
                    frame: Some(keys.first[key]),
                    own: Figures::default(),
                    total: Some(Default::default()),
                });
            }
            if let Some((allocated, live)) = &mut groups[places[key]].total {
                *allocated += sum.figures.allocated;
                *live += sum.figures.live;
            }
        }
        // There is a frame: a stack without any has one that says so.
        let own = frames.charged(sum.sample.heap, &stack).unwrap_or(0);
        let place = places[keys.of_frame[stack[own].index()] as usize];
        groups[place].own.add(&sum.figures);
        charged.push(place);
    }
    (groups, charged)
}

fn keys(frames: &Frames<'_>, by: By) -> FrameKeys {
    fn line(frame: &Frame) -> (&str, Option<&str>, u32) {
        (&frame.function, frame.file.as_deref(), frame.line)
    }
    match by {
        By::Module => frames.keys(|frame| frame.module.as_str()),
        By::Line => frames.keys(line),
        _ => frames.keys(|frame| (frame.function.as_str(), frame.module.as_str())),
    }
}

/// Groups of whole sums.
fn by_sum<'a>(frames: &Frames<'_>, by: By, sums: &'a Sums<'a>) -> (Vec<Group<'a>>, Vec<usize>) {
    let mut paths = (by == By::Site).then(|| Paths::new(frames));
    let mut places: FxHashMap<(u32, HeapId), usize> = FxHashMap::default();
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut charged = Vec::with_capacity(sums.iter().len());
    let mut stack = Vec::new();
    for sum in sums.iter() {
        let mut frame = None;
        let key = match &mut paths {
            Some(paths) => {
                frames.fill(sum.sample, &mut stack);
                let own = frames.charged(sum.sample.heap, &stack);
                frame = own.map(|own| stack[own]);
                (paths.number(sum.sample, 0), HeapId::MALLOC)
            }
            None if by == By::Heap => (0, sum.sample.heap),
            None => (sum.mark, HeapId::MALLOC),
        };
        let place = *places.entry(key).or_insert_with(|| {
            groups.push(Group {
                sum,
                frame,
                own: Figures::default(),
                total: None,
            });
            groups.len() - 1
        });
        let group = &mut groups[place];
        group.own.add(&sum.figures);
        charged.push(place);
    }
    (groups, charged)
}

/// Indices of the groups, largest first; equal ones by name, so that a report does not depend on chance.
fn order(frames: &Frames<'_>, request: &Request<'_>, groups: &[Group<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    let size = |group: &Group<'_>| {
        (
            request.sort.of(&group.own).value(),
            match request.sort {
                super::Sort::Live => group.total().1.value(),
                _ => group.total().0.value(),
            },
        )
    };
    order.sort_by(|&a, &b| {
        let (a, b) = (&groups[a], &groups[b]);
        let (a_size, b_size) = (size(a), size(b));
        let name = |group: &Group<'_>| group.frame.map(|id| frames.frame(id));
        b_size
            .0
            .total_cmp(&a_size.0)
            .then(b_size.1.total_cmp(&a_size.1))
            .then_with(|| name(a).cmp(&name(b)))
            .then(a.sum.mark.cmp(&b.sum.mark))
    });
    order
}

fn row(
    profile: &Profile,
    frames: &Frames<'_>,
    by: By,
    group: &Group<'_>,
    stack: &mut Vec<FrameId>,
) -> Row {
    let mut row = Row {
        self_allocated: group.own.allocated,
        total_allocated: group.total().0,
        self_live: group.own.live,
        total_live: group.total().1,
        allocations: group.own.allocations,
        self_peak: group.own.peak,
        self_growth: group.own.growth,
        ..Row::default()
    };
    let sample = group.sum.sample;
    if let Some(frame) = group.frame.map(|id| frames.frame(id)) {
        row.name.clone_from(&frame.function);
        row.file.clone_from(&frame.file);
        row.line = frame.line;
        row.module.clone_from(&frame.module);
    }
    match by {
        By::Function | By::Line => {}
        By::Module => {
            row.name = match row.module.as_str() {
                "" => "[no module]".to_owned(),
                module => module.to_owned(),
            };
            row.file = None;
            row.line = 0;
        }
        By::Site => {
            frames.fill(sample, stack);
            row.charged = frames.charged(sample.heap, stack).unwrap_or(0);
            row.stack = stack
                .iter()
                .map(|id| frames.frame(*id).function.clone())
                .collect();
        }
        By::Thread => {
            let thread = profile.threads.get(&sample.thread);
            let name = thread.map_or("?", |thread| thread.name.as_str());
            let tid = thread.map_or(0, |thread| thread.tid);
            row.name = format!("{name} ({tid})");
            row.thread = sample.thread.0;
        }
        By::Type => match &sample.outcome() {
            Some(outcome) => {
                let name = profile.vm.type_name(sample.heap, outcome);
                row.name = name.unwrap_or(heaps::UNKNOWN_TYPE).to_owned();
                row.module = heaps::name(profile, sample.heap).to_owned();
            }
            None => row.name = "(no type)".to_owned(),
        },
        By::Heap => row.name = heaps::name(profile, sample.heap).to_owned(),
        By::Size => row.name = classes::size_name(group.sum.mark),
        By::Lifetime => row.name = classes::lifetime_name(group.sum.mark),
    }
    row
}
