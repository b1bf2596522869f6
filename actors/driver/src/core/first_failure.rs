//! The first failure since a generation trained last: what a job that fails names as its cause (G-10). Called where a
//! loss is seen (`losses`).

use elastic_protocol::{ExitStatus, WorkerFailure, WorkerId};

use super::DriverCore;

/// A failure's message is cut to this many characters where it becomes part of a reason.
const REASON_CHARACTERS_MAX: usize = 600;

impl DriverCore {
    /// Remembers the first failure since a generation trained last: the first real cause (G-10).
    pub(crate) fn note_failure(
        &mut self,
        worker: &WorkerId,
        status: Option<ExitStatus>,
        message: &str,
    ) {
        if self.first_failure.is_none() {
            self.first_failure = Some(self.failure_of(worker, status, message));
        }
    }

    fn failure_of(
        &self,
        worker: &WorkerId,
        status: Option<ExitStatus>,
        message: &str,
    ) -> WorkerFailure {
        let rank = self.current.as_ref().and_then(|current| current.assignment.rank_of(worker));
        WorkerFailure { worker: worker.clone(), rank, status, message: shorten(message) }
    }

    /// Of the failures of one generation, the one that its program says came first is the cause: a peer's may be
    /// reported before it. Only programs that say when they failed can be compared.
    pub(crate) fn sharpen_first_failure(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        message: &str,
        failed_at: Option<u64>,
    ) {
        let failure = self.failure_of(worker, Some(status), message);
        let (Some(at), Some(_), false) = (failed_at, failure.rank, status.is_success()) else {
            return;
        };
        let is_earlier = match (&self.first_failure, self.first_failed_at) {
            (Some(first), Some(first_at)) => at < first_at && first.worker != *worker,
            (Some(_), None) => return,
            (None, _) => true,
        };
        if !is_earlier {
            return;
        }
        self.first_failed_at = Some(at);
        self.first_failure = Some(failure);
        self.tell_first_cause_anew();
    }
}

/// The end of a message, where the error stands.
pub(crate) fn shorten(message: &str) -> String {
    let message = message.trim();
    let characters = message.chars().count();
    if characters <= REASON_CHARACTERS_MAX {
        return message.to_owned();
    }
    let skipped = characters - REASON_CHARACTERS_MAX;
    let tail: String = message.chars().skip(skipped).collect();
    format!("… {tail}")
}
