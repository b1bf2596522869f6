//! Handles the outputs of the Driver in its process: event log, log, launcher, end. Used by the driver's process.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::SystemTime;

use elastic_driver::{DriverEvent, DriverObserver, EventKind};
use elastic_host_manager::{HostState, HostsSnapshot};
use elastic_protocol::messages::{GoodputStatus, LaneStatus};
use elastic_protocol::{HostName, JobResult, WorkerId};
use tokio::sync::oneshot;

use super::accounting::Accounting;
use super::dashboard::EventFeed;
use super::event_log::EventLog;
use super::event_text::EventText;
use super::launcher::Launcher;
use super::traces::TraceLane;
use super::watch::Watch;

/// The observer of a driver's process.
pub(crate) struct Observer {
    log: EventLog,
    text: EventText,
    accounting: Accounting,
    launcher: Option<Rc<Launcher>>,
    watch: Watch,
    dashboard: Option<ObservedDashboard>,
    traces: Option<TraceLane>,
    /// The worker processes of each host, counted from the events.
    processes: BTreeMap<HostName, BTreeSet<WorkerId>>,
    /// Receives the end of the job, while its workers are still on record.
    over: Option<oneshot::Sender<()>>,
    /// Receives the end of the driver.
    ended: Option<oneshot::Sender<DriverEnd>>,
}

/// The dashboard, as the observer knows it.
#[derive(Clone, Debug)]
pub(crate) struct ObservedDashboard {
    /// Takes events.
    pub(crate) feed: EventFeed,
    /// The page's address.
    pub(crate) url: String,
}

/// The way in which a driver ends.
#[derive(Debug)]
pub(crate) enum DriverEnd {
    /// The job is over.
    Over(JobResult),
    /// The driver may not act any more, for this reason; the job goes on.
    Abandoned {
        reason: String,
        /// Whether its journal is older than the job, so that nobody may lead from it.
        is_outdated: bool,
    },
    /// The driver was asked to go, and another driver continues the job.
    HandedOver,
}

impl Observer {
    /// An observer that writes to `log`, `accounting`, `dashboard` and `traces`, tells `launcher` of hosts, and sends the end of the job
    /// and that of the driver to `over` and `ended`.
    pub(crate) fn new(
        log: EventLog,
        accounting: Accounting,
        launcher: Option<Rc<Launcher>>,
        watch: Watch,
        dashboard: Option<ObservedDashboard>,
        traces: Option<TraceLane>,
        (over, ended): (oneshot::Sender<()>, oneshot::Sender<DriverEnd>),
    ) -> Self {
        let processes = BTreeMap::new();
        let text = EventText::new(launcher.is_some());
        let (over, ended) = (Some(over), Some(ended));
        Self { log, text, accounting, launcher, watch, dashboard, traces, processes, over, ended }
    }

    fn end(&mut self, end: DriverEnd) {
        if let Some(ended) = self.ended.take() {
            // The channel has no reader if the process is ending for another reason.
            let _ = ended.send(end);
        }
    }

    /// Counts the processes of hosts, so that the agent of a host that has left is asked to go after the last of them.
    fn count(&mut self, worker: &WorkerId, is_there: bool) {
        let Some(launcher) = &self.launcher else { return };
        let processes = self.processes.entry(worker.host.clone()).or_default();
        if is_there {
            processes.insert(worker.clone());
        } else {
            processes.remove(worker);
        }
        launcher.set_busy(&worker.host, !processes.is_empty());
    }
}

impl DriverObserver for Observer {
    fn event(&mut self, at: SystemTime, event: &DriverEvent) {
        self.log.add(at, event);
        self.accounting.handle_event(event);
        if let Some(dashboard) = &self.dashboard {
            dashboard.feed.push(at, event);
        }
        if let Some(traces) = &mut self.traces {
            traces.handle_event(at, event);
        }
        self.text.log(event.generation, &event.kind);
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
                if let Some(over) = self.over.take() {
                    // The receiver is gone if the process is ending for another reason.
                    let _ = over.send(());
                }
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

    fn abandoned(&mut self, reason: &str, is_outdated: bool) {
        self.end(DriverEnd::Abandoned { reason: reason.to_owned(), is_outdated });
    }

    fn handed_over(&mut self) {
        self.end(DriverEnd::HandedOver);
    }

    fn lanes(&self) -> Vec<LaneStatus> {
        self.watch.lanes()
    }

    fn goodput(&self) -> Option<GoodputStatus> {
        Some(self.accounting.status())
    }

    fn dashboard(&self) -> Option<String> {
        Some(self.dashboard.as_ref()?.url.clone())
    }

    fn warnings(&self) -> Vec<String> {
        let traces = self.traces.as_ref().and_then(TraceLane::warning);
        self.watch.warnings().into_iter().chain(traces).collect()
    }
}
