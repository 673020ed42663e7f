//! Source files of one program that was built in several directories.
//!
//! Debug information has absolute paths, and two checkouts of a program share only the ends of them. So a path is
//! replaced by the reference's path with the most trailing components in common. A path that the reference has stays.

use std::collections::{BTreeSet, HashMap};

/// The paths of the reference, and what stands for each path of the others.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    reference: BTreeSet<String>,
}

impl Paths {
    /// Of a profile that the others are matched with.
    pub(crate) fn of(reference: impl Iterator<Item = String>) -> Self {
        Self {
            reference: reference.collect(),
        }
    }

    /// For each of these paths the reference's, if there is one for it alone: the pairs with the longest common ends come
    /// first, and each path is in one pair.
    pub(crate) fn matched(&self, paths: &BTreeSet<String>) -> HashMap<String, String> {
        let free = self.reference.difference(paths);
        let mut by_name: HashMap<&str, Vec<&String>> = HashMap::new();
        for path in free {
            by_name.entry(file_name(path)).or_default().push(path);
        }
        let mut pairs: Vec<(usize, &String, &String)> = Vec::new();
        for path in paths.difference(&self.reference) {
            let candidates = by_name.get(file_name(path)).into_iter().flatten();
            pairs.extend(candidates.map(|other| (common_end(path, other), path, *other)));
        }
        // Longest first; the rest of the order only makes it the same in each run.
        pairs.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)).then(a.2.cmp(b.2)));
        let mut taken = BTreeSet::new();
        let mut matched = HashMap::new();
        for (_, path, other) in pairs {
            if !matched.contains_key(path) && taken.insert(other) {
                matched.insert(path.clone(), other.clone());
            }
        }
        matched
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// How many components the ends of two paths share.
fn common_end(one: &str, other: &str) -> usize {
    let pairs = one.rsplit('/').zip(other.rsplit('/'));
    pairs.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_two_checkouts_are_matched_by_their_ends() {
        let set = |paths: &[&str]| -> BTreeSet<String> {
            paths.iter().map(|&path| path.to_owned()).collect()
        };
        let reference = set(&[
            "/home/a/app/net/mod.rs",
            "/home/a/app/disk/mod.rs",
            "/usr/include/list.h",
            "/home/a/app/old.rs",
        ]);
        let matched = Paths::of(reference.into_iter()).matched(&set(&[
            "/srv/b/net/mod.rs",
            "/srv/b/disk/mod.rs",
            "/usr/include/list.h",
            "/srv/b/new.rs",
        ]));
        assert_eq!(matched.len(), 2);
        assert_eq!(matched["/srv/b/net/mod.rs"], "/home/a/app/net/mod.rs");
        assert_eq!(matched["/srv/b/disk/mod.rs"], "/home/a/app/disk/mod.rs");
    }
}
