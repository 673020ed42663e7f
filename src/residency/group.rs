//! The control group that a process is in, and its memory: version 2, or version 1 of the memory controller.

use std::fs;
use std::path::{Path, PathBuf};

use allocsample_record::GroupFigure;

/// A group, by its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    directory: PathBuf,
    is_version_1: bool,
}

impl Group {
    /// The group of the process whose files are in `process`, such as `/proc/self`. `None`: the kernel does not tell, or the
    /// group's files are not there.
    pub fn of(process: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("{process}/cgroup")).ok()?;
        Self::find(&groups, Path::new("/sys/fs/cgroup"))
    }

    /// By the lines of `/proc/PID/cgroup`, below this root. Within a container the path may be that of the host, whose files are
    /// not there: the root's are the container's own then.
    fn find(groups: &str, root: &Path) -> Option<Self> {
        let lines = groups.lines().map(|line| line.splitn(3, ':'));
        let fields = lines.filter_map(|mut it| Some((it.next()?, it.next()?, it.next()?)));
        let mut found = fields.filter_map(|(_, controllers, path)| {
            let is_version_1 = match controllers {
                "" => false,
                _ if controllers.split(',').any(|it| it == "memory") => true,
                _ => return None,
            };
            let root = match is_version_1 {
                true => root.join("memory"),
                false => root.to_owned(),
            };
            let current = match is_version_1 {
                true => "memory.usage_in_bytes",
                false => "memory.current",
            };
            let own = root.join(path.trim_start_matches('/'));
            let directories = [own, root];
            let directory = directories
                .into_iter()
                .find(|it| it.join(current).exists())?;
            Some(Self {
                directory,
                is_version_1,
            })
        });
        found.next()
    }

    /// What the kernel tells of it.
    pub fn figures(&self) -> Vec<(GroupFigure, u64)> {
        use GroupFigure as F;
        let (files, stat): (&[_], &[_]) = match self.is_version_1 {
            false => (
                &[
                    (F::Current, "memory.current"),
                    (F::Max, "memory.max"),
                    (F::Swap, "memory.swap.current"),
                ],
                &[
                    (F::Anonymous, "anon"),
                    (F::File, "file"),
                    (F::Shared, "shmem"),
                    (F::Kernel, "kernel"),
                ],
            ),
            true => (
                &[
                    (F::Current, "memory.usage_in_bytes"),
                    (F::Max, "memory.limit_in_bytes"),
                    (F::Kernel, "memory.kmem.usage_in_bytes"),
                ],
                &[
                    (F::Anonymous, "total_rss"),
                    (F::File, "total_cache"),
                    (F::Shared, "total_shmem"),
                    (F::Swap, "total_swap"),
                ],
            ),
        };
        /// Version 1 writes "no limit" as the largest number of whole pages.
        const NO_LIMIT: u64 = 1 << 62;
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).ok();
        let mut figures = Vec::new();
        for (figure, name) in files {
            let value = read(name).and_then(|text| text.trim().parse().ok());
            figures.extend(value.filter(|it| *it < NO_LIMIT).map(|it| (*figure, it)));
        }
        let mut take = |file: &str, keys: &[(F, &str)]| {
            let text = read(file).unwrap_or_default();
            let values = text.lines().filter_map(|line| line.split_once(' '));
            for (key, value) in values {
                let figure = keys.iter().find(|(_, name)| *name == key);
                let value = value.trim().parse().ok();
                figures.extend(figure.zip(value).map(|((figure, _), it)| (*figure, it)));
            }
        };
        take("memory.stat", stat);
        let events = [(F::OomKills, "oom_kill"), (F::MaxEvents, "max")];
        take("memory.events", &events);
        figures.sort_unstable();
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("it has a directory")).expect("directory");
            fs::write(path, text).expect("file");
        }
    }

    #[test]
    fn a_group_is_found_by_its_path_or_as_the_root_of_a_container() {
        let root = tempfile::tempdir().expect("directory");
        let root = root.path();
        assert_eq!(Group::find("0::/a/b\n", root), None);
        write(
            root,
            &[("memory.current", "5\n"), ("a/b/memory.current", "7\n")],
        );
        let of = |lines| Group::find(lines, root).expect("a group").figures();
        assert_eq!(of("0::/a/b\n"), [(GroupFigure::Current, 7)]);
        assert_eq!(of("0::/of/the/host\n"), [(GroupFigure::Current, 5)]);
        assert_eq!(Group::find("2:cpu:/\n", root), None);
    }

    #[test]
    fn figures_are_read_in_both_versions() {
        use GroupFigure as F;
        let root = tempfile::tempdir().expect("directory");
        let root = root.path();
        write(
            root,
            &[
                ("memory.current", "1000\n"),
                ("memory.max", "max\n"),
                (
                    "memory.stat",
                    "anon 600\nfile 300\nkernel 50\nshmem 20\nunknown 1\n",
                ),
                ("memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n"),
                ("memory/x/memory.usage_in_bytes", "90\n"),
                ("memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
                (
                    "memory/x/memory.stat",
                    "cache 1\ntotal_cache 40\ntotal_rss 50\n",
                ),
            ],
        );
        let second = Group::find("0::/\n", root).expect("version 2").figures();
        let expected = [
            (F::Current, 1000),
            (F::Anonymous, 600),
            (F::File, 300),
            (F::Shared, 20),
            (F::Kernel, 50),
            (F::OomKills, 2),
            (F::MaxEvents, 3),
        ];
        assert_eq!(second, expected);
        let first = Group::find("4:cpu,memory:/x\n0::/\n", root).expect("version 1");
        let expected = [(F::Current, 90), (F::Anonymous, 50), (F::File, 40)];
        assert_eq!(first.figures(), expected);
    }
}
