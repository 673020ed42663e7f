//! Numbers for locations: with one a stack node takes a third less memory than with a module and an offset.

use allocsample_record::Location;
use rustc_hash::FxHashMap;

/// Number of a location in [`Places`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

/// Locations that have a number. A program has about ten thousand call sites; one that generates code has ever more.
#[derive(Debug, Default)]
pub(crate) struct Places {
    numbers: FxHashMap<Location, Place>,
    locations: Vec<Location>,
}

impl Places {
    /// Maximum number of locations, in 10 MiB; then all are forgotten.
    const MOST: usize = 1 << 18;

    /// Whether all numbers should be forgotten, here and wherever they are kept.
    pub(crate) fn is_full(&self) -> bool {
        self.locations.len() >= Self::MOST
    }

    /// Returns the number of a location; assigns one if necessary.
    pub(crate) fn number(&mut self, location: Location) -> Place {
        let locations = &mut self.locations;
        *self.numbers.entry(location).or_insert_with(|| {
            locations.push(location);
            // May exceed `MOST` slightly: numbers are only forgotten between two stacks.
            Place(locations.len() as u32 - 1)
        })
    }

    /// The location that was given this number.
    pub(crate) fn location(&self, place: Place) -> Location {
        self.locations[place.0 as usize]
    }
}
