//! The frames of one conversation that the other end has not acknowledged. [`super::SessionCore`] owns it.

use std::collections::VecDeque;

use bytes::Bytes;

/// Frames `first..first + frames.len()`; those before `next` are on their way over this connection.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    first: u64,
    next: u64,
    /// One past the highest that was ever on its way, over any connection.
    high: u64,
    frames: VecDeque<Bytes>,
    bytes: usize,
}

/// What an acknowledgement let go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Released {
    /// Frames.
    pub(super) frames: usize,
    /// Their bytes.
    pub(super) bytes: usize,
    /// The bytes among them that counted as on their way over this connection.
    pub(super) flight: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
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

    /// The next frame to put on its way, and its number.
    pub(super) fn transmit(&mut self) -> Option<(u64, Bytes)> {
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

    /// Lets go of all frames below `frames`, which [`Self::is_possible`] has approved.
    pub(super) fn release(&mut self, frames: u64) -> Released {
        let mut released = Released::default();
        while self.first < frames
            && let Some(frame) = self.frames.pop_front()
        {
            released.frames += 1;
            released.bytes += frame.len();
            if self.first < self.next {
                released.flight += frame.len();
            }
            self.first += 1;
        }
        self.next = self.next.max(self.first);
        self.bytes -= released.bytes;
        released
    }

    /// A new connection: nothing is on its way.
    pub(super) fn rewind(&mut self) {
        self.next = self.first;
    }

    pub(super) fn into_frames(self) -> VecDeque<Bytes> {
        self.frames
    }
}
