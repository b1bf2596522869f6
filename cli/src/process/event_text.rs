//! Events as text, for the log of the driver's process. Called by `observer`.
//!
//! Each line of the default level is worth a reader's time: events that are expected while a job starts or resets
//! (processes that start, attach and stop) are logged at `debug`, and stand in the event log.

use elastic_driver::EventKind;
use elastic_observe::{EventLevel, EventWords, describe_event};
use elastic_protocol::{GenerationId, counted};
use tracing::{debug, info, warn};

use crate::command_line::printable;

/// The facts that decide an event's level.
#[derive(Debug, Default)]
pub(super) struct EventText {
    /// Whether agents are started by this driver: that they join is expected then.
    starts_agents: bool,
    /// Whether a generation has run.
    has_run: bool,
    /// Whether a worker has attached: the program is elastic in process.
    has_attached: bool,
}

impl EventText {
    /// The text of a driver that starts its agents itself, or is joined by them.
    pub(super) fn new(starts_agents: bool) -> Self {
        Self { starts_agents, ..Self::default() }
    }

    /// Logs an event.
    pub(super) fn log(&mut self, generation: GenerationId, event: &EventKind) {
        let is_expected = match event {
            EventKind::HostJoined { .. } => self.starts_agents && !self.has_run,
            EventKind::HostsChanged { .. } => !self.has_run,
            _ => false,
        };
        self.has_attached |= matches!(event, EventKind::WorkerAttached { .. });
        if let EventKind::GenerationRunning { world_size } = event
            && !self.has_run
            && !self.has_attached
        {
            // In the mode `auto` the next event may say that the program is elastic in process, and that this was not the
            // generation that trains.
            self.has_run = true;
            return info!("{} started", counted(*world_size, "worker"));
        }
        self.has_run |= matches!(event, EventKind::GenerationRunning { .. });
        let EventWords { level, text } = describe_event(generation, event);
        let text = printable(&text);
        match level {
            EventLevel::Info if is_expected => debug!("{text}"),
            EventLevel::Debug => debug!("{text}"),
            EventLevel::Info => info!("{text}"),
            EventLevel::Warn => warn!("{text}"),
        }
    }
}
