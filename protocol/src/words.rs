//! Words that a person reads. Used wherever a text has a number in it.

use std::fmt::Display;

/// A number with its noun, in the singular or the plural: `1 worker`, `2 workers`. For nouns whose plural ends with `s`.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    format!("{number} {noun}{}", if number == N::from(1) { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_none_plural() {
        let words = [0, 1, 2].map(|number: u64| counted(number, "worker"));
        assert_eq!(words, ["0 workers", "1 worker", "2 workers"]);
    }
}
