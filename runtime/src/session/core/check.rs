//! Invariants of a session. Called by the check of `transport`'s core of peers, and by tests.

use super::{Payload, SessionCore};
use crate::transport::Conversation;

impl<P: Payload> SessionCore<P> {
    /// Checks the invariants: without a session nothing is kept, the counters match the queues, and the queues are
    /// within their bounds (TR-6).
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let is_empty = self.outgoing.is_empty() && self.incoming.is_empty();
        if self.session.is_none() && (self.connected || !is_empty) {
            return Err("TR-2: something is kept without a session".to_owned());
        }
        self.check_conversations()?;
        self.check_counters()?;
        self.check_bounds()
    }

    fn check_conversations(&self) -> Result<(), String> {
        for (conversation, outgoing) in &self.outgoing {
            outgoing.check().map_err(|error| format!("{conversation:?}: {error}"))?;
            if !self.connected && outgoing.flight() != (0, 0) {
                return Err(format!(
                    "{conversation:?}: frames are on their way without a connection"
                ));
            }
        }
        for (conversation, incoming) in &self.incoming {
            incoming.check().map_err(|error| format!("{conversation:?}: {error}"))?;
        }
        Ok(())
    }

    fn check_counters(&self) -> Result<(), String> {
        let of_bulk = || self.outgoing.iter().filter(|(it, _)| **it != Conversation::Control);
        let queued: usize = self.outgoing.values().map(|it| it.len()).sum();
        let frames: usize = of_bulk().map(|(_, it)| it.len()).sum();
        let bytes: usize = of_bulk().map(|(_, it)| it.bytes()).sum();
        let flight: usize = of_bulk().map(|(_, it)| it.flight().1).sum();
        let counted = (self.queued_frames, self.bulk_frames, self.bulk_bytes, self.bulk_flight);
        let there = (queued, frames, bytes, flight);
        if counted == there {
            Ok(())
        } else {
            Err(format!(
                "TR-6: frames queued, of bulk, its bytes, in flight: {counted:?}, not {there:?}"
            ))
        }
    }

    fn check_bounds(&self) -> Result<(), String> {
        let limits = &self.limits;
        let control = self.outgoing.get(&Conversation::Control);
        let (frames, bytes) = control.map_or((0, 0), |it| (it.len(), it.bytes()));
        if frames > limits.control_frames || bytes > limits.control_bytes {
            return Err(format!("TR-6: {frames} frames of control are queued, {bytes} bytes"));
        }
        let reserve = limits.conversations * limits.reserve_bytes;
        if self.bulk_bytes > limits.bulk_bytes + reserve {
            return Err(format!("TR-6: {} bytes of bulk are queued", self.bulk_bytes));
        }
        if self.outgoing.len().max(self.incoming.len()) > limits.conversations {
            return Err("TR-6: too many conversations".to_owned());
        }
        Ok(())
    }
}
