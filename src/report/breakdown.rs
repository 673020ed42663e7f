//! The same figures of all that is selected, of types and of sites.

use allocsample_profile::Profile;
use serde_json::{Value, json};

use crate::frames::Frames;
use crate::selection::Selection;
use crate::table::{By, Request, Sort, Table};

/// Figures `T` of all that is selected, and of its parts.
#[derive(Clone, Debug)]
pub struct Breakdown<T> {
    /// Of all.
    pub all: T,
    /// Of types.
    pub types: Vec<T>,
    /// Of sites.
    pub sites: Vec<T>,
}

impl<T> Breakdown<T> {
    /// All, then types, then sites, each with what it is: "all", "type" or "site".
    pub fn each(&self) -> impl Iterator<Item = (&'static str, &T)> {
        let all = std::iter::once(("all", &self.all));
        let types = self.types.iter().map(|part| ("type", part));
        let sites = self.sites.iter().map(|part| ("site", part));
        all.chain(types).chain(sites)
    }

    /// For scripts. `of` is told under which key to put the name.
    pub(crate) fn to_json_with(&self, schema: &str, of: impl Fn(&T, &str) -> Value) -> Value {
        let list = |parts: &[T], key: &str| -> Vec<Value> {
            parts.iter().map(|part| of(part, key)).collect()
        };
        json!({
            "schema": schema,
            "all": of(&self.all, "name"),
            "types": list(&self.types, "type"),
            "sites": list(&self.sites, "site"),
        })
    }
}

/// Types or sites, those that allocate most first.
pub(crate) struct Parts {
    /// What they are called.
    pub names: Vec<String>,
    /// For each sample in which it is; another number where in none of them.
    pub of_sample: Vec<u32>,
}

impl Parts {
    /// At most `limit`.
    pub fn of(
        profile: &Profile,
        frames: &Frames<'_>,
        selection: &Selection,
        by: By,
        limit: usize,
    ) -> Self {
        let request = Request {
            by,
            sort: Sort::Allocated,
            selection,
            peak: None,
            limit,
        };
        let (table, of_sample) = Table::of_samples(profile, frames, &request);
        let names = table.rows.into_iter().map(|row| match by {
            By::Site => row.stack[row.charged..].join(" < "),
            _ if row.module.is_empty() => row.name,
            _ => format!("{} [{}]", row.name, row.module),
        });
        Self {
            names: names.collect(),
            of_sample,
        }
    }
}
