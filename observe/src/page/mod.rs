//! The content of the job's page, made of the driver's events and its status: topics as JSON, each sent when it has
//! changed. A core without I/O. Fed and read by the dashboard's thread in the driver's process.

mod history;
mod paces;
mod present;
mod reported;
#[cfg(test)]
pub(crate) mod tests;

use elastic_driver::DriverEvent;
use elastic_protocol::Time;
use elastic_protocol::messages::StatusReport;
use serde::Serialize;

use self::history::{EventHistory, WorldHistory};
use self::paces::PaceHistory;
use self::present::{PageFleet, PageGoodput, PageStatus};
use self::reported::ReportedHistory;
use crate::explain::explain_resets;
use crate::ledger::TimeBucket;
use crate::log::{LoggedEntry, LoggedJob, LoggedLine};
use crate::outputs::{NoOutput, OutputRequest, WorkerOutput, WorkerOutputs};

/// Resets that the page has: the last ones.
const RESETS_SHOWN_MAX: usize = 50;

/// A part of the page, as its readers get it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PageTopic {
    /// Its name.
    pub name: &'static str,
    /// Its content: one line of JSON.
    pub json: String,
}

impl PageTopic {
    fn new(name: &'static str, content: &impl Serialize) -> Self {
        // None of the types has a map with other keys than strings, or a number that is none.
        Self { name, json: serde_json::to_string(content).unwrap_or_default() }
    }
}

/// The job, as far as the page shows it.
#[derive(Debug)]
pub struct PageRecord {
    job: LoggedJob,
    events: EventHistory,
    world: WorldHistory,
    reported: ReportedHistory,
    paces: PaceHistory,
    outputs: WorkerOutputs,
    /// Events that could not be taken in time.
    missed: u64,
    /// The number of the first event that readers do not have yet.
    unsent: u64,
    /// The last version of each topic that is sent as a whole.
    sent: Vec<PageTopic>,
}

impl PageRecord {
    /// An empty record: the job begins, or is not known yet.
    pub fn new(job: String, at: Time) -> Self {
        Self {
            outputs: WorkerOutputs::new(job.clone(), None, None),
            job: LoggedJob::new(job, at),
            events: EventHistory::default(),
            world: WorldHistory::default(),
            reported: ReportedHistory::default(),
            paces: PaceHistory::default(),
            missed: 0,
            unsent: 0,
            sent: Vec::new(),
        }
    }

    /// Takes a line of an event log. At another job's first line the record begins anew.
    pub fn handle_line(&mut self, line: &LoggedLine) {
        match &line.entry {
            LoggedEntry::DriverStarted { job, .. } | LoggedEntry::LogContinued { job, .. }
                if *job != self.job.job =>
            {
                *self = Self::new(job.clone(), line.at);
                return;
            }
            LoggedEntry::Event(event) => self.remember(line.at, event),
            LoggedEntry::DriverStarted { .. }
            | LoggedEntry::LogContinued { .. }
            | LoggedEntry::Goodput(_)
            | LoggedEntry::Sign => {}
        }
        self.job.handle_line(line);
    }

    /// Takes an event of the driver.
    pub fn handle_event(&mut self, at: Time, event: DriverEvent) {
        self.handle_line(&LoggedLine { at, entry: LoggedEntry::Event(Box::new(event)) });
    }

    /// Takes a status, for the values over time that no event tells.
    pub fn handle_status(&mut self, now: Time, status: &StatusReport) {
        self.reported.handle_status(now, status);
        self.paces.handle_status(now, status);
    }

    /// Counts events that could not be taken: the page may be wrong from here on, and says so.
    pub const fn handle_missed(&mut self, events: u64) {
        self.missed += events;
    }

    fn remember(&mut self, at: Time, event: &DriverEvent) {
        self.events.handle_event(at, event);
        self.world.handle_event(at, event);
        self.outputs.handle_event(event.generation, &event.kind);
    }

    /// The worker that has this rank in the last generation, and where its output is.
    ///
    /// # Errors
    /// There is no such rank, or no generation yet.
    pub fn output_of(&self, rank: u32) -> Result<&WorkerOutput, NoOutput> {
        let request = OutputRequest { rank: Some(rank), host: None };
        self.outputs.select(&request)?.into_iter().next().ok_or(NoOutput::NoGeneration)
    }

    /// Everything, for a reader that has nothing.
    pub fn whole(&self, now: Time, status: Option<&StatusReport>) -> Vec<PageTopic> {
        let buckets: Vec<&str> = TimeBucket::ALL.iter().map(|bucket| bucket.name()).collect();
        let mut topics = vec![PageTopic::new("buckets", &buckets)];
        topics.extend(self.topics(now, status));
        topics.push(PageTopic::new("events", &self.events.since(0)));
        topics
    }

    /// Changes since the last call, for all readers that had everything up to then.
    pub fn changes(&mut self, now: Time, status: Option<&StatusReport>) -> Vec<PageTopic> {
        let topics = self.topics(now, status);
        let has_changed = |topic: &&PageTopic| !self.sent.contains(topic);
        let mut changed: Vec<PageTopic> = topics.iter().filter(has_changed).cloned().collect();
        self.sent = topics;
        if self.events.next() > self.unsent {
            changed.push(PageTopic::new("events", &self.events.since(self.unsent)));
            self.unsent = self.events.next();
        }
        changed
    }

    fn topics(&self, now: Time, status: Option<&StatusReport>) -> Vec<PageTopic> {
        let ledger = &self.job.ledger;
        let mut topics = vec![
            PageTopic::new("world", &self.world),
            PageTopic::new("reported", &self.reported),
            PageTopic::new("paces", &self.paces),
            PageTopic::new("resets", &explain_resets(ledger, RESETS_SHOWN_MAX)),
            PageTopic::new("goodput", &PageGoodput::new(&ledger.timeline(now), now)),
        ];
        if let Some(status) = status {
            topics.push(PageTopic::new("fleet", &PageFleet::new(status, ledger)));
            topics.push(PageTopic::new("status", &PageStatus::new(status, now, self.missed)));
        }
        topics
    }
}
