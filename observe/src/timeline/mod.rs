//! The timeline: a job's whole life as a trace for Perfetto or `chrome://tracing`, made of the lines of its event log.
//! Format: "Trace Event Format", JSON objects. Called by the command `timeline`, which writes entries out as they come:
//! the memory in use grows with the number of slots, and not with the job's age.
//!
//! The job has a process with tracks for generations, resets, checkpoints and the driver, and counters; each host has one,
//! with a track for each slot, a slice for each incarnation of its worker, and a track for the host's part in resets. A
//! flow leads from the worker whose loss began a reset to that reset, and on to the generation that followed.

mod counters;
mod lives;
#[cfg(test)]
mod tests;
mod tracks;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_driver::{DriverEvent, EventKind, HostResetMs, ResetWay};
use elastic_protocol::messages::PhaseMs;
use elastic_protocol::{GenerationId, HostName, ResetCause, Time};
use serde_json::{Value, json};

use self::counters::JobCounters;
use self::lives::WorkerLives;
use self::tracks::{Track, Tracks};
use crate::explain::who;
use crate::log::{LoggedEntry, LoggedLine, job_named_by};
use crate::words::describe_event;
use crate::worker_names::with_short_names;

/// Most hosts whose parts in a reset are shown: those whose first steps came last.
pub const HOSTS_SHOWN_MAX: usize = 64;

/// The shortest slice that the format has: a microsecond.
const SHORTEST: Duration = Duration::from_micros(1);

/// The trace of one job.
#[derive(Debug)]
pub struct JobTimeline {
    job: String,
    began: Time,
    last_at: Time,
    is_over: bool,
    tracks: Tracks,
    lives: WorkerLives,
    counters: JobCounters,
    /// The generation that trains.
    running: Option<RunningGeneration>,
    /// The reset under way: how its first decision ends the generation.
    way: Option<ResetWay>,
    /// The decision of the last reset that is over.
    last_reset: Option<Time>,
    resets: u64,
    /// Ends of the last slices on the tracks of resets and checkpoints, whose slices must not overlap.
    reset_end: Time,
    checkpoint_end: Time,
    entries: VecDeque<Value>,
}

#[derive(Clone, Copy, Debug)]
struct RunningGeneration {
    generation: GenerationId,
    since: Time,
    world_size: u32,
}

impl JobTimeline {
    /// The id of the last job of a log; none if the log names none.
    pub fn last_job(lines: impl IntoIterator<Item = String>) -> Option<String> {
        lines.into_iter().filter_map(|line| job_named_by(&line)).last()
    }

    /// The trace of this job, without entries. Lines of other jobs and those that cannot be read will be left out.
    pub fn new(job: String) -> Self {
        Self {
            job,
            began: Time::ZERO,
            last_at: Time::ZERO,
            is_over: true,
            tracks: Tracks::default(),
            lives: WorkerLives::default(),
            counters: JobCounters::default(),
            running: None,
            way: None,
            last_reset: None,
            resets: 0,
            reset_end: Time::ZERO,
            checkpoint_end: Time::ZERO,
            entries: VecDeque::new(),
        }
    }

    /// The next entry of the trace; none if more lines are needed.
    pub fn poll_entry(&mut self) -> Option<Value> {
        self.entries.pop_front()
    }

    /// Takes the next line of the log.
    pub fn handle_line(&mut self, line: &str) {
        let Ok(line) = LoggedLine::read(line) else { return };
        if let LoggedEntry::DriverStarted { job, .. } = &line.entry {
            self.handle_start(line.at, *job == self.job);
        }
        if let LoggedEntry::LogContinued { job, .. } = &line.entry
            && (*job != self.job || self.is_over)
        {
            self.handle_start(line.at, *job == self.job);
        }
        if self.is_over {
            return;
        }
        let at = line.at.max(self.last_at);
        match &line.entry {
            LoggedEntry::DriverStarted { .. } | LoggedEntry::LogContinued { .. } => {}
            LoggedEntry::Event(event) => self.handle_event(at, event),
            LoggedEntry::Goodput(sign) => {
                let counts = self.counters.handle_goodput(at, sign);
                for (name, values) in counts {
                    self.count(at, name, values);
                }
            }
            LoggedEntry::Sign => {}
        }
        self.last_at = at;
    }

    /// Ends all slices that are open at the last line.
    pub fn finish(&mut self) {
        if self.last_at == Time::ZERO {
            return;
        }
        self.end_generation(self.last_at);
        for (worker, life) in self.lives.take_all() {
            self.show_life(&worker, &life, self.last_at, "it had not ended");
        }
        self.is_over = true;
    }

    fn handle_start(&mut self, at: Time, is_ours: bool) {
        if !is_ours {
            self.finish();
        } else if self.last_at == Time::ZERO {
            (self.began, self.last_at, self.is_over) = (at, at, false);
            (self.reset_end, self.checkpoint_end) = (at, at);
            let named = self.tracks.name_job(&self.job);
            self.entries.extend(named);
        } else if !self.is_over {
            let at = at.max(self.last_at);
            self.slice(Track::DRIVER, "no driver", (self.last_at, at), None);
            self.last_at = at;
        }
    }

    fn handle_event(&mut self, at: Time, event: &DriverEvent) {
        match &event.kind {
            EventKind::WorkerStarted { worker } => {
                if let Some((before, life)) = self.lives.start(at, worker) {
                    self.show_life(&before, &life, at, "its slot has another worker");
                }
            }
            EventKind::WorkerNotStarted { worker, reason } => {
                if let Some(life) = self.lives.end(at, worker) {
                    self.show_life(worker, &life, at, reason);
                }
            }
            EventKind::WorkerAttached { worker, .. } => self.lives.attach(at, worker),
            EventKind::WorkerExited { worker, status, .. } => {
                if let Some(life) = self.lives.end(at, worker) {
                    self.show_life(worker, &life, at, &status.to_string());
                }
            }
            EventKind::HostLost { host, .. } => {
                for (worker, life) in self.lives.end_host(at, host) {
                    self.show_life(&worker, &life, at, "its host was lost");
                }
                self.mark(at, event);
            }
            EventKind::GenerationFormed { step, .. } => {
                let steps = self.counters.handle_step(at, *step);
                self.count_all(at, steps);
            }
            EventKind::GenerationRunning { world_size } => {
                let (generation, world_size) = (event.generation, *world_size);
                self.end_generation(at);
                self.running = Some(RunningGeneration { generation, since: at, world_size });
                self.count_workers(at, world_size);
            }
            EventKind::ResetDecided { way, .. } => {
                self.end_generation(at);
                self.count_workers(at, 0);
                self.way.get_or_insert(*way);
            }
            EventKind::ResetDone { cause, ms, steps_lost, .. } => {
                self.show_reset(cause, ms, *steps_lost);
            }
            EventKind::FirstSteps { hosts, .. } => self.show_hosts(hosts),
            EventKind::CheckpointSaved { step, bytes, ms } => {
                let began = before(at, *ms).max(self.checkpoint_end);
                self.checkpoint_end = at;
                let arguments = json!({ "bytes": bytes });
                let name = format!("checkpoint of step {step}");
                self.slice(Track::CHECKPOINTS, &name, (began, at), Some(arguments));
            }
            EventKind::ResetCalledOff { .. } => {}
            EventKind::JobEnded { .. } => {
                self.end_generation(at);
                self.count_workers(at, 0);
                self.mark(at, event);
            }
            _ => self.mark(at, event),
        }
    }

    fn end_generation(&mut self, at: Time) {
        let Some(RunningGeneration { generation, since, world_size }) = self.running.take() else {
            return;
        };
        let name = format!("generation {generation}");
        let arguments = json!({ "world_size": world_size });
        self.slice(Track::GENERATIONS, &name, (since, at), Some(arguments));
    }

    fn show_life(
        &mut self,
        worker: &elastic_protocol::WorkerId,
        life: &lives::WorkerLife,
        at: Time,
        end: &str,
    ) {
        let (track, named) = self.tracks.of_slot(&worker.host, worker.slot);
        self.entries.extend(named);
        let arguments = json!({ "end": end, "incarnation": worker.incarnation.0 });
        let name = format!("{}:{}", worker.host, worker.slot);
        self.slice(track, &name, (life.started, at), Some(arguments));
        self.slice(track, "starting", (life.started, life.attached.unwrap_or(at)), None);
    }

    /// All times follow from the moment at which the new generation trains.
    fn show_reset(&mut self, cause: &ResetCause, ms: &PhaseMs, lost: u64) {
        let Some(running) = self.running else { return };
        let synced = running.since;
        let ready = before(synced, ms.sync.unwrap_or_default());
        let decided = before(ready, ms.form.unwrap_or_default());
        let began = before(decided, ms.detect).max(self.reset_end);
        let (decided, ready) = (decided.max(began), ready.max(began));
        self.reset_end = synced;
        let way = self.way.take().map(ResetWay::name);
        let arguments = json!({ "way": way, "total_ms": ms.total, "steps_lost": lost });
        self.resets += 1;
        self.last_reset = Some(decided);
        let (worker, host) = who(cause);
        let source = self.lives.source_of_flow(worker, host.as_deref(), decided);
        if let Some((slot, at)) = &source {
            let (track, named) = self.tracks.of_slot(&slot.0, slot.1);
            self.entries.extend(named);
            self.slice(track, "began a reset", (*at, *at + SHORTEST), None);
            self.flow("s", track, *at);
        }
        let name = with_short_names(&format!("reset: {cause}")).into_owned();
        self.slice(Track::RESETS, &name, (began, synced), Some(arguments));
        for (name, span) in
            [("detect", (began, decided)), ("form", (decided, ready)), ("sync", (ready, synced))]
        {
            self.slice(Track::RESETS, name, span, None);
        }
        // A flow leads to the innermost slice: here the first phase after the decision.
        if source.is_some() {
            self.flow("t", Track::RESETS, decided + SHORTEST);
            self.flow("f", Track::GENERATIONS, synced + SHORTEST);
        }
    }

    /// The hosts' parts in the last reset.
    fn show_hosts(&mut self, hosts: &BTreeMap<HostName, HostResetMs>) {
        let Some(decided) = self.last_reset else { return };
        let end = |ms: &HostResetMs| ms.first_step.unwrap_or(f64::INFINITY);
        let mut last: Vec<(&HostName, &HostResetMs)> = hosts.iter().collect();
        last.sort_by(|left, right| end(right.1).total_cmp(&end(left.1)));
        for (host, ms) in last.into_iter().take(HOSTS_SHOWN_MAX) {
            let (track, named) = self.tracks.of_resets_on(host);
            self.entries.extend(named);
            let at = |ms: f64| decided + Duration::from_secs_f64(ms.max(0.0) / 1e3);
            let (ready, synced) = (at(ms.ready), at(ms.synced).max(at(ms.ready)));
            self.slice(track, "form", (decided, ready), None);
            self.slice(track, "sync", (ready, synced), None);
            if let Some(stepped) = ms.first_step {
                self.slice(track, "first step", (synced, at(stepped).max(synced)), None);
            }
        }
    }

    /// A moment on the driver's track, in words.
    fn mark(&mut self, at: Time, event: &DriverEvent) {
        let text = describe_event(event.generation, &event.kind).text;
        let text = with_short_names(&text);
        let Track { process, thread } = Track::DRIVER;
        let at = self.microseconds(at);
        self.entries.push_back(json!({
            "ph": "i", "s": "t", "name": text, "pid": process, "tid": thread, "ts": at,
        }));
    }

    fn count_workers(&mut self, at: Time, workers: u32) {
        self.count(at, "world size", json!({ "workers": workers }));
    }

    fn count_all(&mut self, at: Time, counts: Vec<(&'static str, Value)>) {
        for (name, values) in counts {
            self.count(at, name, values);
        }
    }

    fn count(&mut self, at: Time, name: &str, values: Value) {
        let at = self.microseconds(at);
        self.entries.push_back(json!({
            "ph": "C", "name": name, "pid": Track::JOB, "ts": at, "args": values,
        }));
    }

    /// A part of the last reset's flow: its begin (`s`), a step (`t`) or its end (`f`), in the slice that is there then.
    fn flow(&mut self, part: &str, Track { process, thread }: Track, at: Time) {
        let (id, at) = (self.resets, self.microseconds(at));
        self.entries.push_back(json!({
            "ph": part, "bp": "e", "id": id, "cat": "reset", "name": "began a reset",
            "pid": process, "tid": thread, "ts": at,
        }));
    }

    fn slice(
        &mut self,
        Track { process, thread }: Track,
        name: &str,
        (from, until): (Time, Time),
        arguments: Option<Value>,
    ) {
        let (at, end) = (self.microseconds(from), self.microseconds(until));
        let mut entry = json!({
            "ph": "X", "name": name, "pid": process, "tid": thread,
            "ts": at, "dur": end.saturating_sub(at),
        });
        if let (Some(arguments), Some(entry)) = (arguments, entry.as_object_mut()) {
            entry.insert("args".to_owned(), arguments);
        }
        self.entries.push_back(entry);
    }

    /// Microseconds since the job began, the unit of the format.
    fn microseconds(&self, at: Time) -> u64 {
        u64::try_from(at.since(self.began).as_micros()).unwrap_or(u64::MAX)
    }
}

/// A time this many milliseconds earlier.
fn before(at: Time, ms: f64) -> Time {
    let ns = Duration::from_secs_f64(ms.max(0.0) / 1e3).as_nanos();
    Time(at.0.saturating_sub(u64::try_from(ns).unwrap_or(u64::MAX)))
}
