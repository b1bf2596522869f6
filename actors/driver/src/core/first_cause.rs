//! The first failure since a generation last trained: a failed job names it as its cause (G-10). A part of the core;
//! written when a loss is seen (`losses`) and when the last words of a process come (`ending`).
//!
//! An agent reports the end of a process before it has read the process's last words. Until they are there, or
//! [`EndedProcess::words_until`] has passed, the cause is provisional, and a failed job waits for them.

use std::collections::BTreeMap;

use elastic_protocol::job::shorten;
use elastic_protocol::messages::AgentToDriver;
use elastic_protocol::{Deadlines, ExitStatus, Time, WorkerFailure, WorkerId};
use serde::{Deserialize, Serialize};

/// Last words of a process.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct FailureWords {
    /// The program's error, or the end of its stderr.
    pub(crate) message: String,
    /// Time at which the program says that it failed, in seconds of its host's clock.
    pub(crate) failed_at: Option<u64>,
}

/// A process that has ended, and whose last words are awaited.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct EndedProcess {
    status: ExitStatus,
    /// The rank that the process had.
    rank: Option<u32>,
    words_until: Time,
}

/// The failure that came first.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct First {
    failure: WorkerFailure,
    failed_at: Option<u64>,
    /// End of the wait for its last words; none if they are not awaited.
    words_until: Option<Time>,
    /// Whether it is a death whose exit status is not known yet.
    lacks_status: bool,
}

/// Failures since a generation last trained.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct FirstCause {
    first: Option<First>,
    /// The earliest of the failures whose programs say when they failed.
    earliest: Option<(u64, WorkerFailure)>,
    #[serde(with = "crate::recording::readable::pairs")]
    ended: BTreeMap<WorkerId, EndedProcess>,
    /// Reason why no agent could be started, of the first such host.
    launch_failure: Option<String>,
    /// Reason of the job's failure, without the first cause; none while the job has not failed.
    failed_because: Option<String>,
}

impl FirstCause {
    /// Longest wait for a process's last words after its end.
    fn words_within(deadlines: &Deadlines) -> std::time::Duration {
        AgentToDriver::LAST_WORDS_WITHIN + deadlines.suspect
    }

    /// Notes that a process has ended; its last words follow.
    pub(crate) fn process_ended(
        &mut self,
        now: Time,
        worker: &WorkerId,
        (status, rank): (ExitStatus, Option<u32>),
        deadlines: &Deadlines,
    ) {
        self.ended.retain(|_, ended| ended.words_until > now);
        let words_until = now + Self::words_within(deadlines);
        if let Some(first) = &mut self.first
            && first.lacks_status
            && first.failure.worker == *worker
        {
            first.lacks_status = false;
            first.failure.status = Some(status);
            // The reports of other workers about this failure.
            first.failure.message.clear();
            first.words_until = Some(words_until);
        }
        self.ended.insert(worker.clone(), EndedProcess { status, rank, words_until });
    }

    /// Remembers a failure if none came before it.
    pub(crate) fn note(&mut self, failure: WorkerFailure) {
        if self.first.is_some() {
            return;
        }
        let ended = self.ended.get(&failure.worker).filter(|_| failure.message.is_empty());
        let words_until = ended.map(|ended| ended.words_until);
        self.first = Some(First { failure, failed_at: None, words_until, lacks_status: false });
    }

    /// Remembers a death if no failure came before it. Its exit status and its last words follow.
    pub(crate) fn note_death(
        &mut self,
        now: Time,
        worker: &WorkerId,
        rank: Option<u32>,
        deadlines: &Deadlines,
    ) {
        if self.first.is_some() {
            return;
        }
        let worker = worker.clone();
        let failure = WorkerFailure { worker, rank, status: None, message: String::new() };
        let words_until = Some(now + Self::words_within(deadlines));
        self.first = Some(First { failure, failed_at: None, words_until, lacks_status: true });
    }

    /// Remembers that others could not reach a worker, with their error, if no failure came before it. Its process has most
    /// likely died: its exit status and its last words follow then, and are waited for.
    pub(crate) fn note_unreached(
        &mut self,
        now: Time,
        worker: &WorkerId,
        (rank, error): (Option<u32>, &str),
        deadlines: &Deadlines,
    ) {
        if self.first.is_none() {
            self.note_death(now, worker, rank, deadlines);
        }
        if let Some(first) = self.first.as_mut().filter(|first| {
            first.failure.worker == *worker
                && first.lacks_status
                && first.failure.message.is_empty()
        }) {
            first.failure.message = shorten(error);
        }
    }

    /// Remembers the first host on which no agent could be started.
    pub(crate) fn note_launch_failure(&mut self, message: String) {
        self.launch_failure.get_or_insert(message);
    }

    /// Takes the last words of a process. Says whether the first cause has changed or is complete.
    ///
    /// The cause is the failure that came first by the program's own time, among failures of one generation: a peer's
    /// failure may be reported earlier. Only programs that say when they failed can be compared.
    pub(crate) fn last_words(&mut self, worker: &WorkerId, words: &FailureWords) -> bool {
        let Some(EndedProcess { status, rank, .. }) = self.ended.remove(worker) else {
            return false;
        };
        let message = shorten(&words.message);
        let Some(first) = &mut self.first else { return false };
        let mut has_changed = false;
        if first.failure.worker == *worker {
            first.failed_at = words.failed_at;
            if first.words_until.take().is_some() {
                first.failure.message.clone_from(&message);
                has_changed = true;
            }
        }
        if let (Some(at), Some(_), false) = (words.failed_at, rank, status.is_success())
            && self.earliest.as_ref().is_none_or(|(earliest, _)| at < *earliest)
        {
            let worker = worker.clone();
            let failure = WorkerFailure { worker, rank, status: Some(status), message };
            self.earliest = Some((at, failure));
        }
        if let (Some(first_at), Some((at, failure))) = (first.failed_at, &self.earliest)
            && *at < first_at
        {
            (first.failure, first.failed_at) = (failure.clone(), Some(*at));
            has_changed = true;
        }
        has_changed
    }

    /// Forgets all failures, since a generation trains.
    pub(crate) fn forget(&mut self) {
        (self.first, self.earliest) = (None, None);
        self.ended.clear();
    }

    /// End of the wait for the first cause's last words; none if they are not awaited.
    pub(crate) fn words_until(&self, now: Time) -> Option<Time> {
        self.first.as_ref()?.words_until.filter(|until| *until > now)
    }

    pub(crate) fn failure(&self) -> Option<&WorkerFailure> {
        self.first.as_ref().map(|first| &first.failure)
    }

    /// The reason of the job's failure, with the first cause as it is known now.
    pub(crate) fn conclude(&mut self, because: String) -> String {
        let reason = self.explain(&because);
        self.failed_because = Some(because);
        reason
    }

    /// The reason of a failed job, with the first cause as it is known now; none if the job has not failed.
    pub(crate) fn concluded(&self) -> Option<String> {
        self.failed_because.as_deref().map(|because| self.explain(because))
    }

    /// A reason, followed by the first real cause.
    fn explain(&self, reason: &str) -> String {
        match (self.failure(), &self.launch_failure) {
            (Some(first), _) => {
                let how = match first.status {
                    Some(status) if first.message.is_empty() => status.to_string(),
                    Some(status) => format!("{status}: {}", first.message),
                    None if first.message.is_empty() => "died".to_owned(),
                    None => first.message.clone(),
                };
                format!("{reason}; first {}: {how}", first.worker)
            }
            (None, Some(failure)) => format!("{reason}; first {failure}"),
            (None, None) => reason.to_owned(),
        }
    }
}
