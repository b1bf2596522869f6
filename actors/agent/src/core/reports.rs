//! Reports that no accepted driver has received yet. Their number is bounded: the oldest are dropped first.
//! Used by the core.

use std::collections::VecDeque;

use elastic_protocol::messages::AgentToDriver;

/// Reports that wait for a driver, in the order in which things happened.
#[derive(Debug, Default)]
pub(super) struct Reports(VecDeque<AgentToDriver>);

impl Reports {
    /// The most reports that are kept. Without a driver no process is started, so in practice the number of
    /// slots is the bound. Each report holds up to 4 KiB of stderr.
    pub(super) const MAX: usize = 1024;

    /// Keeps a report; returns how many older ones were dropped for it.
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
