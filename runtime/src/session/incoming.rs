//! Deliveries of one conversation at this end. [`super::SessionCore`] owns it.

/// Counts deliveries, and those of them that are not acknowledged yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IncomingConversation {
    /// Frames delivered; also the number of the next one.
    pub(super) delivered: u64,
    told: u64,
    untold_bytes: usize,
}

impl IncomingConversation {
    pub(super) fn deliver(&mut self, bytes: usize) {
        self.delivered += 1;
        self.untold_bytes = self.untold_bytes.saturating_add(bytes);
    }

    pub(super) fn is_untold(&self) -> bool {
        self.told < self.delivered
    }

    pub(super) fn is_due(&self, frames: u64, bytes: usize) -> bool {
        self.delivered - self.told >= frames || (self.is_untold() && self.untold_bytes >= bytes)
    }

    pub(super) fn tell(&mut self) -> u64 {
        self.told = self.delivered;
        self.untold_bytes = 0;
        self.delivered
    }
    /// Checks the invariants of the counters.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { delivered, told, untold_bytes } = *self;
        if told > delivered || (told == delivered && untold_bytes > 0) {
            return Err(format!(
                "{told} of {delivered} deliveries are told, not {untold_bytes} bytes"
            ));
        }
        Ok(())
    }
}
