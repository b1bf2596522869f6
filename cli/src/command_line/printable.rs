//! Makes untrusted text safe for a terminal: text from workers, hosts and scripts must not move its cursor. Used
//! wherever such text is shown.

use std::borrow::Cow;

/// The text with its control characters escaped, but for line breaks and tabs.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_harmful = |it: char| it.is_control() && !matches!(it, '\n' | '\t');
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_9_control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2J\r\u{9b}1m\nb\tgrüße"), "a\\u{1b}[2J\\r\\u{9b}1m\nb\tgrüße");
        assert!(matches!(printable("訓練"), Cow::Borrowed(_)));
    }
}
