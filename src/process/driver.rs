//! `--role driver` and `run`: the process of the one authority of a job.

use std::cell::RefCell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use elastic_driver::{Driver, DriverCore, DriverParts, StopJob, WorkerCredentials};
use elastic_host_manager::{Discovery, HostFileDiscovery, ScriptDiscovery};
use elastic_protocol::{
    Incarnation, JobId, JobResult, NodeId, NodeName, Outcome, Term, WorkerFailure, WorkerId,
};
use elastic_runtime::{NodeHandle, OffloadPort, system, wall_clock};
use elastic_transport::{
    Authority, Credentials, ListenError, ListenOptions, PROTOCOL_VERSION, QuicTransport, Validity,
};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::event_log::EventLog;
use super::local_launcher::{AgentCommand, LocalLauncher};
use super::observer::Observer;
use super::random::{system_rng, system_seed};
use super::signals::Signals;
use super::state_dir::{EVENTS_FILE, StateDir, default_state_dir};
use crate::cli::{DiscoveryPlan, DriverPlan, Failure, Launcher, ResultExt};

/// How long the last words to agents may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long local agents have to end once their job is over.
const AGENTS_GO_WITHIN: Duration = Duration::from_secs(2);

/// Runs a job to its end.
pub(crate) fn run_driver(plan: DriverPlan, log: &str) -> Result<(), Failure> {
    let result =
        system::run(drive(plan, log)).failed("the system refuses what the driver needs")??;
    match result.outcome {
        Outcome::Succeeded => Ok(()),
        Outcome::Failed | Outcome::Stopped => Err(tell(result)),
    }
}

async fn drive(plan: DriverPlan, log: &str) -> Result<JobResult, Failure> {
    let signals = Signals::new().failed("signals cannot be heard")?;
    let (job, term) = (JobId(Uuid::new_v4()), Term(1));
    let authority = Authority::new(job, Validity::default(), wall_clock());
    let authority = Rc::new(authority.failed("the job's certificate authority cannot be made")?);
    let credentials = Credentials::new(authority.fingerprint(), Incarnation(1));
    let credentials =
        Rc::new(RefCell::new(credentials.failed("the job's secrets cannot be made")?));

    let local = NodeId { name: NodeName::Driver, incarnation: Incarnation(term.0) };
    let node = NodeHandle::new(local.clone(), system_seed());
    let admission = Rc::clone(&credentials);
    let options = ListenOptions {
        bind: plan.bind,
        local,
        authority,
        admit: Rc::new(move |request| admission.borrow_mut().admit(request)),
        deadlines: plan.config.deadlines,
        wall_clock,
        version: PROTOCOL_VERSION,
    };
    let transport = QuicTransport::listen(options, node.sink()).map_err(not_listening)?;
    node.attach(transport.clone());
    let address = transport.local_address().unwrap_or(plan.bind);
    let reached_at = reached_at(&plan, address);

    let state = StateDir::open(&match &plan.state_dir {
        Some(folder) => folder.clone(),
        None => default_state_dir(address).ok_or_else(|| {
            Failure::new("there is no folder for the driver's state: HOME is not set")
                .hint("give one with --state-dir")
        })?,
    })?;
    let events = state.path().join(EVENTS_FILE);
    let events = EventLog::open(events, wall_clock(), term.0, &job.to_string(), &reached_at)
        .failed("the event log cannot be written")?;
    let token_file = state.publish(&credentials.borrow().join_token(), address)?;
    tracing::info!(%job, %address, events = %events.path().display(), "the driver listens");
    tracing::debug!(?plan, "configuration");

    let launcher = match plan.launcher {
        Launcher::Join => {
            tell_how_to_join(&plan, &reached_at, &token_file);
            None
        }
        Launcher::Local => Some(LocalLauncher::new(AgentCommand {
            program: std::env::current_exe().failed("this program does not find itself")?,
            driver: reached_at.clone(),
            token_file,
            log: if log == DEFAULT_LOG { "warn".to_owned() } else { log.to_owned() },
        })),
    };
    let (tell_result, result) = oneshot::channel();
    let observer = Observer::new(events, launcher.clone(), tell_result);
    let mut config = plan.config;
    config.driver_address = reached_at;
    let parts = DriverParts {
        core: DriverCore::new(config, job, term, system_rng(), node.now()),
        host_manager: plan.hosts,
        discovery: discovery(&plan.discovery),
        credentials: Rc::new(SharedCredentials(credentials)),
        observer: Box::new(observer),
    };
    let (tell_fault, fault) = oneshot::channel();
    // Nobody waits for it once this function has returned.
    let driver = Driver::start(&node, parts, move |exit| drop(tell_fault.send(exit)));
    tokio::task::spawn_local(forward(signals, driver));

    let result = match result.await {
        Ok(result) => Ok(result),
        Err(_dropped) => {
            Err(Failure::new("a fault in the driver ended the job").hint(match fault.await {
                Ok(exit) => format!("please report this: it {exit}"),
                Err(_) => "please report this".to_owned(),
            }))
        }
    };
    state.withdraw();
    transport.shutdown("the job is over", GOODBYE).await;
    if let Some(launcher) = launcher {
        launcher.close(AGENTS_GO_WITHIN).await;
    }
    result
}

/// `--log` where none is given.
const DEFAULT_LOG: &str = "info";

/// Where workers and agents reach the driver.
fn reached_at(plan: &DriverPlan, address: SocketAddr) -> String {
    if let Some(advertise) = &plan.advertise {
        return advertise.clone();
    }
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let loopback = match address {
        SocketAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], address.port())),
        SocketAddr::V6(_) => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], address.port())),
    };
    match (plan.launcher, nix::unistd::gethostname()) {
        (Launcher::Join, Ok(name)) => format!("{}:{}", name.to_string_lossy(), address.port()),
        _ => loopback.to_string(),
    }
}

/// On stderr, whatever is logged: it is what the next shell needs.
fn tell_how_to_join(plan: &DriverPlan, reached_at: &str, token_file: &Path) {
    let token_file = token_file.display();
    let mut text = format!(
        "join with: elastic-node --role worker --join {reached_at} --token-file {token_file}\n"
    );
    if !plan.bind.ip().is_loopback() {
        text.push_str("on other machines, give a copy of that file (mode 0600): it lets them in\n");
    }
    // Nobody is left to tell that stderr is closed.
    let _ = anstream::stderr().write_all(text.as_bytes());
}

fn not_listening(error: ListenError) -> Failure {
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

fn discovery(plan: &DiscoveryPlan) -> Box<dyn Discovery> {
    match plan {
        DiscoveryPlan::Script(path) => Box::new(ScriptDiscovery::new(path)),
        // Where nothing is discovered, nobody asks.
        DiscoveryPlan::None => Box::new(ScriptDiscovery::new(Path::new(""))),
        DiscoveryPlan::File(path) => {
            Box::new(HostFileDiscovery::new(path, OffloadPort::blocking_threads()))
        }
    }
}

/// Workers' secrets, from the same table that lets them in.
struct SharedCredentials(Rc<RefCell<Credentials>>);

impl WorkerCredentials for SharedCredentials {
    fn issue(&self, worker: &WorkerId) -> Result<String, String> {
        let token = self.0.borrow_mut().issue_worker(worker).map_err(|error| error.to_string())?;
        Ok(token.to_line())
    }
}

async fn forward(mut signals: Signals, driver: actix::Addr<Driver>) {
    loop {
        let heard = signals.next().await;
        tracing::info!("{}: the job is to end", heard.name);
        driver.do_send(StopJob { signal: heard.number });
    }
}

/// Why the job did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FirstFailure(String);

fn tell(result: JobResult) -> Failure {
    let mut failure = Failure::new(result.reason.clone()).with_code(result.code);
    // A reason that names the worker tells of its failure already.
    let untold =
        result.first_failure.filter(|failure| !result.reason.contains(&failure.worker.to_string()));
    if let Some(WorkerFailure { worker, rank, status, message }) = untold {
        let rank = rank.map_or_else(String::new, |rank| format!(" (rank {rank})"));
        let status = status.map_or_else(String::new, |status| format!(": {status}"));
        let message = message.trim();
        let said = if message.is_empty() { String::new() } else { format!(": {message}") };
        failure = failure.source(FirstFailure(format!("{worker}{rank} failed{status}{said}")));
    }
    match result.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
