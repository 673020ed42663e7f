//! Reads the symbols of Crystal: `*Slice(UInt8)::new<Int32>:Slice(UInt8)` is `Slice(UInt8)::new`.

/// A method without the types of its arguments and its value; `None` for the symbols of other languages.
pub(super) fn demangle(symbol: &str) -> Option<String> {
    let method = symbol.strip_prefix('*')?;
    let method = without_value(method);
    let method = without_arguments(method);
    (!method.is_empty()).then(|| method.to_owned())
}

/// Up to the last colon outside of parentheses that is not a part of `::`.
fn without_value(method: &str) -> &str {
    let bytes = method.as_bytes();
    let mut depth = 0_u32;
    for at in (1..bytes.len()).rev() {
        match bytes[at] {
            b')' => depth += 1,
            b'(' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes[at - 1] != b':' && bytes.get(at + 1) != Some(&b':') => {
                return method.get(..at).unwrap_or(method);
            }
            _ => {}
        }
    }
    method
}

/// Without `<...>` at the end, unless that is an operator's name: `Int32#<=>`.
fn without_arguments(method: &str) -> &str {
    if !method.ends_with('>') {
        return method;
    }
    let mut depth = 0_u32;
    for (at, byte) in method.bytes().enumerate().rev() {
        match byte {
            b'>' => depth += 1,
            b'<' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let before = method.get(..at).unwrap_or(method);
            let is_name = !before.is_empty() && !before.ends_with(['#', ':', '.']);
            return if is_name { before } else { method };
        }
    }
    method
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::demangle;

    #[test]
    fn methods_are_without_types_of_arguments() {
        for (symbol, method) in [
            ("*leak_session:Slice(UInt8)", "leak_session"),
            ("*Mutex#lock_slow:Nil", "Mutex#lock_slow"),
            (
                "*Fiber::swapcontext<Pointer(Fiber::Context), Pointer(Fiber::Context)>:Nil",
                "Fiber::swapcontext",
            ),
            ("*Int32#<=><Int32>:Int32", "Int32#<=>"),
            ("*Int32#<=>:Int32", "Int32#<=>"),
            (
                "*Hash(String, Int32)#[]=<String, Int32>:Int32",
                "Hash(String, Int32)#[]=",
            ),
        ] {
            assert_eq!(demangle(symbol).as_deref(), Some(method), "{symbol}");
        }
        for symbol in ["main", "", "*"] {
            assert_eq!(demangle(symbol), None, "{symbol}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(symbol in "\\PC{0,60}", ends in "[#<>:=().a]{0,20}") {
            let _ = demangle(&symbol);
            let _ = demangle(&format!("*{symbol}{ends}"));
        }
    }
}
