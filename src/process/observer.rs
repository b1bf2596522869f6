//! What the driver's process does with what its Driver tells: event log, log, launcher, end.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::SystemTime;

use elastic_driver::{DriverObserver, Event, EventKind};
use elastic_host_manager::{HostState, HostsSnapshot};
use elastic_protocol::{HostName, JobResult};
use elastic_worker::state::environment::parse_worker;
use tokio::sync::oneshot;

use super::event_log::EventLog;
use super::event_text::log_event;
use super::launcher::Launcher;

/// The observer of a driver's process.
pub(crate) struct Observer {
    log: EventLog,
    launcher: Option<Rc<Launcher>>,
    /// Processes of each host, as the events tell.
    processes: BTreeMap<HostName, BTreeSet<String>>,
    /// How the driver ends.
    ended: Option<oneshot::Sender<DriverEnd>>,
}

/// How a driver ends.
#[derive(Debug)]
pub(crate) enum DriverEnd {
    /// With its job.
    Over(JobResult),
    /// It may not act any more, for this reason; the job goes on.
    Abandoned(String),
    /// It was asked to, and another goes on with the job.
    HandedOver,
}

impl Observer {
    /// Writes to `log`, tells `launcher` of hosts, and `ended` of the result.
    pub(crate) fn new(
        log: EventLog,
        launcher: Option<Rc<Launcher>>,
        ended: oneshot::Sender<DriverEnd>,
    ) -> Self {
        Self { log, launcher, processes: BTreeMap::new(), ended: Some(ended) }
    }

    fn end(&mut self, end: DriverEnd) {
        if let Some(ended) = self.ended.take() {
            // Nobody waits any more if the process is ending for another reason.
            let _ = ended.send(end);
        }
    }

    /// Keeps count of processes, so that the agent of a host that has left goes when they have gone.
    fn count(&mut self, worker: &str, is_there: bool) {
        let Some(launcher) = &self.launcher else { return };
        let Some(worker_id) = parse_worker(worker) else { return };
        let processes = self.processes.entry(worker_id.host.clone()).or_default();
        if is_there {
            processes.insert(worker.to_owned());
        } else {
            processes.remove(worker);
        }
        launcher.set_busy(&worker_id.host, !processes.is_empty());
    }
}

impl DriverObserver for Observer {
    fn event(&mut self, at: SystemTime, event: &Event) {
        self.log.add(at, event);
        log_event(event.generation, &event.kind);
        match &event.kind {
            EventKind::HostJoined { host, .. } => {
                if let Some(launcher) = &self.launcher {
                    launcher.set_joined(host, true);
                }
            }
            EventKind::HostLost { host, .. } => {
                if let Some(launcher) = &self.launcher {
                    launcher.set_joined(host, false);
                }
            }
            EventKind::WorkerStarted { worker } => self.count(worker, true),
            EventKind::WorkerExited { worker, .. } => self.count(worker, false),
            EventKind::JobEnded { .. } => {
                if let Some(launcher) = &self.launcher {
                    launcher.start_no_more();
                }
            }
            _ => {}
        }
    }

    fn hosts(&mut self, hosts: &HostsSnapshot) {
        if let Some(launcher) = &self.launcher {
            let listed = hosts
                .hosts
                .iter()
                .map(|entry| (entry.name.clone(), entry.state == HostState::Listed));
            launcher.set_hosts(&listed.collect());
        }
    }

    fn ended(&mut self, result: &JobResult) {
        self.end(DriverEnd::Over(result.clone()));
    }

    fn abandoned(&mut self, reason: &str) {
        self.end(DriverEnd::Abandoned(reason.to_owned()));
    }

    fn handed_over(&mut self) {
        self.end(DriverEnd::HandedOver);
    }
}
