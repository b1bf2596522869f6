//! [`StartPatience`]: a driver that goes on with a job waits for what the system refuses it at its start, such as a full or
//! read-only disk. Its workers train on meanwhile, and wait for a driver when one of them fails. Used by the driver's process.

use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep};

use crate::command_line::{CODE_FAILED, CommandFailure, may_pass, remedy};
use crate::process::signals::{Heard, Signals};

/// Interval between two attempts.
pub(super) const TRY_EVERY: Duration = Duration::from_millis(500);

/// Timeout of the attempts of one start: a job whose workers wait for a driver is not given up before.
const GRANTED_WITHIN: Duration = Duration::from_secs(600);

/// The patience of one start of a driver.
#[derive(Debug)]
pub(super) struct StartPatience {
    /// Whether it goes on with a job: one that begins is refused at once.
    goes_on: bool,
    /// The end of the patience, from the first refusal on.
    until: Option<Instant>,
}

impl StartPatience {
    pub(super) const fn new(goes_on: bool) -> Self {
        Self { goes_on, until: None }
    }

    /// Handles a refusal: returns if the same is to be tried again after [`TRY_EVERY`]. The first refusal is told.
    ///
    /// # Errors
    /// The failure with which the driver ends.
    pub(super) fn bear(&mut self, failure: CommandFailure) -> Result<(), CommandFailure> {
        let Some(code) = failure.system_code().filter(|code| is_borne(self.goes_on, *code)) else {
            return Err(failure);
        };
        let (reason, way_out) = failure.finding();
        let way_out = remedy(code).unwrap_or(way_out);
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| {
            let gives_up_in = GRANTED_WITHIN;
            tracing::warn!(
                reason,
                way_out,
                ?gives_up_in,
                "the job waits for its driver; its workers train on meanwhile"
            );
            now + gives_up_in
        });
        if now < until {
            return Ok(());
        }
        let hint = format!("{way_out}, and start the driver again: it goes on with the job");
        Err(failure.with_code(CODE_FAILED.into()).hint(hint))
    }

    /// Makes an attempt until it is granted. Returns the signal that asked the driver to end meanwhile.
    pub(super) async fn until_granted<T>(
        &mut self,
        signals: &Signals,
        attempt: impl Fn() -> Result<T, CommandFailure>,
    ) -> Result<Result<T, Heard>, CommandFailure> {
        loop {
            match attempt() {
                Ok(granted) => return Ok(Ok(granted)),
                Err(failure) => self.bear(failure)?,
            }
            let heard = std::pin::pin!(signals.next());
            let waited = std::pin::pin!(sleep(TRY_EVERY));
            if let Either::Left((heard, _)) = select(heard, waited).await {
                return Ok(Err(heard));
            }
        }
    }
}

/// Whether a driver waits for what the system refuses with this number.
const fn is_borne(goes_on: bool, code: i32) -> bool {
    goes_on && may_pass(code)
}

#[cfg(test)]
mod tests {
    use std::io;

    use elastic_journal::JournalError;
    use elastic_runtime::Pulse;
    use elastic_runtime::system::run_paused;

    use super::*;

    fn refused(code: i32) -> CommandFailure {
        let error = JournalError::from(io::Error::from_raw_os_error(code));
        let hint = error.hint();
        CommandFailure::usage("the journal cannot be used").source(error).hint(hint)
    }

    /// Begins on a disk that gives this error for so long; returns the time that it took.
    fn begun_after(
        code: i32,
        refused_for: Duration,
    ) -> (Result<Result<(), Heard>, CommandFailure>, Duration) {
        let signals = Signals::start(Pulse::new(Duration::ZERO)).expect("signals can be received");
        run_paused(async {
            let begun = Instant::now();
            let attempt =
                || if begun.elapsed() < refused_for { Err(refused(code)) } else { Ok(()) };
            let mut patience = StartPatience::new(true);
            (patience.until_granted(&signals, attempt).await, begun.elapsed())
        })
    }

    #[test]
    fn g_9_a_disk_that_stays_full_or_fails_is_waited_for_no_longer_than_its_time() {
        for code in [libc::ENOSPC, libc::EIO] {
            let (begun, after) = begun_after(code, GRANTED_WITHIN - TRY_EVERY);
            assert!(matches!(begun, Ok(Ok(()))), "it was granted in time");
            assert_eq!(after, GRANTED_WITHIN - TRY_EVERY);
            let (begun, after) = begun_after(code, GRANTED_WITHIN * 2);
            let failure = begun.expect_err("it was not granted");
            assert_eq!((failure.code(), after), (CODE_FAILED, GRANTED_WITHIN));
            assert!(failure.finding().1.contains("start the driver again"), "{failure}");
        }
    }

    #[test]
    fn d_4_a_driver_that_goes_on_waits_for_errors_of_its_disk_and_for_nothing_else() {
        let is_borne = |goes_on, failure| StartPatience::new(goes_on).bear(failure).is_ok();
        for code in [libc::EROFS, libc::EIO, libc::ESTALE, libc::EACCES, libc::ENOSPC] {
            assert!(is_borne(true, refused(code)), "{code}");
            assert!(!is_borne(false, refused(code)), "{code}: a job that begins is refused");
        }
        for code in [libc::ENOTDIR, libc::ELOOP] {
            assert!(!is_borne(true, refused(code)), "{code}: something else stands there");
        }
        let damaged = JournalError::Corrupt("a page".to_owned());
        let no_file = io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file");
        for error in [damaged, JournalError::InUse, JournalError::Io(no_file)] {
            let failure = CommandFailure::new("the journal cannot be used").source(error);
            assert!(!is_borne(true, failure), "it does not pass");
        }
    }

    #[test]
    fn d_4_what_is_told_of_a_wait_for_a_disk_is_how_to_mend_it_and_not_another_folder() {
        let mut patience = StartPatience { goes_on: true, until: Some(Instant::now()) };
        let failure = patience.bear(refused(libc::EROFS)).expect_err("its time is over");
        let (text, hint) = failure.finding();
        assert!(text.contains("os error 30"), "{text}");
        assert!(hint.contains("writable") && !hint.contains("--state-dir"), "{hint}");
    }
}
