//! Reports that no accepted driver has taken yet. Bounded: the oldest go first.

use std::collections::VecDeque;

use elastic_protocol::messages::AgentToDriver;

/// Reports that wait for a driver, in the order in which things happened.
#[derive(Debug, Default)]
pub(super) struct Reports(VecDeque<AgentToDriver>);

impl Reports {
    /// How many are kept. While no driver is there nothing new starts, so the slots bound them in
    /// practice; each holds up to 4 KiB of stderr.
    pub(super) const MAX: usize = 1024;

    /// Keeps one; returns how many had to be dropped for it.
    pub(super) fn keep(&mut self, report: AgentToDriver) -> usize {
        let dropped = usize::from(self.0.len() >= Self::MAX);
        if dropped > 0 {
            self.0.pop_front();
        }
        self.0.push_back(report);
        dropped
    }

    /// Takes all of them, oldest first.
    pub(super) fn take(&mut self) -> VecDeque<AgentToDriver> {
        std::mem::take(&mut self.0)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
