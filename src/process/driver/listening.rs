//! A driver that listens: its job's authority and secrets, its node, its transport.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;

use elastic_driver::WorkerCredentials;
use elastic_protocol::{Incarnation, JobId, NodeId, NodeName, Term, WorkerId};
use elastic_runtime::{NodeHandle, wall_clock};
use elastic_transport::{
    AuthorityError, Credentials, JobSecrets, ListenError, ListenOptions, PROTOCOL_VERSION,
    QuicTransport,
};
use uuid::Uuid;

use crate::cli::{DriverPlan, Failure, ResultExt};
use crate::process::random::system_seed;

/// Everything of a driver that is there before its actors are.
pub(super) struct Listening {
    pub(super) job: JobId,
    pub(super) term: Term,
    pub(super) node: NodeHandle,
    pub(super) transport: Rc<QuicTransport>,
    pub(super) credentials: Rc<RefCell<Credentials>>,
    /// Where it really listens.
    pub(super) address: SocketAddr,
}

impl Listening {
    /// A new job's secrets.
    pub(super) fn new_job() -> Result<JobSecrets, AuthorityError> {
        JobSecrets::new(JobId(Uuid::new_v4()), wall_clock())
    }

    /// Listens for the nodes of a job, as its driver of this term; at this socket if it has one already.
    pub(super) fn start(
        plan: &DriverPlan,
        socket: Option<Rc<UdpSocket>>,
        secrets: JobSecrets,
        term: Term,
    ) -> Result<Self, Failure> {
        let job = secrets.job();
        let authority = secrets.authority();
        let authority = authority.failed("the job's certificate authority cannot be used")?;
        // Each term has numbers of its own to give out, so that none is given out twice (D-1).
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
            wall_clock,
            version: PROTOCOL_VERSION,
        };
        let transport = QuicTransport::listen(options, node.sink()).map_err(not_listening)?;
        node.attach(transport.clone());
        let address = transport.local_address().unwrap_or(plan.bind);
        Ok(Self { job, term, node, transport, credentials, address })
    }
}

pub(super) fn not_listening(error: ListenError) -> Failure {
    let hint = match &error {
        ListenError::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            "stop the driver that runs there, or give this one another --bind (port 0 takes any that is \
             free)"
        }
        ListenError::Bind { .. } => "give --bind an address of this machine",
        _ => "the cause says more",
    };
    Failure::new("the driver cannot listen").source(error).hint(hint)
}

/// Workers' secrets, from the same table that lets them in.
pub(super) struct SharedCredentials(pub(super) Rc<RefCell<Credentials>>);

impl WorkerCredentials for SharedCredentials {
    fn issue(&self, worker: &WorkerId) -> Result<String, String> {
        Ok(self.0.borrow_mut().issue_worker(worker).to_line())
    }
}
