//! The types of functions as the compiler's intermediate language has them: how every argument and result is passed.

use super::{Kind, Machine, NodeId};

impl Machine<'_> {
    /// The type of a function with the conventions by which arguments are passed.
    pub(super) fn impl_function_type(&mut self) -> Option<NodeId> {
        let mut children = Vec::new();
        if self.take(b's') {
            let list = self.only_arguments()?;
            let signature = self.pop_kind(Kind::Signature)?;
            children.push(self.node(Kind::ImplPattern, vec![signature, list])?);
        }
        if self.take(b'I') {
            let list = self.only_arguments()?;
            children.push(self.node(Kind::ImplInvocation, vec![list])?);
        }
        let signature = self.pop_kind(Kind::Signature);
        if signature.is_some() {
            self.take(b'P');
        }
        let mut words = Vec::new();
        self.impl_words(&mut words)?;
        for word in words {
            children.push(self.node(Kind::ImplAttribute(word), vec![])?);
        }
        if self.take(b'T') {
            children.push(self.node(Kind::ImplSendingResult, vec![])?);
        }
        children.extend(signature);
        let mut parts = Vec::new();
        self.impl_parts(&mut parts)?;
        self.take(b'_').then_some(())?;
        let mut types = Vec::new();
        for _ in &parts {
            types.push(self.pop_type()?);
        }
        types.reverse();
        for ((kind, mut words), inner) in parts.into_iter().zip(types) {
            words.push(inner);
            children.push(self.node(kind, words)?);
        }
        self.type_of(Kind::ImplFunction, children)
    }

    fn only_arguments(&mut self) -> Option<NodeId> {
        let mut lists = self.generic_arguments()?;
        let list = lists.pop()?;
        lists.is_empty().then_some(())?;
        self.node(Kind::TypeList, list)
    }

    fn impl_words(&mut self, words: &mut Vec<&'static str>) -> Option<()> {
        if self.take(b'e') {
            words.push("@escaping");
        }
        if self.take(b'A') {
            words.push("@isolated(any)");
        }
        let of_letter = |it: &mut Self, table: &[(u8, &'static str)]| {
            let letter = it.peek()?;
            let (_, word) = table.iter().find(|(wanted, _)| *wanted == letter)?;
            it.at += 1;
            Some(*word)
        };
        words.extend(of_letter(
            self,
            &[
                (b'd', "@differentiable"),
                (b'l', "@differentiable(_linear)"),
                (b'f', "@differentiable(_forward)"),
                (b'r', "@differentiable(reverse)"),
            ],
        ));
        words.push(of_letter(
            self,
            &[
                (b'y', "@callee_unowned"),
                (b'g', "@callee_guaranteed"),
                (b'x', "@callee_owned"),
                (b't', "@convention(thin)"),
            ],
        )?);
        words.extend(of_letter(
            self,
            &[
                (b'B', "@convention(block)"),
                (b'C', "@convention(c)"),
                (b'M', "@convention(method)"),
                (b'O', "@convention(objc_method)"),
                (b'K', "@convention(closure)"),
                (b'W', "@convention(witness_method)"),
            ],
        ));
        words.extend(of_letter(
            self,
            &[
                (b'A', "@yield_once"),
                (b'I', "@yield_once_2"),
                (b'G', "@yield_many"),
            ],
        ));
        words.extend(of_letter(self, &[(b'h', "@Sendable")]));
        words.extend(of_letter(self, &[(b'H', "@async")]));
        Some(())
    }

    /// Parameters, results, yields and an error, each with the words before its type.
    fn impl_parts(&mut self, parts: &mut Vec<(Kind, Vec<NodeId>)>) -> Option<()> {
        let mut add = |it: &mut Self, kind: Kind, word: &'static str| {
            let mut words = vec![it.node(Kind::ImplAttribute(word), vec![])?];
            let further: &[(u8, &'static str)] = match kind {
                Kind::ImplParameter => &[
                    (b'w', "@noDerivative"),
                    (b'T', "sending"),
                    (b'I', "isolated"),
                    (b'L', "sil_implicit_leading_param"),
                ],
                Kind::ImplResult("") => &[(b'w', "@noDerivative")],
                _ => &[],
            };
            for (letter, word) in further {
                if it.take(*letter) {
                    words.push(it.node(Kind::ImplAttribute(word), vec![])?);
                }
            }
            parts.push((kind, words));
            Some(())
        };
        while let Some(word) = self.impl_parameter() {
            add(self, Kind::ImplParameter, word)?;
        }
        while let Some(word) = self.impl_result() {
            add(self, Kind::ImplResult(""), word)?;
        }
        while self.take(b'Y') {
            let word = self.impl_parameter()?;
            add(self, Kind::ImplResult("@yields "), word)?;
        }
        if self.take(b'z') {
            let word = self.impl_result()?;
            add(self, Kind::ImplResult("@error "), word)?;
        }
        Some(())
    }

    fn impl_parameter(&mut self) -> Option<&'static str> {
        let word = match self.peek()? {
            b'i' => "@in",
            b'c' => "@in_constant",
            b'l' => "@inout",
            b'b' => "@inout_aliasable",
            b'n' => "@in_guaranteed",
            b'X' => "@in_cxx",
            b'x' => "@owned",
            b'g' => "@guaranteed",
            b'e' => "@deallocating",
            b'y' => "@unowned",
            b'v' => "@pack_owned",
            b'p' => "@pack_guaranteed",
            b'm' => "@pack_inout",
            _ => return None,
        };
        self.at += 1;
        Some(word)
    }

    fn impl_result(&mut self) -> Option<&'static str> {
        let word = match self.peek()? {
            b'r' => "@out",
            b'o' => "@owned",
            b'd' => "@unowned",
            b'u' => "@unowned_inner_pointer",
            b'a' => "@autoreleased",
            b'k' => "@pack_out",
            b'l' => "@guaranteed_address",
            b'g' => "@guaranteed",
            b'm' => "@inout",
            _ => return None,
        };
        self.at += 1;
        Some(word)
    }
}
