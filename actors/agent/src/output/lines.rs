//! Line splitter: cuts a stream of bytes into lines to be shown, and never splits a character. Used by `pump`.

use super::LINE_BYTES_MAX;

/// The line that is being read.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    /// Bytes of this line beyond `LINE_BYTES_MAX`, which are not shown.
    cut: usize,
    /// Whether the last byte was a `\r`: it has ended the line already, so a following `\n` does not end
    /// another.
    after_return: bool,
}

impl Lines {
    /// Takes bytes that were read, and calls `show` with each line that they complete. `\n`, `\r\n` and a lone
    /// `\r` (progress bars) end a line.
    pub(super) fn feed(&mut self, mut bytes: &[u8], show: &mut impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.push(&bytes[..end]);
            let is_rest_of_crlf = bytes[end] == b'\n' && self.after_return && self.is_empty();
            if !is_rest_of_crlf {
                self.end_line(show);
            }
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
        }
        self.push(bytes);
    }

    /// Ends the stream: a last line without a line end is shown too.
    pub(super) fn finish(&mut self, show: &mut impl FnMut(&str)) {
        if !self.is_empty() {
            self.end_line(show);
        }
    }

    const fn is_empty(&self) -> bool {
        self.line.is_empty() && self.cut == 0
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.after_return = false;
        let room = LINE_BYTES_MAX - self.line.len();
        let (kept, beyond) = bytes.split_at(bytes.len().min(room));
        self.line.extend_from_slice(kept);
        self.cut += beyond.len();
    }

    fn end_line(&mut self, show: &mut impl FnMut(&str)) {
        if self.cut > 0 {
            self.cut += unfinished_character(&self.line);
            self.line.truncate(self.line.len() - unfinished_character(&self.line));
            let text = String::from_utf8_lossy(&self.line);
            show(&format!("{text} … ({} bytes more)", self.cut));
        } else {
            show(&String::from_utf8_lossy(&self.line));
        }
        self.line.clear();
        self.cut = 0;
    }
}

/// The number of bytes at the end that begin a character whose rest is cut off.
fn unfinished_character(bytes: &[u8]) -> usize {
    let Some(chunk) = bytes.utf8_chunks().last() else { return 0 };
    let invalid = chunk.invalid();
    let is_beginning = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
    if is_beginning { invalid.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(reads: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut shown = Vec::new();
        let mut show = |line: &str| shown.push(line.to_owned());
        for read in reads {
            lines.feed(read, &mut show);
        }
        lines.finish(&mut show);
        shown
    }

    #[test]
    fn lines_end_as_they_may() {
        assert_eq!(shown(&[b"a\nb\r\nc\rd"]), ["a", "b", "c", "d"]);
        assert_eq!(shown(&[b"a\r", b"\nb\n"]), ["a", "b"]);
        assert_eq!(shown(&[b"a\n\n\r\n"]), ["a", "", ""]);
        assert!(shown(&[b""]).is_empty());
    }

    #[test]
    fn x_16_characters_are_never_split() {
        let text = "grüße 訓練 🚂\n".as_bytes();
        for at in 0..text.len() {
            let (head, rest) = text.split_at(at);
            assert_eq!(shown(&[head, rest]), ["grüße 訓練 🚂"]);
        }
    }

    #[test]
    fn x_16_invalid_utf_8_is_replaced() {
        assert_eq!(shown(&[b"a\xff\xe8b\n"]), ["a\u{fffd}\u{fffd}b"]);
    }

    #[test]
    fn x_16_a_long_line_is_cut_at_a_character() {
        let line = "é".repeat(500_000);
        let shown = shown(&["x".as_bytes(), line.as_bytes(), b"\nshort\n"]);
        let kept = (LINE_BYTES_MAX - 1) / 2;
        let more = line.len() - kept * 2;
        assert_eq!(shown[0], format!("x{} … ({more} bytes more)", "é".repeat(kept)));
        assert_eq!(shown[1], "short");
    }

    proptest! {
        #[test]
        fn how_it_was_read_does_not_matter(
            text in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..300),
            cuts in prop::collection::vec(0..300_usize, 0..6),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let reads: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(shown(&reads), shown(&[&text]));
        }
    }
}
