//! [`PatientStart`]: a worker's start waits for what its system lacks for a moment, such as a free port. It waits on the
//! training thread, which has nothing else to do yet. Called by `start`.

use std::io::{self, Write as _};
use std::time::Duration;

use elastic_transport::PassingWant;
use elastic_worker::state::training::{Error, Result};

use super::attach::WhileWaiting;

/// The patience of one start.
pub(super) struct PatientStart {
    want: PassingWant,
    check: Option<fn() -> Result<()>>,
    pause: Box<dyn FnMut(Duration)>,
}

impl PatientStart {
    /// Patience that sleeps; before each pause the program's own check is made.
    pub(super) fn new(while_waiting: Option<WhileWaiting>) -> Self {
        #[expect(clippy::disallowed_methods, reason = "no actor runs on the training thread")]
        let pause = Box::new(std::thread::sleep);
        Self { want: PassingWant::new(), check: while_waiting.map(|it| it.check), pause }
    }

    /// Makes an attempt until it succeeds. The first failure is told on stderr.
    ///
    /// # Errors
    /// [`Error::Start`] for a failure that does not pass, or has not within [`PassingWant::WITHIN`] of this start; an error of
    /// the check.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Result<T> {
        loop {
            let error = match attempt() {
                Ok(got) => return Ok(got),
                Err(error) => error,
            };
            let is_first = !self.want.has_begun();
            let Some(pause) = self.want.handle_failure(&error) else {
                return Err(Error::Start { what: what.to_owned(), source: error.into() });
            };
            if is_first {
                let within = PassingWant::WITHIN.as_secs();
                // A program may have no stderr.
                let _ = writeln!(
                    io::stderr(),
                    "elastic-node: {what}: {error}; this worker tries again for up to {within} s"
                );
            }
            if let Some(check) = self.check {
                check()?;
            }
            (self.pause)(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Patience whose pauses take no time, and the time that they would have taken.
    fn simulated() -> (PatientStart, Rc<Cell<Duration>>) {
        let waited = Rc::new(Cell::new(Duration::ZERO));
        let noted = Rc::clone(&waited);
        let pause = Box::new(move |pause| noted.set(noted.get() + pause));
        (PatientStart { want: PassingWant::new(), check: None, pause }, waited)
    }

    #[test]
    fn s_14_a_port_that_is_free_after_a_while_is_taken() {
        let (mut patience, waited) = simulated();
        let bind = || match waited.get() {
            before if before < Duration::from_secs(10) => Err(io::ErrorKind::AddrInUse.into()),
            _ => Ok(7),
        };
        assert_eq!(patience.until("listening", bind).expect("it is free"), 7);
        assert!(waited.get() < Duration::from_secs(12), "{:?}", waited.get());
    }

    #[test]
    fn g_9_a_start_waits_for_all_that_it_lacks_no_longer_than_its_time() {
        let (mut patience, waited) = simulated();
        let refused = |kind: io::ErrorKind| move || io::Result::<()>::Err(kind.into());
        let failure = patience.until("listening", refused(io::ErrorKind::PermissionDenied));
        assert!(failure.is_err() && waited.get().is_zero(), "that does not pass");
        let failure = patience.until("listening", refused(io::ErrorKind::AddrInUse));
        assert!(failure.is_err_and(|error| error.to_string().contains("listening")));
        assert_eq!(waited.get(), PassingWant::WITHIN);
        patience.until("listening", refused(io::ErrorKind::AddrInUse)).expect_err("used up");
        assert_eq!(waited.get(), PassingWant::WITHIN);
    }

    #[test]
    fn an_interrupted_program_does_not_wait() {
        let (mut patience, waited) = simulated();
        patience.check = Some(|| Err(Error::RanBefore));
        let failure =
            patience.until("listening", || io::Result::<()>::Err(io::ErrorKind::AddrInUse.into()));
        assert!(matches!(failure, Err(Error::RanBefore)));
        assert!(waited.get().is_zero());
    }
}
