//! The name of a worker for people: `host:slot`. The incarnation, which identities and events have, stands only in
//! `--verbose` output. Used for every text that a person reads: by `page` and `timeline`, and by the command line for its log,
//! failures and answers.

use std::borrow::Cow;

/// Fewest digits of the number of an agent or a client (`agent a#1099511627777`): terms count in its high bits.
const NODE_DIGITS_MIN: usize = 13;

/// The text with each `host[slot]#incarnation` written `host:slot`, and without the numbers of agents and clients.
pub fn with_short_names(text: &str) -> Cow<'_, str> {
    if !text.contains('#') {
        return Cow::Borrowed(text);
    }
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('#') {
        let (before, digits) = (&rest[..at], leading_digits(&rest[at + 1..]));
        match slot_at_end(before) {
            Some((host, slot)) if digits > 0 => {
                short.push_str(host);
                short.push(':');
                short.push_str(slot);
                rest = &rest[at + 1 + digits..];
            }
            _ if digits >= NODE_DIGITS_MIN => {
                short.push_str(before);
                rest = &rest[at + 1 + digits..];
            }
            _ => {
                short.push_str(&rest[..=at]);
                rest = &rest[at + 1..];
            }
        }
    }
    short.push_str(rest);
    Cow::Owned(short)
}

fn leading_digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Splits `…host[slot]` into the text before the bracket and the slot.
fn slot_at_end(text: &str) -> Option<(&str, &str)> {
    let (before, slot) = text.strip_suffix(']')?.rsplit_once('[')?;
    let is_slot = !slot.is_empty() && leading_digits(slot) == slot.len();
    let is_host = before.chars().next_back().is_some_and(|it| !it.is_whitespace());
    (is_slot && is_host).then_some((before, slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_named_by_host_and_slot() {
        let cases = [
            ("a[0]#1, b-2.example[13]#42 ended", "a:0, b-2.example:13 ended"),
            ("enrolled node=agent localhost#1099511627776", "enrolled node=agent localhost"),
            ("issue #3494, x[0], y[a]#1, [1]#2, #", "issue #3494, x[0], y[a]#1, [1]#2, #"),
            ("generation 1 ends: ü[0]#3", "generation 1 ends: ü:0"),
        ];
        for (long, short) in cases {
            assert_eq!(with_short_names(long), short);
        }
        assert!(matches!(with_short_names("plain"), Cow::Borrowed(_)));
    }
}
