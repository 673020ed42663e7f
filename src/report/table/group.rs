//! Groups sums into rows.

use std::collections::HashMap;

use allocsample_profile::{HeapId, Profile, Sample, is_of_system, with_error_of_moment};
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;

use super::{By, Request, Row, Sort, Table, by_frame, classes};
use crate::frames::{FrameId, Frames, Paths};
use crate::heaps;
use crate::numbering::Numbering;
use crate::selection::Window;
use crate::sums::{Figures, Sums};

/// A row before it has a name. There may be a million of them.
pub(super) struct Group {
    /// The sum that it is named after.
    pub(super) sum: u32,
    pub(super) frame: Option<FrameId>,
}

/// Rows before they have names.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) groups: Vec<Group>,
    /// What is charged to each; none where that is what the sum of each says.
    pub(super) own: Vec<Figures>,
    /// What is charged to each and to what it called. None where rows have no more than their own.
    pub(super) total: Vec<Total>,
    /// For each sum which group it is charged to.
    pub(super) charged: Vec<u32>,
}

/// What is charged to a row and to what it called.
#[derive(Clone, Copy, Default)]
pub(super) struct Total {
    pub(super) allocated: Estimate,
    live: Estimate,
    peak: Estimate,
    /// See [`Figures::excess`].
    excess: f64,
}

impl Total {
    pub(super) fn of(figures: &Figures) -> Self {
        Self {
            allocated: figures.allocated,
            live: figures.live,
            peak: figures.peak,
            excess: figures.excess(),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.allocated += other.allocated;
        self.live += other.live;
        self.peak += other.peak;
        self.excess += other.excess;
    }

    /// The live bytes, with the error of not knowing when the peak was if they are those of the peak.
    fn live(&self, window: &Window) -> Estimate {
        match window.is_at_peak {
            true => with_error_of_moment(self.live, self.excess),
            false => self.live,
        }
    }

    /// The bytes that were alive at the peak.
    fn peak(&self) -> Estimate {
        with_error_of_moment(self.peak, self.excess)
    }

    /// What comes second where `sort` is first: a function that allocates nothing itself stands where its total does.
    fn second(&self, sort: Sort) -> f64 {
        match sort {
            Sort::Live => self.live.value(),
            Sort::Peak => self.peak.value(),
            Sort::Allocated | Sort::Count | Sort::Growth => self.allocated.value(),
        }
    }
}

impl Groups {
    fn own<'a>(&'a self, sums: &'a Sums, index: usize) -> &'a Figures {
        match self.own.get(index) {
            Some(own) => own,
            None => &sums.at(self.groups[index].sum).figures,
        }
    }

    fn total(&self, own: &Figures, index: usize) -> Total {
        let total = self.total.get(index).copied();
        total.unwrap_or_else(|| Total::of(own))
    }
}

/// What is selected, grouped and in order. Its rows get their names when they are asked for: those of all take far more memory
/// than this.
pub struct Grouped<'a> {
    profile: &'a Profile,
    frames: &'a Frames<'a>,
    by: By,
    window: Window,
    sums: Sums,
    groups: Groups,
    /// Indices of groups, largest first.
    order: Vec<usize>,
    limit: usize,
}

impl<'a> Grouped<'a> {
    /// Groups what is selected.
    pub fn of(profile: &'a Profile, frames: &'a Frames<'a>, request: &Request<'_>) -> Self {
        Self::new(profile, frames, request, false)
    }

    /// The same, and keeps in mind where each sample went.
    pub(super) fn with_samples(
        profile: &'a Profile,
        frames: &'a Frames<'a>,
        request: &Request<'_>,
    ) -> Self {
        Self::new(profile, frames, request, true)
    }

    fn new(
        profile: &'a Profile,
        frames: &'a Frames<'a>,
        request: &Request<'_>,
        keeps_samples: bool,
    ) -> Self {
        let by = request.by;
        let window = Window::of(profile, request.selection, request.peak);
        let types = match by {
            By::Type => TypeMarks::of(profile),
            _ => TypeMarks::default(),
        };
        let mut sums = Sums::of(
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
        let groups = if by.has_total() {
            by_frame::group(frames, by, &sums)
        } else {
            by_sum(frames, by, &mut sums)
        };
        let order = order(frames, request, &groups, &sums);
        Self {
            profile,
            frames,
            by,
            window,
            sums,
            groups,
            order,
            limit: request.limit,
        }
    }

    /// What rows are.
    pub fn by(&self) -> By {
        self.by
    }

    /// How many rows there are, with those beyond the limit.
    pub fn row_count(&self) -> usize {
        self.order.len()
    }

    /// Over all samples that were selected: each is charged to exactly one row.
    pub fn selected(&self) -> Figures {
        self.sums.whole.finished(&self.window)
    }

    /// How many of them are within the limit.
    pub fn shown_count(&self) -> usize {
        self.order.len().min(self.limit)
    }

    /// The row at a place below [`Self::shown_count`].
    pub fn row(&self, place: usize) -> Row {
        let places = (&self.groups, &self.sums, &self.window);
        let index = self.order[place];
        row(
            self.profile,
            self.frames,
            self.by,
            places,
            index,
            &mut Vec::new(),
        )
    }

    /// The rows up to the limit.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.shown_count()).map(|place| self.row(place))
    }

    /// The same; they take their table with them.
    pub fn into_rows(self) -> impl Iterator<Item = Row> + 'a {
        (0..self.shown_count()).map(move |place| self.row(place))
    }

    /// Leaves out rows that have nothing of the figure, themselves or in what they called; of growth, and where threads
    /// start, nothing themselves.
    pub(super) fn drop_empty(&mut self, sort: Sort) {
        let (groups, sums) = (&self.groups, &self.sums);
        self.order.retain(|&index| {
            let own = groups.own(sums, index);
            let module = groups.groups[index]
                .frame
                .map(|id| &self.frames.frame(id).module);
            let has_total = match sort {
                Sort::Growth => false,
                _ if module.is_some_and(|module| is_of_system(module)) => false,
                _ => groups.total(own, index).second(sort) != 0.0,
            };
            has_total || sort.of(own).value() != 0.0
        });
    }

    /// With all rows in memory.
    pub(super) fn table(&self) -> Table {
        Table {
            rows: self.rows().collect(),
            row_count: self.row_count(),
            selected: self.selected(),
        }
    }

    /// For each sample the index of the row that it is charged to, be that within the limit or not.
    pub(super) fn of_sample(&self) -> Vec<u32> {
        let mut places = vec![Table::NONE; self.order.len()];
        for (place, &index) in (0..).zip(&self.order) {
            places[index] = place;
        }
        let of_sum = |sum: u32| {
            let group = self.groups.charged.get(sum as usize);
            group.map_or(Table::NONE, |&group| places[group as usize])
        };
        self.sums.of_sample.iter().map(|&sum| of_sum(sum)).collect()
    }
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

/// Groups of whole sums, of which the first gets what is in the others too.
fn by_sum(frames: &Frames<'_>, by: By, sums: &mut Sums) -> Groups {
    let mut paths = (by == By::Site).then(|| Paths::new(frames));
    // Of what tells groups apart: a group's number is that of its key.
    let mut keys = Numbering::default();
    let mut groups = Groups::default();
    let mut stack = Vec::new();
    for number in 0..sums.count() {
        let sum = sums.at(number);
        let sample = sum.sample(frames.profile);
        let key = match &mut paths {
            Some(paths) => paths.number(sample.stack, 0),
            None if by == By::Heap => u32::from(sample.heap.0),
            None => sum.mark,
        };
        let place = keys.number(key);
        groups.charged.push(place);
        if let Some(group) = groups.groups.get(place as usize) {
            let figures = sum.figures;
            sums.at_mut(group.sum).figures.add(&figures);
            continue;
        }
        let mut frame = None;
        if by == By::Site {
            frames.fill(sample.stack, &mut stack);
            let own = frames.charged(sample.heap, &stack);
            frame = own.map(|own| stack[own]);
        }
        groups.groups.push(Group { sum: number, frame });
    }
    groups
}

/// Indices of the groups, largest first; equal ones by name, so that a report does not depend on chance.
fn order(frames: &Frames<'_>, request: &Request<'_>, groups: &Groups, sums: &Sums) -> Vec<usize> {
    let mut order: Vec<usize> = (0..groups.groups.len()).collect();
    let size = |&index: &usize| {
        let own = groups.own(sums, index);
        let total = groups.total(own, index);
        (request.sort.of(own).value(), total.second(request.sort))
    };
    let sizes: Vec<(f64, f64)> = order.iter().map(size).collect();
    order.sort_by(|&a, &b| {
        let (a_size, b_size) = (sizes[a], sizes[b]);
        let (a, b) = (&groups.groups[a], &groups.groups[b]);
        let name = |group: &Group| group.frame.map(|id| frames.frame(id));
        let mark = |group: &Group| sums.at(group.sum).mark;
        b_size
            .0
            .total_cmp(&a_size.0)
            .then(b_size.1.total_cmp(&a_size.1))
            .then_with(|| name(a).cmp(&name(b)))
            .then_with(|| mark(a).cmp(&mark(b)))
    });
    order
}

fn row(
    profile: &Profile,
    frames: &Frames<'_>,
    by: By,
    (groups, sums, window): (&Groups, &Sums, &Window),
    index: usize,
    stack: &mut Vec<FrameId>,
) -> Row {
    let group = &groups.groups[index];
    let own = groups.own(sums, index);
    let total = groups.total(own, index);
    let own = own.finished(window);
    let mut row = Row {
        self_allocated: own.allocated,
        total_allocated: total.allocated,
        self_live: own.live,
        total_live: total.live(window),
        total_peak: total.peak(),
        allocations: own.allocations,
        self_peak: own.peak,
        self_growth: own.growth,
        ..Row::default()
    };
    let sum = sums.at(group.sum);
    let sample = &sum.sample(profile);
    if let Some(frame) = group.frame.map(|id| frames.frame(id)) {
        row.name.clone_from(&frame.function);
        row.file.clone_from(&frame.file);
        row.line = frame.line;
        row.file_end.clone_from(&frame.file_end);
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
            row.file_end = None;
        }
        By::Site => {
            frames.fill(sample.stack, stack);
            row.charged = frames.charged(sample.heap, stack).unwrap_or(0);
            row.stack = stack
                .iter()
                .map(|id| frames.frame(*id).label().into_owned())
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
        By::Size => row.name = classes::size_name(sum.mark),
        By::Lifetime => row.name = classes::lifetime_name(sum.mark),
    }
    row
}
