//! Digests of a core's fields, from the `Debug` text of the core. Called by `StateLog`.

use std::fmt::Debug;

use super::StatePart;
use crate::decisions::without_release;
use crate::fnv::Fnv;

/// Digests of the core's fields, with their values if `has_text`.
pub(super) fn parts(core: &str, state: &dyn Debug, has_text: bool) -> Vec<StatePart> {
    let mut reader = DebugReader::new(core, has_text);
    reader.read_all(state);
    reader.end()
}

/// Digest of a value that is no core, with the value if `has_text`.
pub(super) fn whole(name: &str, of: &dyn Debug, has_text: bool) -> StatePart {
    let mut reader = DebugReader::new(name, has_text);
    reader.is_split = false;
    reader.read_all(of);
    reader.end().remove(0)
}

/// Reads a `Debug` text. Splits it at the outermost struct's fields, and leaves out names of fields: a renamed field
/// is no other state.
struct DebugReader<'a> {
    core: &'a str,
    parts: Vec<StatePart>,
    /// Whether each field of the outermost struct is a part of its own.
    is_split: bool,
    /// The part that is being read: its name, digest, and value if that is wanted.
    name: String,
    digest: Fnv,
    value: Option<Vec<u8>>,
    /// Number of brackets that are open.
    depth: usize,
    is_in_string: bool,
    /// Whether the next byte of a string is escaped.
    is_escaped: bool,
    /// The identifier that is being read; of a field, if `: ` follows.
    word: Vec<u8>,
    has_colon: bool,
}

impl<'a> DebugReader<'a> {
    fn new(core: &'a str, has_text: bool) -> Self {
        Self {
            core,
            parts: Vec::new(),
            is_split: true,
            name: core.to_owned(),
            digest: Fnv::new(),
            value: has_text.then(Vec::new),
            depth: 0,
            is_in_string: false,
            is_escaped: false,
            word: Vec::new(),
            has_colon: false,
        }
    }

    fn read_all(&mut self, of: &dyn Debug) {
        let text = format!("{of:?}");
        without_release(&text).bytes().for_each(|byte| self.read(byte));
    }

    fn end_part(&mut self, next: String) {
        let text = self.value.as_mut().map(std::mem::take);
        let text = text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let name = std::mem::replace(&mut self.name, next);
        let digest = std::mem::replace(&mut self.digest, Fnv::new()).value();
        self.parts.push(StatePart { name, digest, text });
    }

    #[inline]
    fn keep(&mut self, byte: u8) {
        self.digest.take(byte);
        if let Some(value) = &mut self.value {
            value.push(byte);
        }
    }

    /// Keeps the word, since it is no field's name.
    fn keep_word(&mut self) {
        for at in 0..self.word.len() {
            self.keep(self.word[at]);
        }
        self.word.clear();
        if std::mem::take(&mut self.has_colon) {
            self.keep(b':');
        }
    }

    #[inline]
    fn read(&mut self, byte: u8) {
        if self.is_in_string {
            self.keep(byte);
            self.is_in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
            return;
        }
        if self.has_colon && byte == b' ' {
            self.has_colon = false;
            if self.is_split && self.depth == 1 {
                let next = format!("{}.{}", self.core, String::from_utf8_lossy(&self.word));
                self.end_part(next);
            }
            self.word.clear();
            return;
        }
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' if !self.has_colon => {
                self.word.push(byte);
            }
            b':' if self.word.first().is_some_and(|it| it.is_ascii_lowercase() || *it == b'_') => {
                self.has_colon = true;
            }
            _ => {
                self.keep_word();
                match byte {
                    b'{' | b'[' | b'(' => self.depth += 1,
                    b'}' | b']' | b')' => self.depth = self.depth.saturating_sub(1),
                    b'"' => self.is_in_string = true,
                    _ => {}
                }
                self.keep(byte);
            }
        }
    }

    fn end(mut self) -> Vec<StatePart> {
        self.keep_word();
        self.end_part(String::new());
        // The text before the first field is the name of the core's type.
        if self.parts.len() > 1 {
            self.parts.remove(0);
        }
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[expect(dead_code, reason = "read by `Debug`")]
    #[derive(Debug, Default)]
    struct Inner {
        count: u32,
        name: String,
    }

    #[expect(dead_code, reason = "read by `Debug`")]
    #[derive(Debug, Default)]
    struct Core {
        inner: Inner,
        waits: BTreeMap<String, Duration>,
        stance: Option<Stance>,
    }

    #[expect(dead_code, reason = "read by `Debug`")]
    #[derive(Debug)]
    enum Stance {
        Member { rank: u32 },
        Spare,
    }

    fn values(core: &Core) -> Vec<(String, String)> {
        let parts = parts("core", core, true);
        parts.into_iter().map(|part| (part.name, part.text.unwrap_or_default())).collect()
    }

    #[test]
    fn a_core_is_split_at_its_fields_and_names_inside_are_left_out() {
        let core = Core {
            inner: Inner { count: 3, name: "x: {\"y\": 1} ".to_owned() },
            waits: BTreeMap::from([("h1".to_owned(), Duration::from_millis(1_500))]),
            stance: Some(Stance::Member { rank: 7 }),
        };
        let expected = [
            ("core.inner", "Inner { 3, \"x: {\\\"y\\\": 1} \" }, "),
            ("core.waits", "{\"h1\": 1.5s}, "),
            ("core.stance", "Some(Member { 7 }) }"),
        ];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(values(&core), expected);
    }

    #[test]
    fn a_digest_is_of_the_value() {
        let digests = |core: &Core| -> Vec<u64> {
            parts("core", core, false).iter().map(|part| part.digest).collect()
        };
        let before = digests(&Core::default());
        assert_eq!(digests(&Core::default()), before);
        let spare = Core { stance: Some(Stance::Spare), ..Core::default() };
        let differing: Vec<bool> =
            digests(&spare).iter().zip(&before).map(|(now, then)| now != then).collect();
        assert_eq!(differing, [false, false, true]);
    }

    #[test]
    fn what_is_put_out_is_one_part() {
        let part = whole("core.put_out", &Stance::Member { rank: 7 }, true);
        assert_eq!(part.name, "core.put_out");
        assert_eq!(part.text.as_deref(), Some("Member { 7 }"));
    }

    #[test]
    fn a_state_without_fields_is_one_part() {
        let parts = parts("core", &["a: b"], true);
        assert_eq!((parts.len(), parts[0].name.as_str()), (1, "core"));
        assert_eq!(parts[0].text.as_deref(), Some("[\"a: b\"]"));
    }
}
