//! A driver that listens: its job's authority and secrets, its node, its transport. Used by the driver's process.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;

use elastic_driver::WorkerCredentials;
use elastic_protocol::{Incarnation, JobId, NodeId, NodeName, Term, WorkerId};
use elastic_runtime::NodeHandle;
use elastic_transport::{
    AuthorityError, Credentials, JobSecrets, ListenError, ListenOptions, PROTOCOL_VERSION,
    QuicTransport, SharedSecret,
};
use uuid::Uuid;

use crate::command_line::{CommandFailure, DriverPlan, ResultExt};
use crate::process::random::system_seed;

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

pub(super) fn not_listening(error: ListenError) -> CommandFailure {
    let hint = match &error {
        ListenError::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
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
