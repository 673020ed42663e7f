//! Reads the names that Nim gives its functions in C: `leakSession__known95truth_169` is `known_truth.leakSession`.
//!
//! A name is `NAME__MODULE_NUMBER`, with `u` before the number since Nim 2. In a module's path `Z` is a slash, `O` is a dot,
//! and a decimal character code stands for everything else except small letters. Operators are spelled out, each followed by `_`.
//! With `--debugger:native`, Nim 2.2 writes `_ZN`, the module and the name, each behind its length, `E`, and the types of the
//! parameters: `_ZN11known_truth11leakSessionE` is the same function. C++ has no such types, and nothing for no parameters.
//! The runtime's own functions (`NimMain`, `newSeqPayload`) keep the names they were written with.

/// Characters of operators, as they are spelled. None is the beginning of another one.
const WORDS: &[(&str, char)] = &[
    ("dollar", '$'),
    ("percent", '%'),
    ("amp", '&'),
    ("roof", '^'),
    ("emark", '!'),
    ("qmark", '?'),
    ("star", '*'),
    ("plus", '+'),
    ("minus", '-'),
    ("slash", '/'),
    ("backslash", '\\'),
    ("eq", '='),
    ("lt", '<'),
    ("gt", '>'),
    ("tilde", '~'),
    ("colon", ':'),
    ("dot", '.'),
    ("at", '@'),
    ("bar", '|'),
];

/// The readable form of a function's name, `None` if it is as it was written.
pub(super) fn demangle(mangled: &str) -> Option<String> {
    // What C compilers append to parts of a function: `.cold`, `.isra.0`.
    let mangled = mangled.split('.').next()?;
    if let Some(nested) = mangled.strip_prefix("_ZN") {
        let (module, rest) = with_length(nested)?;
        let (name, rest) = with_length(rest)?;
        return rest
            .starts_with('E')
            .then(|| format!("{module}.{}", own_name(name)));
    }
    let (rest, number) = mangled.rsplit_once('_')?;
    let number = number.strip_prefix('u').unwrap_or(number);
    (!number.is_empty() && number.bytes().all(|it| it.is_ascii_digit())).then_some(())?;
    let (name, module) = rest.rsplit_once("__")?;
    (!name.is_empty()).then_some(())?;
    let module = path(module)?;
    let module = module.rsplit('/').next().filter(|it| !it.is_empty())?;
    Some(format!("{module}.{}", own_name(name)))
}

/// What the number before it is the length of, and the rest.
fn with_length(mangled: &str) -> Option<(&str, &str)> {
    let digits = mangled.bytes().take_while(u8::is_ascii_digit).count();
    let (length, rest) = mangled.split_at_checked(digits)?;
    let (name, rest) = rest.split_at_checked(length.parse().ok()?)?;
    (!name.is_empty()).then_some((name, rest))
}

fn path(mangled: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = mangled;
    while let Some(first) = rest.bytes().next() {
        let length = match first {
            b'a'..=b'z' | b'Z' | b'O' => 1,
            // Codes from 32 to 99 have two digits. Those that begin with 1 or 2 have three.
            b'3'..=b'9' => 2,
            b'1' | b'2' => 3,
            _ => return None,
        };
        let (part, behind) = rest.split_at_checked(length)?;
        bytes.push(match first {
            b'Z' => b'/',
            b'O' => b'.',
            b'a'..=b'z' => first,
            _ => part.parse::<u8>().ok().filter(|it| *it >= b' ')?,
        });
        rest = behind;
    }
    (!bytes.is_empty()).then_some(())?;
    String::from_utf8(bytes).ok()
}

/// An operator, a hook such as `=destroy`, a setter such as `len=`, or the name as it is.
fn own_name(mangled: &str) -> String {
    let Some(spelled) = mangled.strip_suffix('_').filter(|it| !it.is_empty()) else {
        return mangled.to_owned();
    };
    if let Some(operator) = operator(spelled) {
        return format!("`{operator}`");
    }
    match (spelled.strip_prefix("eq"), spelled.strip_suffix("eq")) {
        (Some(hook), _) => format!("`={hook}`"),
        (None, Some(field)) => format!("`{field}=`"),
        (None, None) => spelled.to_owned(),
    }
}

fn operator(spelled: &str) -> Option<String> {
    let mut operator = String::new();
    let mut rest = spelled;
    while !rest.is_empty() {
        let word = WORDS.iter().find(|(word, _)| rest.starts_with(word));
        let (length, character) = match word {
            Some((word, character)) => (word.len(), *character),
            // Brackets: `X5B`.
            None => {
                let code = rest.strip_prefix('X')?.get(..2)?;
                let code = u8::from_str_radix(code, 16).ok()?;
                (
                    3,
                    char::from(code)
                        .is_ascii_graphic()
                        .then(|| char::from(code))?,
                )
            }
        };
        operator.push(character);
        rest = rest.get(length..)?;
    }
    Some(operator)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::demangle;

    #[test]
    fn names_have_the_last_part_of_their_modules_path() {
        for (mangled, name) in [
            ("leakSession__known95truth_169", "known_truth.leakSession"),
            ("main__known95truth_u247", "known_truth.main"),
            ("addInt__stdZprivateZdigitsutils_155", "digitsutils.addInt"),
            ("setLen__pureZtimes_2068.cold", "times.setLen"),
            ("amp___system_1234", "system.`&`"),
            ("X5BX5Deq___system_7", "system.`[]=`"),
            ("eqdestroy___pureZtimes_12", "times.`=destroy`"),
            ("leneq___app_u3", "app.`len=`"),
            ("a__b49_1", "b1.a"),
            ("_ZN11known_truth11leakSessionE", "known_truth.leakSession"),
            ("_ZN11known_truth4siteE6string3int", "known_truth.site"),
            (
                "_ZN11digitsutils6addIntE3varI6stringE5int64",
                "digitsutils.addInt",
            ),
            ("_ZN6system10eqdestroy_E3seqI5uInt8E", "system.`=destroy`"),
            (
                "_ZN6system8readLineE3ptrIN6syncio5CFileEE.cold",
                "system.readLine",
            ),
        ] {
            assert_eq!(demangle(mangled).as_deref(), Some(name), "{mangled}");
        }
    }

    #[test]
    fn other_names_stay() {
        for name in [
            "",
            "NimMain",
            "newSeqPayload",
            "__libc_start_main",
            "pthread_create_2",
            "a__B_1",
            "a___1",
            "__app_1",
            "a__app_",
            "a__app_u",
            "a__9_1",
            "_ZN3appE",
            "_ZN3app3runC1Ev",
            "_ZN3app0E",
            "_ZN3app9run",
            "_ZN3app99999999999999999999runE",
            "_ZN3appé3runE",
        ] {
            assert_eq!(demangle(name), None, "{name}");
        }
    }

    /// As the compiler makes a module's path a part of a name.
    fn mangled_path(path: &str) -> String {
        let mangle = |it: u8| match it {
            b'a'..=b'z' => char::from(it).to_string(),
            b'/' => "Z".to_owned(),
            b'.' => "O".to_owned(),
            _ => it.to_string(),
        };
        path.bytes().map(mangle).collect()
    }

    proptest! {
        #[test]
        fn paths_of_any_characters_come_back(
            directory in "[a-z0-9./_A-ZÀ-ž-]{0,20}",
            module in "[a-zA-Z0-9_À-ž]{1,12}",
            name in "[a-zA-Z][a-zA-Z0-9]{0,12}",
            number in 0_u32..1_000_000,
        ) {
            let mangled = format!("{name}__{}_{number}", mangled_path(&format!("{directory}/{module}")));
            prop_assert_eq!(demangle(&mangled), Some(format!("{module}.{name}")));
        }

        #[test]
        fn any_text_is_read_or_not(name in "\\PC{0,60}") {
            let _ = demangle(&name);
            let _ = demangle(&format!("{name}__{name}_1"));
            let _ = demangle(&format!("_ZN{name}3appE"));
            let _ = demangle(&format!("_ZN3app{name}E"));
        }
    }
}
