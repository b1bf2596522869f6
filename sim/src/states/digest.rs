//! Digests of a core's fields, from the `Debug` text of the core. Called by `StateLog`.

use std::fmt::{self, Debug, Write};

use super::StatePart;

/// Digests of the core's fields, with their values if `has_text`.
pub(super) fn parts(core: &str, state: &dyn Debug, has_text: bool) -> Vec<StatePart> {
    let mut reader = DebugReader::new(core, has_text);
    // Only `DebugReader::write_str` could fail, and never does.
    let _infallible = write!(reader, "{state:?}");
    reader.end()
}

/// Reads `Debug` text as it is written. Splits it at the outermost struct's fields, and leaves out names of fields: a renamed field
/// is no other state.
struct DebugReader<'a> {
    core: &'a str,
    has_text: bool,
    parts: Vec<StatePart>,
    /// Number of brackets that are open.
    depth: usize,
    is_in_string: bool,
    /// Whether the next character of a string is escaped.
    is_escaped: bool,
    /// The identifier that is being read; of a field, if `: ` follows.
    word: String,
    has_colon: bool,
}

/// First value and factor of FNV-1a, here by character. It is the same on every machine and in every release of a library.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl<'a> DebugReader<'a> {
    fn new(core: &'a str, has_text: bool) -> Self {
        let mut reader = Self {
            core,
            has_text,
            parts: Vec::new(),
            depth: 0,
            is_in_string: false,
            is_escaped: false,
            word: String::new(),
            has_colon: false,
        };
        reader.begin_part("");
        reader
    }

    fn begin_part(&mut self, field: &str) {
        let dot = if field.is_empty() { "" } else { "." };
        let name = format!("{}{dot}{field}", self.core);
        let text = self.has_text.then(String::new);
        self.parts.push(StatePart { name, digest: FNV_OFFSET, text });
    }

    fn keep(&mut self, of: char) {
        let Some(part) = self.parts.last_mut() else { return };
        part.digest = (part.digest ^ u64::from(of)).wrapping_mul(FNV_PRIME);
        if let Some(text) = &mut part.text {
            text.push(of);
        }
    }

    /// Keeps the word, since it is no field's name.
    fn keep_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        word.chars().for_each(|of| self.keep(of));
        if std::mem::take(&mut self.has_colon) {
            self.keep(':');
        }
        self.word = word;
        self.word.clear();
    }

    fn read(&mut self, of: char) {
        if self.is_in_string {
            self.keep(of);
            self.is_in_string = self.is_escaped || of != '"';
            self.is_escaped = !self.is_escaped && of == '\\';
            return;
        }
        if self.has_colon && of == ' ' {
            let word = std::mem::take(&mut self.word);
            self.has_colon = false;
            if self.depth == 1 {
                self.begin_part(&word);
            }
            return;
        }
        match of {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' if !self.has_colon => self.word.push(of),
            ':' if self
                .word
                .starts_with(|first: char| first.is_ascii_lowercase() || first == '_') =>
            {
                self.has_colon = true;
            }
            _ => {
                self.keep_word();
                match of {
                    '{' | '[' | '(' => self.depth += 1,
                    '}' | ']' | ')' => self.depth = self.depth.saturating_sub(1),
                    '"' => self.is_in_string = true,
                    _ => {}
                }
                self.keep(of);
            }
        }
    }

    fn end(mut self) -> Vec<StatePart> {
        self.keep_word();
        // What comes before the first field is the name of the core's type.
        if self.parts.len() > 1 {
            self.parts.remove(0);
        }
        self.parts
    }
}

impl Write for DebugReader<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().for_each(|of| self.read(of));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[derive(Debug, Default)]
    struct Inner {
        count: u32,
        name: String,
    }

    #[derive(Debug, Default)]
    struct Core {
        inner: Inner,
        waits: BTreeMap<String, Duration>,
        stance: Option<Stance>,
    }

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
    fn a_state_without_fields_is_one_part() {
        let parts = parts("core", &["a: b"], true);
        assert_eq!((parts.len(), parts[0].name.as_str()), (1, "core"));
        assert_eq!(parts[0].text.as_deref(), Some("[\"a: b\"]"));
    }
}
