//! A driver that listens: its job's authority and secrets, its node, its transport. Used by the driver's process.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use elastic_driver::WorkerCredentials;
use elastic_protocol::{Incarnation, JobId, NodeId, NodeName, Term, WorkerId};
use elastic_runtime::NodeHandle;
use elastic_transport::{
    AuthorityError, Credentials, JobSecrets, ListenError, ListenOptions, PROTOCOL_VERSION,
    QuicTransport, ReservedAddress, SharedSecret,
};
use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::command_line::{CommandFailure, DriverPlan, ResultExt};
use crate::process::random::system_seed;
use crate::process::signals::{Heard, Signals};

/// The parts of a driver that exist before its actors.
pub(super) struct Listening {
    pub(super) job: JobId,
    pub(super) term: Term,
    pub(super) node: NodeHandle,
    pub(super) transport: Rc<QuicTransport>,
    pub(super) credentials: Rc<RefCell<Credentials>>,
    /// The address at which the driver really listens.
    pub(super) address: SocketAddr,
}

impl Listening {
    /// Makes the secrets of a new job.
    pub(super) fn new_job(shared: Option<&SharedSecret>) -> Result<JobSecrets, AuthorityError> {
        let job = JobId(Uuid::new_v4());
        match shared {
            Some(shared) => JobSecrets::shared(job, shared),
            None => JobSecrets::new(job),
        }
    }

    /// Listens for the nodes of a job, as its driver of this term; on `socket` if there is one already.
    pub(super) fn start(
        plan: &DriverPlan,
        socket: Option<Rc<UdpSocket>>,
        secrets: JobSecrets,
        term: Term,
    ) -> Result<Self, CommandFailure> {
        let job = secrets.job();
        let authority = secrets.authority();
        let authority = authority.failed("the job's certificate authority cannot be used")?;
        // Each term has an incarnation range of its own, so that no number is given out twice (D-1).
        let first = Incarnation::enrolled(term, 1);
        let credentials = secrets.credentials(&authority, first);
        let credentials = Rc::new(RefCell::new(credentials));
        let local = NodeId { name: NodeName::Driver, incarnation: Incarnation(term.0) };
        let node = NodeHandle::new(local.clone(), system_seed());
        let admission = Rc::clone(&credentials);
        let options = ListenOptions {
            bind: plan.bind,
            socket,
            local,
            authority,
            admit: Rc::new(move |request| admission.borrow_mut().admit(request)),
            secrets: Some(secrets),
            deadlines: plan.config.deadlines,
            version: PROTOCOL_VERSION,
        };
        let transport = QuicTransport::listen(options, node.sink()).map_err(not_listening)?;
        node.attach(transport.clone());
        let address = transport.local_address().unwrap_or(plan.bind);
        Ok(Self { job, term, node, transport, credentials, address })
    }
}

/// Interval between two attempts to listen at the address of a driver before.
const LISTEN_EVERY: Duration = Duration::from_millis(500);

/// Timeout of these attempts: a job whose workers wait for a driver is not given up before.
const FREE_WITHIN: Duration = Duration::from_secs(600);

/// Takes the address at which a job's nodes look for their driver: somebody else may have it for a while, or the network may
/// not be up yet. Returns the signal that asked the driver to end meanwhile.
pub(super) async fn reserved_when_free(
    bind: SocketAddr,
    signals: &Signals,
) -> Result<Result<ReservedAddress, Heard>, CommandFailure> {
    once_free(bind, signals, || ReservedAddress::bind(bind)).await
}

async fn once_free<T>(
    bind: SocketAddr,
    signals: &Signals,
    listen: impl Fn() -> Result<T, ListenError>,
) -> Result<Result<T, Heard>, CommandFailure> {
    let until = Instant::now() + FREE_WITHIN;
    let mut is_told = false;
    loop {
        let error = match listen() {
            Ok(reserved) => return Ok(Ok(reserved)),
            Err(error) => error,
        };
        let passes = [ErrorKind::AddrInUse, ErrorKind::AddrNotAvailable];
        let reason = match &error {
            ListenError::Bind { source, .. } if passes.contains(&source.kind()) => source,
            _ => return Err(not_listening(error)),
        };
        if Instant::now() >= until {
            return Err(not_listening(error));
        }
        if !std::mem::replace(&mut is_told, true) {
            let gives_up_in = FREE_WITHIN;
            tracing::warn!(%bind, %reason, ?gives_up_in, "the job waits for its driver, whose address is not free");
        }
        let heard = std::pin::pin!(signals.next());
        let waited = std::pin::pin!(sleep(LISTEN_EVERY));
        if let Either::Left((heard, _)) = select(heard, waited).await {
            return Ok(Err(heard));
        }
    }
}

pub(super) fn not_listening(error: ListenError) -> CommandFailure {
    let hint = match &error {
        ListenError::Bind { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            "stop the driver that runs there, or give this one another --bind (port 0 takes any that is \
             free)"
        }
        ListenError::Bind { .. } => "give --bind an address of this machine",
        _ => "the cause says more",
    };
    CommandFailure::usage("the driver cannot listen").source(error).hint(hint)
}

/// The workers' credentials, from the same table that authenticates them.
pub(super) struct SharedCredentials(pub(super) Rc<RefCell<Credentials>>);

impl WorkerCredentials for SharedCredentials {
    fn issue(&self, worker: &WorkerId) -> Result<String, String> {
        Ok(self.0.borrow_mut().issue_worker(worker).to_line())
    }
}

#[cfg(test)]
mod tests {
    use elastic_runtime::Pulse;
    use elastic_runtime::system::run_paused;

    use super::*;

    /// Waits for an address that another process has for so long; returns the time that it took.
    fn waited(taken_for: Duration) -> (Result<Result<(), Heard>, CommandFailure>, Duration) {
        let signals = Signals::start(Pulse::new(Duration::ZERO)).expect("signals can be received");
        let address = SocketAddr::from(([127, 0, 0, 1], 7070));
        run_paused(async {
            let begun = Instant::now();
            let taken = || ListenError::Bind { address, source: ErrorKind::AddrInUse.into() };
            let listen = || if begun.elapsed() < taken_for { Err(taken()) } else { Ok(()) };
            (once_free(address, &signals, listen).await, begun.elapsed())
        })
    }

    #[test]
    fn g_9_an_address_that_stays_taken_is_waited_for_no_longer_than_its_time() {
        let (listens, after) = waited(FREE_WITHIN - LISTEN_EVERY);
        assert!(matches!(listens, Ok(Ok(()))), "it was free in time");
        assert_eq!(after, FREE_WITHIN - LISTEN_EVERY);
        let (listens, after) = waited(2 * FREE_WITHIN);
        assert!(listens.is_err(), "it was not free");
        assert_eq!(after, FREE_WITHIN);
    }
}
