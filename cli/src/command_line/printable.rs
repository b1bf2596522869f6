//! Makes untrusted text safe for a terminal: text from workers, hosts and scripts must not move its cursor, and must not turn the
//! order in which it is read around. Used wherever such text is shown.

use std::borrow::Cow;

/// The text with its control characters escaped, but for line breaks and tabs, and with those of Unicode that turn the direction of
/// writing or separate lines.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_harmful =
        |it: char| it.is_control() && !matches!(it, '\n' | '\t') || turns_or_breaks_lines(it);
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_harmful(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Marks, embeddings, overrides and isolates of the direction of writing; separators of lines and paragraphs.
const fn turns_or_breaks_lines(it: char) -> bool {
    matches!(
        it,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_9_characters_that_turn_the_direction_of_writing_or_separate_lines_are_escaped() {
        assert_eq!(printable("a\u{202e}b\u{2067}c\u{2028}d"), "a\\u{202e}b\\u{2067}c\\u{2028}d");
        let marks =
            ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2029}', '\u{202a}', '\u{2066}', '\u{2069}'];
        for mark in marks {
            assert_eq!(printable(&mark.to_string()), mark.escape_unicode().to_string());
        }
        // Letters of these scripts, joiners of emoji and of Persian words, and the hyphen before the first of them stay.
        let kept = "שלום سلام می\u{200c}خواهم 👩\u{200d}💻 \u{2027}";
        assert!(matches!(printable(kept), Cow::Borrowed(_)));
    }

    #[test]
    fn s_9_control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2J\r\u{9b}1m\nb\tgrüße"), "a\\u{1b}[2J\\r\\u{9b}1m\nb\tgrüße");
        assert!(matches!(printable("訓練"), Cow::Borrowed(_)));
    }
}
