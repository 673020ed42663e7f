//! Names that are too long for their column, without what tells least: arguments of templates first, then directories, then
//! the middle. Names that differ still do.

use std::collections::HashMap;
use std::ops::Range;

/// What stands for a part that was left out.
const GAP: char = '…';

/// Cuts a name to so many characters.
pub fn shorten(text: &str, room: usize) -> String {
    if length(text) <= room {
        return text.to_owned();
    }
    let mut text = text.to_owned();
    while length(&text) > room {
        let part = widest(brackets(&text, '<'))
            .or_else(|| widest(brackets(&text, '(')))
            .or_else(|| directory(&text))
            .or_else(|| module(&text));
        match part {
            Some(part) => text.replace_range(part, "…"),
            None => return cut_middle(&text, room),
        }
    }
    text
}

/// Leaves out the middle of a text that is longer than so many characters.
pub fn cut_middle(text: &str, room: usize) -> String {
    match length(text) <= room {
        true => text.to_owned(),
        false => cut(text, room, room.saturating_sub(1) / 2),
    }
}

/// The same for names that are shown together: those that differ stay different, if there is room for it.
pub fn shorten_all(names: &[String], room: usize) -> Vec<String> {
    let mut short: Vec<String> = names.iter().map(|name| shorten(name, room)).collect();
    let mut users: HashMap<&str, Vec<usize>> = HashMap::new();
    for (place, text) in short.iter().enumerate() {
        users.entry(text).or_default().push(place);
    }
    let mut alike: Vec<Vec<usize>> = users.into_values().collect();
    alike.retain(|places| places.iter().any(|&place| names[place] != names[places[0]]));
    // The order of a hash table is another in each run.
    alike.sort_unstable();
    for places in alike {
        let mut different: Vec<&str> = places.iter().map(|&place| names[place].as_str()).collect();
        different.sort_unstable();
        different.dedup();
        let others: Vec<&str> = (0..names.len())
            .filter(|place| !places.contains(place))
            .map(|place| short[place].as_str())
            .collect();
        let cuts = tell_apart(&different, &others, room);
        for place in places {
            let number = different.binary_search(&names[place].as_str());
            short[place].clone_from(&cuts[number.unwrap_or_default()]);
        }
    }
    short
}

/// Cuts of these names, none of which is another's or one of `others`, if there is room for it.
fn tell_apart(names: &[&str], others: &[&str], room: usize) -> Vec<String> {
    let half = room.saturating_sub(1) / 2;
    // The beginning that all have is the longest part that says nothing; so is the end.
    let mut sizes: Vec<usize> = (0..room).collect();
    sizes.sort_by_key(|size| size.abs_diff(half));
    for start in sizes {
        let cuts: Vec<String> = names.iter().map(|name| cut(name, room, start)).collect();
        let mut sorted: Vec<&str> = cuts.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let is_distinct = sorted.windows(2).all(|pair| pair[0] != pair[1]);
        if is_distinct && !cuts.iter().any(|cut| others.contains(&cut.as_str())) {
            return cuts;
        }
    }
    // They differ in the middle, at several places: numbers tell them apart.
    let mut taken: Vec<String> = others.iter().map(|&other| other.to_owned()).collect();
    let mut cuts = Vec::new();
    for name in names {
        let numbered = (1..=names.len() + others.len() + 1).map(|number| {
            let mark = format!("#{number}");
            let room = room.saturating_sub(mark.len());
            cut(name, room, room.saturating_sub(1) / 2) + &mark
        });
        let mut numbered = numbered.filter(|cut| length(cut) <= room);
        let free = numbered.find(|cut| !taken.contains(cut));
        let cut = free.unwrap_or_else(|| cut(name, room, half));
        taken.push(cut.clone());
        cuts.push(cut);
    }
    cuts
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// The first characters and the last, as many as there is room for.
fn cut(text: &str, room: usize, start: usize) -> String {
    let length = length(text);
    if length <= room {
        return text.to_owned();
    }
    if room == 0 {
        return String::new();
    }
    let start = start.min(room - 1);
    let end = room - 1 - start;
    let before = text.chars().take(start);
    let behind = text.chars().skip(length - end);
    before.chain([GAP]).chain(behind).collect()
}

/// Insides of outermost brackets that open with `kind` and hold something, in bytes: `<...>` of templates, or `(...)` of
/// arguments.
fn brackets(text: &str, kind: char) -> Vec<Range<usize>> {
    const WORTH: usize = 2;
    let mut found = Vec::new();
    let mut open: Vec<(char, usize)> = Vec::new();
    for (at, it) in text.char_indices() {
        match it {
            '<' | '(' => open.push((it, at + 1)),
            '>' | ')' => {
                let is_pair = |&(opening, _): &(char, usize)| (opening == '<') == (it == '>');
                // An arrow, or an operator's name.
                let Some((_, start)) = open.pop_if(|it| is_pair(it)) else {
                    continue;
                };
                let is_outermost = open.is_empty() && text[..start].ends_with(kind);
                if is_outermost && length(&text[start..at]) >= WORTH {
                    found.push(start..at);
                }
            }
            _ => {}
        }
    }
    // `<T as Trait>::f` begins with what it is a method of.
    found.retain(|part| part.start > 1);
    found
}

fn widest(parts: Vec<Range<usize>>) -> Option<Range<usize>> {
    parts.into_iter().max_by_key(ExactSizeIterator::len)
}

/// The name of the module behind that of the function: `f [libm.so.6]`.
fn module(text: &str) -> Option<Range<usize>> {
    const WORTH: usize = 3;
    let start = text.rfind(" [")? + 2;
    let end = text.strip_suffix(']')?.len();
    (length(&text[start..end]) >= WORTH).then_some(start..end)
}

/// The directory in the middle of the first path: neither its beginning nor the name of the file.
fn directory(text: &str) -> Option<Range<usize>> {
    let word_end = text.find(' ').unwrap_or(text.len());
    let slashes: Vec<usize> = text[..word_end]
        .match_indices('/')
        .map(|(at, _)| at)
        .collect();
    let (&first, &last) = (slashes.first()?, slashes.last()?);
    let inside = first + 1..last;
    // What is left of a directory that was left out already.
    let is_more = last > first && text[inside.clone()].chars().ne([GAP]);
    (is_more && length(&text[inside.clone()]) > 1).then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;
    use std::collections::HashSet;

    #[test]
    fn templates_and_directories_go_before_functions_and_files() {
        for (name, room, short) in [
            ("abcdefg", 5, "ab…fg"),
            (
                "std::map<std::string, int>::insert(std::string const&)",
                40,
                "std::map<…>::insert(std::string const&)",
            ),
            (
                "std::map<std::string, int>::insert(std::string const&)",
                24,
                "std::map<…>::insert(…)",
            ),
            (
                "<T as Into<Vec<u8>>>::into",
                26,
                "<T as Into<Vec<u8>>>::into",
            ),
            (
                "lib/deep/down/there/file.py:12 load",
                24,
                "lib/…/file.py:12 load",
            ),
            ("RequestHandler.data_received", 16, "Request…received"),
            (
                "createEmbeddedStringObject [redis-check-rdb]",
                32,
                "createEmbeddedStringObject […]",
            ),
        ] {
            assert_eq!(shorten(name, room), short);
        }
    }

    #[test]
    fn different_names_of_one_table_stay_different() {
        let mut random = Random::from_seed(7);
        let parts = [
            "data", "<int, ", "std::", ">", "(", ")", "/", "Request", "received", "é", "a", "b",
        ];
        for _ in 0..2_000 {
            let room = 8 + random.below(30) as usize;
            let count = 1 + random.below(40) as usize;
            let names: Vec<String> = (0..count)
                .map(|_| {
                    let words = 1 + random.below(12);
                    (0..words)
                        .map(|_| parts[random.below(parts.len() as u64) as usize])
                        .collect()
                })
                .collect();
            let short = shorten_all(&names, room);
            assert!(
                short.iter().all(|it| length(it) <= room),
                "{room}: {short:?}"
            );
            let different: HashSet<&String> = names.iter().collect();
            let pairs: HashSet<(&String, &String)> = names.iter().zip(&short).collect();
            let shown: HashSet<&String> = short.iter().collect();
            assert_eq!(pairs.len(), different.len());
            assert_eq!(shown.len(), different.len(), "{room}: {names:?} {short:?}");
        }
    }
}
