//! Lines of an event log, read back, and the ledger of their job. Called by the driver's process, which goes on
//! counting where its predecessor ended, and by `explain`.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use elastic_driver::{DriverEvent, EventKind};
use elastic_protocol::messages::GoodputStatus;
use elastic_protocol::{JobResult, Time};
use serde::Deserialize;

use crate::ledger::GoodputLedger;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedLine {
    /// Time of the line, since 1970.
    pub at: Time,
    /// Its content.
    pub entry: LoggedEntry,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum LoggedEntry {
    /// A driver began to write: the job's first line, or a successor's.
    DriverStarted {
        /// The job.
        job: String,
        /// Whether it goes on with a job that a driver before it began.
        is_successor: bool,
        /// The folder on each host that gets the output of its workers (`--output-dir`), if it is stored.
        output_dir: Option<String>,
    },
    /// The log goes on in this file: the one before it was too long, or was removed. The lines of the job's beginning
    /// may be gone.
    LogContinued {
        /// The job.
        job: String,
        /// As in the line that began it.
        output_dir: Option<String>,
    },
    /// An event of the driver.
    Event(Box<DriverEvent>),
    /// The goodput at that time. The line also proves that the driver was there.
    Goodput(Box<GoodputSign>),
    /// A notice of missing lines. It proves only that the driver was there.
    Sign,
}

/// A line about goodput.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct GoodputSign {
    /// The goodput.
    #[serde(flatten)]
    pub goodput: GoodputStatus,
    /// The highest step that a worker had reported; none in logs of older versions.
    pub step: Option<u64>,
}

/// A line that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableLine {
    /// It is no JSON object with a time and a kind.
    #[error("not an object with a time and a kind")]
    NoObject(#[source] serde_json::Error),
    /// Its time is none.
    #[error("{text:?} is no time")]
    NoTime {
        /// The text.
        text: String,
        /// The cause.
        #[source]
        error: humantime::TimestampError,
    },
    /// Its event is of another version.
    #[error("an event {kind:?} that this version does not know")]
    UnknownEvent {
        /// The kind.
        kind: String,
        /// The cause.
        #[source]
        error: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct AnyLine {
    t: String,
    kind: String,
    #[serde(default)]
    term: u64,
    job: Option<String>,
    output_dir: Option<String>,
}

impl LoggedLine {
    /// Reads a line of the log.
    ///
    /// # Errors
    /// [`UnreadableLine`] says what is wrong with it.
    pub fn read(line: &str) -> Result<Self, UnreadableLine> {
        let any: AnyLine = serde_json::from_str(line).map_err(UnreadableLine::NoObject)?;
        let at = humantime::parse_rfc3339(&any.t)
            .map_err(|error| UnreadableLine::NoTime { text: any.t.clone(), error })?;
        let entry = match (any.kind.as_str(), any.job) {
            ("driver_started", Some(job)) => {
                let is_successor = any.term > 1;
                LoggedEntry::DriverStarted { job, is_successor, output_dir: any.output_dir }
            }
            ("log_continued", Some(job)) => {
                LoggedEntry::LogContinued { job, output_dir: any.output_dir }
            }
            // The ledger counts by itself: numbers that it does not know are no reason to leave the line out.
            ("goodput", _) => LoggedEntry::Goodput(serde_json::from_str(line).unwrap_or_default()),
            ("lines_dropped", _) => LoggedEntry::Sign,
            _ => {
                let event = serde_json::from_str(line)
                    .map_err(|error| UnreadableLine::UnknownEvent { kind: any.kind, error })?;
                LoggedEntry::Event(Box::new(event))
            }
        };
        Ok(Self { at: since_1970(at), entry })
    }
}

/// The job that a line names: a driver begins to write there, or the log goes on in a further file.
pub(crate) fn job_named_by(line: &str) -> Option<String> {
    // Other lines need not be parsed.
    if !["driver_started", "log_continued"].iter().any(|kind| line.contains(kind)) {
        return None;
    }
    match LoggedLine::read(line).ok()?.entry {
        LoggedEntry::DriverStarted { job, .. } | LoggedEntry::LogContinued { job, .. } => Some(job),
        LoggedEntry::Event(_) | LoggedEntry::Goodput(_) | LoggedEntry::Sign => None,
    }
}

/// The lines of one job among those of a log, which has the jobs of its state directory one after the other. They begin
/// with one that names the job, and end before the next that names another.
#[derive(Clone, Debug)]
pub struct JobLines {
    job: String,
    is_own: bool,
}

impl JobLines {
    /// The lines of the job with this id.
    pub fn new(job: String) -> Self {
        Self { job, is_own: false }
    }

    /// Whether the next line of the log is one of the job.
    pub fn handle_line(&mut self, line: &str) -> bool {
        if let Some(named) = job_named_by(line) {
            self.is_own = named == self.job;
        }
        self.is_own
    }
}

/// The missing part of a log, as the end of a sentence.
pub(crate) fn after(missing: Option<MissingBefore>) -> String {
    missing.map(|missing| format!("; {missing}")).unwrap_or_default()
}

/// A moment of the wall clock, as the ledger counts time.
pub fn since_1970(at: SystemTime) -> Time {
    Time::ZERO + at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// The moment of the wall clock at a time of the ledger.
pub fn wall_clock_at(at: Time) -> SystemTime {
    UNIX_EPOCH + (at - Time::ZERO)
}

/// The last job of an event log, with its ledger.
#[derive(Clone, Debug)]
pub struct LoggedJob {
    /// The job's id.
    pub job: String,
    /// Its slots' time.
    pub ledger: GoodputLedger,
    /// Time of its last line.
    pub last_at: Time,
    /// Its result; none while it goes on.
    pub result: Option<JobResult>,
    /// Lines that could not be read.
    pub unreadable: u64,
    /// Beginning of the log, if what the job did before is missing from it: the files before this one were moved away or
    /// removed.
    pub missing_before: Option<MissingBefore>,
}

/// The beginning of a log whose job began before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MissingBefore(pub Time);

impl MissingBefore {
    /// The missing part if this is the first line of its job in a log.
    pub(crate) fn of_first(at: Time, entry: &LoggedEntry) -> Option<Self> {
        let has_beginning = matches!(entry, LoggedEntry::DriverStarted { is_successor: false, .. });
        (!has_beginning).then_some(Self(at))
    }
}

/// A sentence.
impl fmt::Display for MissingBefore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = humantime::format_rfc3339_seconds(wall_clock_at(self.0));
        write!(formatter, "the event log begins at {at}: what came before is missing")
    }
}

impl LoggedJob {
    /// A job that begins.
    pub fn new(job: String, at: Time) -> Self {
        let ledger = GoodputLedger::new(at);
        Self { job, ledger, last_at: at, result: None, unreadable: 0, missing_before: None }
    }

    /// A job by its first line in a log.
    fn of_first(job: &str, line: &LoggedLine) -> Self {
        let missing_before = MissingBefore::of_first(line.at, &line.entry);
        Self { missing_before, ..Self::new(job.to_owned(), line.at) }
    }

    /// Takes the next line.
    pub fn handle_line(&mut self, line: &LoggedLine) {
        match &line.entry {
            LoggedEntry::DriverStarted { job, .. } | LoggedEntry::LogContinued { job, .. }
                if *job != self.job =>
            {
                *self = Self::of_first(job, line);
            }
            LoggedEntry::DriverStarted { .. } => {
                self.ledger.handle_driver_gone(self.last_at);
                self.ledger.handle_driver_back(line.at);
            }
            LoggedEntry::Event(event) => {
                self.ledger.handle_event(line.at, event);
                if let EventKind::JobEnded { result } = &event.kind {
                    self.result = Some(result.clone());
                }
            }
            LoggedEntry::LogContinued { .. } | LoggedEntry::Goodput(_) | LoggedEntry::Sign => {}
        }
        self.last_at = self.last_at.max(line.at);
    }

    /// The last job of a log; none if the log names none.
    pub fn of_lines(lines: impl IntoIterator<Item = String>) -> Option<Self> {
        let mut record: Option<Self> = None;
        for line in lines {
            match (LoggedLine::read(&line), &mut record) {
                (Ok(line), Some(record)) => record.handle_line(&line),
                (Ok(line), None) => match &line.entry {
                    LoggedEntry::DriverStarted { job, .. }
                    | LoggedEntry::LogContinued { job, .. } => {
                        record = Some(Self::of_first(job, &line));
                    }
                    // The job of these lines is not known: the log was begun anew after them.
                    _ => {}
                },
                (Err(_), Some(record)) => record.unreadable += 1,
                (Err(_), None) => {}
            }
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use elastic_driver::ListedHost;
    use elastic_protocol::{GenerationId, HostName, Term};

    use super::*;
    use crate::ledger::TimeBucket;

    fn line(second: u64, rest: &str) -> String {
        let t = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_secs(second));
        format!(r#"{{"t":"{t}","term":1,"generation":0,{rest}}}"#)
    }

    fn started(second: u64, job: &str) -> String {
        line(second, &format!(r#""kind":"driver_started","job":"{job}""#))
    }

    fn listed(second: u64) -> String {
        line(second, r#""kind":"hosts_changed","needed":1,"min_np":1,"hosts":["a:2"]"#)
    }

    #[test]
    fn an_event_is_read_as_what_it_was() {
        let host = ListedHost {
            name: HostName::new("a").expect("allowed"),
            slots: 2,
            is_blacklisted: false,
            is_drained: false,
        };
        let kind = EventKind::HostsChanged { needed: 1, min_np: 1, hosts: vec![host] };
        let event = DriverEvent { term: Term(1), generation: GenerationId(0), kind };
        let read = LoggedLine::read(&listed(3)).expect("a line");
        let entry = LoggedEntry::Event(Box::new(event));
        assert_eq!(read, LoggedLine { at: Time::from_ms(3_000), entry });
        for text in ["", "{}", r#"{"t":"x","kind":"goodput"}"#, &line(1, r#""kind":"new""#)] {
            assert!(LoggedLine::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_log_without_the_beginning_of_its_job_says_so() {
        let missing = |lines: &[String]| {
            let job = LoggedJob::of_lines(lines.to_vec()).expect("a job");
            job.missing_before.map(|it| it.to_string())
        };
        let continued = |second| line(second, r#""kind":"log_continued","job":"j""#);
        let successor = |second| started(second, "j").replace(r#""term":1"#, r#""term":2"#);
        let says =
            "the event log begins at 1970-01-01T00:00:05Z: what came before is missing".to_owned();
        assert_eq!(missing(&[started(1, "j"), continued(5), successor(6)]), None);
        assert_eq!(missing(&[continued(5), successor(6)]), Some(says.clone()));
        assert_eq!(missing(&[successor(5), continued(6)]), Some(says.clone()), "D-1");
        assert_eq!(missing(&[started(1, "x"), continued(5)]), Some(says), "another job");
        assert_eq!(missing(&[continued(5), started(6, "x")]), None, "a job that began later");
    }

    #[test]
    fn the_lines_of_a_job_are_found_by_its_id_among_those_of_others() {
        let continued = |second| line(second, r#""kind":"log_continued","job":"j""#);
        let log = [
            listed(0),
            started(1, "x"),
            listed(2),
            started(3, "j"),
            listed(4),
            "half a li".to_owned(),
            continued(5),
            listed(6),
            started(7, "y"),
            line(8, r#""kind":"warning","message":"driver_started by j""#),
            started(9, "j"),
        ];
        let of = |job: &str| -> Vec<usize> {
            let mut lines = JobLines::new(job.to_owned());
            (0..log.len()).filter(|at| lines.handle_line(&log[*at])).collect()
        };
        assert_eq!(of("x"), [1, 2]);
        assert_eq!(of("j"), [3, 4, 5, 6, 7, 10]);
        assert_eq!(of("z"), [0; 0]);
    }

    #[test]
    fn the_next_driver_of_a_job_goes_on_counting_and_another_job_begins_anew() {
        let log = [started(1, "x"), listed(2), started(10, "j"), listed(11)];
        let sign = line(20, r#""kind":"goodput","buckets":{}"#);
        let lines = log.into_iter().chain([sign, "half a li".to_owned(), started(25, "j")]);
        let record = LoggedJob::of_lines(lines).expect("a job");
        assert_eq!((record.job.as_str(), record.unreadable), ("j", 1));
        let totals = record.ledger.totals(Time::from_ms(26_000));
        assert_eq!(totals.seconds_of(TimeBucket::DriverAway), 10.0, "two slots, five seconds");
        assert_eq!(totals.seconds_of(TimeBucket::Absent), 20.0);
    }
}
