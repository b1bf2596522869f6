//! Puts mutants into a file's text, and finds the mutants that caused a compiler error. Used by `build`.

use std::collections::BTreeSet;
use std::ops::Range;

use syn::visit::Visit;

use super::find::SWITCH;
use super::mutant::Mutant;

/// A file with its mutants.
#[derive(Debug)]
pub(crate) struct Spliced {
    pub(crate) text: String,
    places: Vec<SplicePlace>,
    /// The insertions: offset in the original, and number of bytes.
    insertions: Vec<(usize, usize)>,
}

/// The place of a mutant in the new text.
#[derive(Debug)]
struct SplicePlace {
    number: u32,
    /// The range of the text before the mutant's span.
    before: Range<usize>,
    whole: Range<usize>,
    /// The range of the function, in the original.
    function: Range<usize>,
}

/// One piece of text to put in. Order of pieces at the same offset: ends before beginnings; inner ends first, outer
/// beginnings first.
struct Piece {
    at: usize,
    begins: bool,
    /// The distance to the other end of the span.
    reach: usize,
    order: usize,
    index: usize,
}

/// Puts the mutants in. Functions named in `unconst` lose their `const`.
pub(crate) fn splice(
    original: &str,
    mutants: &[(u32, &Mutant)],
    unconst: &BTreeSet<String>,
) -> Spliced {
    let original = without_const(original, unconst);
    let mut pieces = Vec::new();
    for (index, (_, mutant)) in mutants.iter().enumerate() {
        let Range { start, end } = mutant.span;
        let reach = end - start;
        pieces.push(Piece { at: start, begins: true, reach, order: index, index });
        pieces.push(Piece { at: end, begins: false, reach, order: usize::MAX - index, index });
    }
    // An empty span begins and ends at the same offset: its end must have no text, since ends come before beginnings.
    pieces.retain(|piece| piece.begins || !mutants[piece.index].1.behind.is_empty());
    pieces.sort_by_key(|piece| {
        let nearness = if piece.begins { usize::MAX - piece.reach } else { piece.reach };
        (piece.at, piece.begins, nearness, piece.order)
    });
    let mut text = String::with_capacity(original.len() * 2);
    let mut insertions = Vec::new();
    let mut befores = vec![0..0; mutants.len()];
    let mut ends = vec![0; mutants.len()];
    let mut copied = 0;
    for piece in pieces {
        text.push_str(&original[copied..piece.at]);
        copied = piece.at;
        let (number, mutant) = mutants[piece.index];
        let put = if piece.begins { &mutant.before } else { &mutant.behind };
        let put = put.replace(SWITCH, &format!("crate::mutant_switch::on({number})"));
        let start = text.len();
        text.push_str(&put);
        insertions.push((piece.at, put.len()));
        if piece.begins {
            befores[piece.index] = start..text.len();
        }
        ends[piece.index] = text.len();
    }
    text.push_str(&original[copied..]);
    let places = mutants.iter().zip(befores).zip(ends).map(|(((number, mutant), before), end)| {
        SplicePlace {
            number: *number,
            whole: before.start..end,
            before,
            function: mutant.function_span.clone(),
        }
    });
    Spliced { text, places: places.collect(), insertions }
}

impl Spliced {
    /// The mutants that caused an error in these bytes: those whose own text contains them, else the innermost around
    /// them.
    pub(crate) fn at(&self, fault: &Range<usize>) -> Vec<u32> {
        let is_in = |range: &Range<usize>| range.start <= fault.start && fault.end <= range.end;
        let own =
            self.places.iter().filter(|place| !place.before.is_empty() && is_in(&place.before));
        let own: Vec<u32> = own.map(|place| place.number).collect();
        if !own.is_empty() {
            return own;
        }
        let around = self.places.iter().filter(|place| is_in(&place.whole));
        let innermost = around.min_by_key(|place| place.whole.len());
        innermost.map(|place| place.number).into_iter().collect()
    }

    /// All mutants of the function that contains these bytes.
    pub(crate) fn in_function(&self, fault: &Range<usize>) -> Vec<u32> {
        let at = self.original_offset(fault.start);
        let own = self.places.iter().filter(|place| place.function.contains(&at));
        own.map(|place| place.number).collect()
    }

    fn original_offset(&self, offset: usize) -> usize {
        let mut put_in = 0;
        for (at, length) in &self.insertions {
            if at + put_in >= offset {
                break;
            }
            put_in += length;
        }
        offset.saturating_sub(put_in)
    }
}

/// The text with blanks instead of the `const` of these functions: all offsets stay the same.
fn without_const(text: &str, unconst: &BTreeSet<String>) -> String {
    struct Consts<'a> {
        unconst: &'a BTreeSet<String>,
        spans: Vec<Range<usize>>,
    }
    impl<'ast> Visit<'ast> for Consts<'_> {
        fn visit_signature(&mut self, signature: &'ast syn::Signature) {
            if let Some(word) = &signature.constness
                && self.unconst.contains(&signature.ident.to_string())
            {
                self.spans.push(word.span.byte_range());
            }
        }
    }
    let mut consts = Consts { unconst, spans: Vec::new() };
    if let Ok(file) = syn::parse_file(text) {
        consts.visit_file(&file);
    }
    let mut text = text.to_owned();
    for span in consts.spans {
        text.replace_range(span.clone(), &" ".repeat(span.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::find;
    use crate::mutants::scope::SourceFile;

    fn spliced(text: &str) -> Spliced {
        let file = SourceFile { path: "a/src/core/b.rs".to_owned(), text: text.to_owned() };
        let unconst = BTreeSet::from(["free".to_owned()]);
        let found = find::in_file(&file, &unconst);
        let numbered: Vec<_> = (0..).zip(&found).collect();
        splice(text, &numbered, &unconst)
    }

    #[test]
    fn nested_mutants_are_rust_again() {
        let spliced = spliced(
            "const fn free(a: u32, b: u32) -> bool { a + 1 < b && !(a == 2 || b.min(a) > 3) }
             fn f(a: A) { match a { A::B if free(1, 2) => go(), A::C => { stay(); } _ => {} } }",
        );
        syn::parse_file(&spliced.text).expect("it is Rust");
        assert!(!spliced.text.contains("const fn"));
    }

    #[test]
    fn a_fault_is_traced_to_its_mutant() {
        let spliced = spliced("fn f() -> bool { a < b }");
        let at = spliced.text.find("<=").expect("the mutant is there");
        let found = spliced.at(&(at..at + 2));
        // The two mutants of the function's value come first.
        assert_eq!(found, [2]);
        assert_eq!(spliced.in_function(&(at..at + 2)).len(), 4);
    }
}
