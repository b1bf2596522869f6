//! The unacknowledged frames of one conversation. [`super::SessionCore`] owns it.

use std::collections::VecDeque;

use super::core::Payload;

/// Frames `first..first + frames.len()`; those before `next` are in flight over this connection.
#[derive(Debug)]
pub(super) struct OutgoingConversation<P> {
    first: u64,
    next: u64,
    /// One past the highest number that was ever sent, over any connection.
    high: u64,
    frames: VecDeque<P>,
    bytes: usize,
}

/// The frames that an acknowledgement released.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Released {
    /// Number of frames.
    pub(super) frames: usize,
    /// Their bytes.
    pub(super) bytes: usize,
    /// The part of the bytes that counted as in flight over this connection.
    pub(super) flight: usize,
}

impl<P> Default for OutgoingConversation<P> {
    fn default() -> Self {
        Self { first: 0, next: 0, high: 0, frames: VecDeque::new(), bytes: 0 }
    }
}

impl<P: Payload> OutgoingConversation<P> {
    pub(super) fn push(&mut self, frame: P) {
        self.bytes += frame.weight();
        self.frames.push_back(frame);
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_more(&self) -> bool {
        self.next < self.first + self.frames.len() as u64
    }

    /// The next frame to send, and its number.
    pub(super) fn transmit(&mut self) -> Option<(u64, P)> {
        let index = usize::try_from(self.next - self.first).ok()?;
        let frame = self.frames.get(index)?.clone();
        let sequence = self.next;
        self.next += 1;
        self.high = self.high.max(self.next);
        Some((sequence, frame))
    }

    /// Whether the other end can have delivered `frames` frames, as far as this end knows.
    pub(super) fn is_possible(&self, frames: u64) -> bool {
        (self.first..=self.high).contains(&frames)
    }

    /// Drops all frames below `frames`, which [`Self::is_possible`] has approved.
    pub(super) fn release(&mut self, frames: u64) -> Released {
        let mut released = Released::default();
        while self.first < frames
            && let Some(frame) = self.frames.pop_front()
        {
            released.frames += 1;
            released.bytes += frame.weight();
            if self.first < self.next {
                released.flight += frame.weight();
            }
            self.first += 1;
        }
        self.next = self.next.max(self.first);
        self.bytes -= released.bytes;
        released
    }

    /// After a disconnect: no frame is in flight.
    pub(super) fn rewind(&mut self) {
        self.next = self.first;
    }

    /// Frames in flight over this connection, and their bytes.
    pub(super) fn flight(&self) -> (usize, usize) {
        let sent = usize::try_from(self.next - self.first).unwrap_or(usize::MAX);
        let frames = self.frames.iter().take(sent);
        (frames.len(), frames.map(Payload::weight).sum())
    }

    /// Checks the invariants of the numbers and of the bytes.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { first, next, high, .. } = *self;
        let end = first + self.frames.len() as u64;
        if !(first <= next && next <= high && high <= end) {
            return Err(format!(
                "frames {first}..{end} are kept, {next} is next, {high} were sent"
            ));
        }
        let bytes: usize = self.frames.iter().map(Payload::weight).sum();
        if bytes != self.bytes {
            return Err(format!("{bytes} bytes are queued, and {} are counted", self.bytes));
        }
        Ok(())
    }

    pub(super) fn into_frames(self) -> VecDeque<P> {
        self.frames
    }
}
