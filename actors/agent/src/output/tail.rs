//! The end of a process's stderr, which its last words carry to the driver. Filled by `pump`.

use elastic_protocol::messages::AgentToDriver;

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct StreamTail(Vec<u8>);

impl StreamTail {
    /// Appends bytes that were read, and drops the oldest.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(AgentToDriver::TAIL_BYTES_MAX)..];
        let room = AgentToDriver::TAIL_BYTES_MAX - bytes.len();
        self.0.drain(..self.0.len().saturating_sub(room));
        self.0.extend_from_slice(bytes);
    }

    /// The tail as text; a first character whose beginning is gone is left out.
    pub(super) fn text(&self) -> String {
        let is_inside = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        let full = self.0.len() == AgentToDriver::TAIL_BYTES_MAX;
        let from = if full { self.0.iter().take(3).take_while(is_inside).count() } else { 0 };
        String::from_utf8_lossy(&self.0[from..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = StreamTail::default();
        for number in 0..2_000 {
            tail.push(format!("é{number}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.ends_with("1998\né1999\n"));
        assert!(text.len() <= AgentToDriver::TAIL_BYTES_MAX && !text.contains('\u{fffd}'));
        tail.push("ü".repeat(10_001).as_bytes());
        assert_eq!(tail.text(), "ü".repeat(AgentToDriver::TAIL_BYTES_MAX / 2));
    }
}
