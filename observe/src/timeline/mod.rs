//! The timeline: a job's whole life as a trace for Perfetto or `chrome://tracing`, made of the lines of its event log.
//! Format: "Trace Event Format", JSON objects. Called by the command `timeline`.
//!
//! The job has a process with tracks for generations, resets and the driver; each host has one, with a track for each slot
//! and a slice for each incarnation of its worker. A flow leads from the worker whose loss began a reset to that reset.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_driver::{DriverEvent, EventKind, ResetWay};
use elastic_protocol::messages::PhaseMs;
use elastic_protocol::{GenerationId, HostName, ResetCause, Time, WorkerId};
use serde_json::{Value, json};

use crate::log::{LoggedEntry, LoggedLine};
use crate::words::describe_event;

/// The process of the job itself; those of hosts follow.
const JOB: usize = 1;
/// The tracks of the job.
const GENERATIONS: u32 = 1;
const RESETS: u32 = 2;
const DRIVER: u32 = 3;

/// The trace of one job.
#[derive(Debug)]
pub struct JobTimeline {
    job: String,
    began: Time,
    last_at: Time,
    /// By host: its process.
    hosts: BTreeMap<HostName, usize>,
    /// Workers whose processes have not ended: when each was started, and when it attached.
    workers: BTreeMap<WorkerId, WorkerLife>,
    /// The generation that trains.
    running: Option<RunningGeneration>,
    reset: Option<BegunReset>,
    resets: u64,
    entries: Vec<Value>,
}

#[derive(Clone, Copy, Debug)]
struct WorkerLife {
    started: Time,
    attached: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct RunningGeneration {
    generation: GenerationId,
    since: Time,
    world_size: u32,
}

#[derive(Clone, Debug)]
struct BegunReset {
    decided: Time,
    worker: Option<WorkerId>,
    way: ResetWay,
}

impl JobTimeline {
    /// The trace of the last job of a log; none if the log names none. Lines that cannot be read are left out.
    pub fn of_lines(lines: impl IntoIterator<Item = String>) -> Option<Self> {
        let mut timeline: Option<Self> = None;
        for line in lines.into_iter().filter_map(|line| LoggedLine::read(&line).ok()) {
            match (&line.entry, &mut timeline) {
                (LoggedEntry::DriverStarted { job, .. }, timeline)
                    if timeline.as_ref().is_none_or(|it| it.job != *job) =>
                {
                    *timeline = Some(Self::new(job.clone(), line.at));
                }
                (_, Some(timeline)) => timeline.handle_line(&line),
                (_, None) => {}
            }
        }
        timeline
    }

    fn new(job: String, began: Time) -> Self {
        let mut timeline = Self {
            job,
            began,
            last_at: began,
            hosts: BTreeMap::new(),
            workers: BTreeMap::new(),
            running: None,
            reset: None,
            resets: 0,
            entries: Vec::new(),
        };
        let name = format!("job {}", timeline.job);
        timeline.name(JOB, None, &name);
        for (track, name) in [(GENERATIONS, "generations"), (RESETS, "resets"), (DRIVER, "driver")]
        {
            timeline.name(JOB, Some(track), name);
        }
        timeline
    }

    /// The trace's entries, with what has not ended ended at the last line.
    pub fn into_entries(mut self) -> Vec<Value> {
        let end = self.last_at;
        self.end_generation(end);
        for (worker, life) in std::mem::take(&mut self.workers) {
            self.end_worker(&worker, life, end, "it had not ended");
        }
        self.entries
    }

    fn handle_line(&mut self, line: &LoggedLine) {
        let at = line.at.max(self.last_at);
        match &line.entry {
            LoggedEntry::DriverStarted { .. } => {
                self.slice((JOB, DRIVER), "no driver", (self.last_at, at), json!({}));
            }
            LoggedEntry::Event(event) => self.handle_event(at, event),
            LoggedEntry::Sign => {}
        }
        self.last_at = at;
    }

    fn handle_event(&mut self, at: Time, event: &DriverEvent) {
        match &event.kind {
            EventKind::WorkerStarted { worker } => {
                let life = WorkerLife { started: at, attached: None };
                self.workers.insert(worker.clone(), life);
            }
            EventKind::WorkerAttached { worker, .. } => {
                let unheard_of = WorkerLife { started: at, attached: None };
                let life = self.workers.entry(worker.clone()).or_insert(unheard_of);
                life.attached.get_or_insert(at);
            }
            EventKind::WorkerExited { worker, status, .. } => {
                if let Some(life) = self.workers.remove(worker) {
                    self.end_worker(worker, life, at, &status.to_string());
                }
            }
            EventKind::WorkerNotStarted { worker, reason } => {
                if let Some(life) = self.workers.remove(worker) {
                    self.end_worker(worker, life, at, reason);
                }
            }
            EventKind::GenerationRunning { world_size } => {
                let (generation, world_size) = (event.generation, *world_size);
                self.end_generation(at);
                self.running = Some(RunningGeneration { generation, since: at, world_size });
                self.count_workers(at, world_size);
            }
            EventKind::ResetDecided { cause, way } => {
                self.end_generation(at);
                self.count_workers(at, 0);
                let reset =
                    BegunReset { decided: at, worker: worker_of(cause).cloned(), way: *way };
                self.reset = Some(reset);
            }
            EventKind::ResetDone { cause, ms, steps_lost, .. } => {
                if let Some(reset) = self.reset.take() {
                    self.end_reset(&reset, cause, ms, *steps_lost);
                }
            }
            EventKind::ResetCalledOff { .. } | EventKind::GenerationFormed { .. } => {}
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
        self.slice((JOB, GENERATIONS), &name, (since, at), arguments);
    }

    fn end_worker(&mut self, worker: &WorkerId, life: WorkerLife, at: Time, end: &str) {
        let track = self.track(worker);
        let arguments = json!({ "end": end });
        self.slice(track, &worker.to_string(), (life.started, at), arguments);
        self.slice(track, "starting", (life.started, life.attached.unwrap_or(at)), json!({}));
    }

    fn end_reset(&mut self, reset: &BegunReset, cause: &ResetCause, ms: &PhaseMs, lost: u64) {
        let spanned = |from: Time, ms: f64| from + Duration::from_secs_f64(ms.max(0.0) / 1e3);
        let phases = [("form", ms.form.unwrap_or_default()), ("sync", ms.sync.unwrap_or_default())];
        let end = spanned(reset.decided, phases.iter().map(|(_, ms)| ms).sum());
        let track = (JOB, RESETS);
        let name = format!("reset: {cause}");
        let arguments = json!({
            "way": reset.way.name(), "detect_ms": ms.detect, "total_ms": ms.total, "steps_lost": lost,
        });
        self.slice(track, &name, (reset.decided, end), arguments);
        let mut from = reset.decided;
        for (name, ms) in phases {
            let until = spanned(from, ms);
            self.slice(track, name, (from, until), json!({}));
            from = until;
        }
        self.resets += 1;
        let Some(worker) = &reset.worker else { return };
        let (id, at) = (self.resets, self.microseconds(reset.decided));
        let (pid, tid) = self.track(worker);
        let (kind, name) = ("reset", "began a reset");
        self.entries.extend([
            json!({ "ph": "s", "id": id, "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": at }),
            json!({
                "ph": "f", "bp": "e", "id": id, "cat": kind, "name": name,
                "pid": JOB, "tid": RESETS, "ts": at,
            }),
        ]);
    }

    /// A moment on the driver's track, in words.
    fn mark(&mut self, at: Time, event: &DriverEvent) {
        let text = describe_event(event.generation, &event.kind).text;
        let at = self.microseconds(at);
        self.entries.push(json!({
            "ph": "i", "s": "t", "name": text, "pid": JOB, "tid": DRIVER, "ts": at,
        }));
    }

    fn count_workers(&mut self, at: Time, workers: u32) {
        let at = self.microseconds(at);
        self.entries.push(json!({
            "ph": "C", "name": "world size", "pid": JOB, "ts": at, "args": { "workers": workers },
        }));
    }

    fn slice(&mut self, track: (usize, u32), name: &str, span: (Time, Time), arguments: Value) {
        let (pid, tid) = track;
        let (at, end) = (self.microseconds(span.0), self.microseconds(span.1));
        self.entries.push(json!({
            "ph": "X", "name": name, "pid": pid, "tid": tid,
            "ts": at, "dur": (end - at).max(0.0), "args": arguments,
        }));
    }

    /// The process and track of a worker's slot, which are named when they are first seen.
    fn track(&mut self, worker: &WorkerId) -> (usize, u32) {
        let (host, slot) = (&worker.host, worker.slot);
        let next = JOB + 1 + self.hosts.len();
        let process = *self.hosts.entry(host.clone()).or_insert(next);
        if process == next {
            self.name(process, None, &format!("host {host}"));
        }
        (process, slot + 1)
    }

    fn name(&mut self, process: usize, track: Option<u32>, name: &str) {
        let what = if track.is_some() { "thread_name" } else { "process_name" };
        self.entries.push(json!({
            "ph": "M", "name": what, "pid": process, "tid": track.unwrap_or_default(),
            "args": { "name": name },
        }));
    }

    /// Microseconds since the job began, the unit of the format.
    fn microseconds(&self, at: Time) -> f64 {
        at.since(self.began).as_secs_f64() * 1e6
    }
}

/// The worker whose loss is the cause of a reset.
fn worker_of(cause: &ResetCause) -> Option<&WorkerId> {
    match cause {
        ResetCause::WorkerExited { worker, .. }
        | ResetCause::WorkerFailed { worker, .. }
        | ResetCause::WorkerSilent { worker, .. }
        | ResetCause::WorkerDied { worker } => Some(worker),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"
{"t":"2026-01-01T00:00:00Z","kind":"driver_started","term":1,"generation":0,"job":"j","address":"x","pid":1,"version":"1"}
{"t":"2026-01-01T00:00:01Z","kind":"worker_started","term":1,"generation":0,"worker":"a[0]#1"}
{"t":"2026-01-01T00:00:01Z","kind":"worker_started","term":1,"generation":0,"worker":"b[0]#2"}
{"t":"2026-01-01T00:00:02Z","kind":"worker_attached","term":1,"generation":0,"worker":"a[0]#1","pid":7}
{"t":"2026-01-01T00:00:02Z","kind":"worker_attached","term":1,"generation":0,"worker":"b[0]#2","pid":8}
{"t":"2026-01-01T00:00:03Z","kind":"generation_running","term":1,"generation":1,"world_size":2}
{"t":"2026-01-01T00:00:10Z","kind":"worker_exited","term":1,"generation":1,"worker":"b[0]#2","status":"signal 9 (SIGKILL)","expected":false,"killed_after_grace":false}
"#;

    fn entries(log: &str) -> Vec<Value> {
        JobTimeline::of_lines(log.lines().map(ToOwned::to_owned)).expect("a job").into_entries()
    }

    fn named<'a>(entries: &'a [Value], name: &str) -> &'a Value {
        entries.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn workers_have_slices_from_start_to_end_on_the_track_of_their_slot() {
        let entries = entries(LOG);
        let ended = named(&entries, "b[0]#2");
        assert_eq!((ended["ts"].as_f64(), ended["dur"].as_f64()), (Some(1e6), Some(9e6)));
        assert_eq!(ended["args"]["end"], "signal 9 (SIGKILL)");
        let lives = named(&entries, "a[0]#1");
        assert_eq!(lives["args"]["end"], "it had not ended");
        assert_ne!(lives["pid"], ended["pid"], "each host is a process");
        assert_eq!(named(&entries, "starting")["dur"].as_f64(), Some(1e6));
        let generation = named(&entries, "generation 1");
        assert_eq!((generation["ts"].as_f64(), generation["dur"].as_f64()), (Some(3e6), Some(7e6)));
    }

    #[test]
    fn only_the_last_job_of_a_log_is_shown() {
        let two = format!("{LOG}{}", LOG.replace("\"j\"", "\"k\"").replace("b[0]#2", "c[0]#3"));
        let entries = entries(&two);
        assert_eq!(entries[0]["args"]["name"], "job k");
        assert!(entries.iter().all(|entry| entry["name"] != "b[0]#2"));
    }

    #[test]
    fn a_log_without_a_job_has_no_timeline() {
        assert!(JobTimeline::of_lines(["{}".to_owned(), "x".to_owned()]).is_none());
    }
}
