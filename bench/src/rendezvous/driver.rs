//! The driver's side of `rendezvous`: a real driver that listens for agents, by restart, so that an assignment is a
//! process's start.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::SystemTime;

use anyhow::Context as _;
use elastic_driver::{
    Driver, DriverConfig, DriverCore, DriverEvent, DriverObserver, DriverParts, ElasticMode,
    WorkerCredentials,
};
use elastic_host_manager::{HostManagerConfig, HostSource, HostsSnapshot, ScriptDiscovery};
use elastic_protocol::{
    Incarnation, JobId, JobResult, NodeId, NodeName, ProgramSpec, Term, WorkerId,
};
use elastic_runtime::{BlockingLane, NodeHandle, OffloadPort, system};
use elastic_transport::{Credentials, JobSecrets, JoinToken, ListenOptions, QuicTransport};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;
use uuid::Uuid;

/// A driver's listening address, and the token that admits agents.
#[derive(Clone, Debug)]
pub(super) struct DriverEndpoint {
    pub(super) address: SocketAddr,
    pub(super) token: JoinToken,
}

/// Drives until it is over.
pub(super) fn run(
    count: u32,
    tell: mpsc::Sender<DriverEndpoint>,
    over: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    system::run(async move {
        let secrets = JobSecrets::new(JobId(Uuid::from_u128(1)))?;
        let authority = secrets.authority()?;
        let credentials = secrets.credentials(&authority, Incarnation(1));
        let credentials = Rc::new(RefCell::new(credentials));
        let local = NodeId { name: NodeName::Driver, incarnation: Incarnation(1) };
        let node = NodeHandle::new(local.clone(), 1);
        let admission = Rc::clone(&credentials);
        let admit = Rc::new(move |request: &_| admission.borrow_mut().admit(request));
        let bind = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = ListenOptions::new(bind, local, authority, admit);
        let transport = QuicTransport::listen(options, node.sink())?;
        node.attach(transport.clone());
        let address = transport.local_address().context("it listens")?;
        let program = ProgramSpec { argv: vec!["train".to_owned()], ..ProgramSpec::default() };
        let config = DriverConfig {
            np: Some(count),
            min_np: Some(count),
            mode: ElasticMode::Restart,
            driver_address: address.to_string(),
            ..DriverConfig::new(program)
        };
        let parts = DriverParts {
            core: DriverCore::new(
                config.validate()?,
                secrets.job(),
                Term(1),
                ChaCha8Rng::seed_from_u64(1),
                node.now(),
            )
            .into(),
            host_manager: HostManagerConfig::new(HostSource::Joined),
            discovery: Box::new(ScriptDiscovery::new(
                Path::new(""),
                OffloadPort::lane(BlockingLane::DISCOVERY),
            )),
            credentials: Rc::new(Issue(Rc::clone(&credentials))),
            observer: Box::new(Nobody),
            journal: None,
            permit: Box::new(|| true),
        };
        let token = credentials.borrow().join_token();
        // Its end is that of this function.
        let _driver = Driver::start(&node, parts, drop);
        tell.send(DriverEndpoint { address, token }).context("nobody wants to know")?;
        // The task that waits for it may have failed.
        let _ = over.await;
        Ok(())
    })?
}

struct Issue(Rc<RefCell<Credentials>>);

impl WorkerCredentials for Issue {
    fn issue(&self, worker: &WorkerId) -> Result<String, String> {
        Ok(self.0.borrow_mut().issue_worker(worker).to_line())
    }
}

struct Nobody;

impl DriverObserver for Nobody {
    fn event(&mut self, _: SystemTime, _: &DriverEvent) {}
    fn hosts(&mut self, _: &HostsSnapshot) {}
    fn ended(&mut self, _: &JobResult) {}
    fn abandoned(&mut self, _: &str, _: bool) {}
    fn handed_over(&mut self) {}
}
