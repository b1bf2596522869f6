//! `--role driver` and `run`: the process of the one authority of a job.

mod durable;
mod listening;
mod reach;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use elastic_driver::{Driver, DriverCore, DriverParts, StopJob};
use elastic_host_manager::{Discovery, DnsDiscovery, HostFileDiscovery, ScriptDiscovery};
use elastic_protocol::{JobId, JobResult, Outcome, Term, WorkerFailure};
use elastic_runtime::{NodeHandle, OffloadPort, spawn_child, system, wall_clock};
use elastic_store::actor::Store;
use tokio::sync::oneshot;

use self::durable::Durable;
use self::listening::{Listening, SharedCredentials};
use self::reach::{reached_at, tell_how_to_join};
use super::event_log::EventLog;
use super::launcher::{AgentCommand, Launcher, Way};
use super::observer::Observer;
use super::progress::show;
use super::random::system_rng;
use super::signals::Signals;
use super::state_dir::{EVENTS_FILE, StateDir, default_state_dir};
use crate::cli::{DiscoveryPlan, DriverPlan, Failure, LauncherPlan, ResultExt};

/// How long the last words to agents may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long agents that the driver started have to end once their job is over.
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

async fn drive(mut plan: DriverPlan, log: &str) -> Result<JobResult, Failure> {
    let signals = Signals::new().failed("signals cannot be heard")?;
    let Opened { state, listening, durable } = open(&mut plan)?;
    let Listening { job, term, node, transport, credentials, address } = &listening;
    let reached_at = reached_at(&plan, *address);
    let events = state.path().join(EVENTS_FILE);
    let events = EventLog::open(events, wall_clock(), term.0, &job.to_string(), &reached_at)
        .failed("the event log cannot be written")?;
    let token = credentials.borrow().join_token();
    let token_file = state.publish(&token, *address)?;
    tracing::info!(%job, %address, events = %events.path().display(), "the driver listens");
    tracing::debug!(?plan, "configuration");

    let command = AgentCommand {
        program: std::env::current_exe().failed("this program does not find itself")?,
        driver: reached_at.clone(),
        token_file,
        token: token.to_line(),
        outlives_driver: plan.keeps_journal,
        role: plan.role.clone(),
        // The driver's log tells of hosts and workers already.
        log: if log == DEFAULT_LOG { "warn".to_owned() } else { log.to_owned() },
    };
    let launcher = launcher(&plan, command, node);
    if let (Some(launcher), Some(durable)) = (&launcher, &durable) {
        launcher.adopt(durable.tenure.image.hosts.iter().map(|host| host.name.clone()));
    }
    let (tell_result, result) = oneshot::channel();
    let observer = Observer::new(events, launcher.clone(), tell_result);
    let mut config = plan.config;
    config.driver_address = reached_at;
    if let Some(folder) = plan.log_dir {
        config.output.directory = Some(log_folder(&folder, config.run_id.as_deref(), *job)?);
    }
    let (core, journal) = match durable {
        Some(Durable { tenure, port, .. }) => {
            (DriverCore::with_journal(config, tenure, system_rng(), node.now()), Some(port))
        }
        None => (DriverCore::new(config, *job, *term, system_rng(), node.now()), None),
    };
    let is_durable = journal.is_some();
    let parts = DriverParts {
        core,
        journal,
        host_manager: plan.hosts,
        discovery: discovery(&plan.discovery, node),
        credentials: Rc::new(SharedCredentials(Rc::clone(credentials))),
        observer: Box::new(observer),
    };
    let (tell_fault, fault) = oneshot::channel();
    // Nobody waits for it once this function has returned.
    let driver = Driver::start(node, parts, move |exit| drop(tell_fault.send(exit)));
    if let Some(launcher) = &launcher {
        launcher.report_to(driver.clone());
    }
    // Over ssh, agents do not know that they write to a terminal.
    let is_live = std::io::stderr().is_terminal() && plan.launcher != LauncherPlan::Ssh;
    tokio::task::spawn_local(show(node.clone(), driver.clone(), is_live));
    tokio::task::spawn_local(forward(signals, driver));
    let store = Store::new(node.clone());
    let _store =
        spawn_child(|_| store, |exit| tracing::error!("a fault in the driver: the store {exit}"));

    let result = match result.await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(abandoned)) => {
            Err(Failure::new("this driver acts no more; the job goes on without it")
                .source(Abandoned(abandoned))
                .hint("start it again when the cause is mended"))
        }
        Err(_dropped) => {
            Err(Failure::new("a fault in the driver ended it").hint(match fault.await {
                Ok(exit) => format!("please report this: it {exit}"),
                Err(_) => "please report this".to_owned(),
            }))
        }
    };
    if result.is_err() && is_durable {
        // Whoever starts it again finds the job as it is.
        transport.shutdown("the driver has ended", GOODBYE).await;
        return result;
    }
    state.withdraw();
    transport.shutdown("the job is over", GOODBYE).await;
    if let Some(launcher) = launcher {
        launcher.close(AGENTS_GO_WITHIN).await;
    }
    result
}

/// What a driver has before its actors are there.
struct Opened {
    state: StateDir,
    listening: Listening,
    /// None where no successor could find what it left.
    durable: Option<Durable>,
}

fn open(plan: &mut DriverPlan) -> Result<Opened, Failure> {
    if !plan.keeps_journal {
        let secrets = Listening::new_job().failed("the job's secrets cannot be made")?;
        let listening = Listening::start(plan, secrets, Term(1))?;
        let state = StateDir::open(&state_dir(plan, listening.address)?)?;
        // Nobody will come for those who are left.
        plan.config.deadlines.orphan_training.get_or_insert(plan.config.deadlines.orphan);
        return Ok(Opened { state, listening, durable: None });
    }
    let state = StateDir::open(&state_dir(plan, plan.bind)?)?;
    let durable = Durable::open(state.path(), &plan.config.program)?;
    if let Some(former) = state.address()
        && durable.tenure.is_takeover()
        && plan.bind.port() == 0
    {
        // There its agents and workers look for it.
        plan.bind.set_port(former.port());
    }
    plan.hosts.known = durable.known_hosts();
    let listening = Listening::start(plan, durable.secrets.clone(), durable.tenure.image.term)?;
    for worker in durable.expected_workers() {
        listening.credentials.borrow_mut().issue_worker(worker);
    }
    Ok(Opened { state, listening, durable: Some(durable) })
}

/// The job's own folder below `--log-dir`, by its name and the beginning of its id, so that no two jobs share one.
fn log_folder(folder: &Path, run_id: Option<&str>, job: JobId) -> Result<String, Failure> {
    let name: String = run_id
        .unwrap_or("none")
        .chars()
        .map(|it| if it.is_alphanumeric() { it } else { '_' })
        .collect();
    let id: String = job.to_string().chars().take(8).collect();
    let folder = std::path::absolute(folder.join(format!("{name}_{id}")));
    let folder = folder.failed("--log-dir is no folder")?;
    folder
        .to_str()
        .map(ToOwned::to_owned)
        .ok_or_else(|| Failure::usage(format!("--log-dir {} is not UTF-8", folder.display())))
}

fn state_dir(plan: &DriverPlan, address: SocketAddr) -> Result<PathBuf, Failure> {
    if let Some(folder) = &plan.state_dir {
        return Ok(folder.clone());
    }
    default_state_dir(address).ok_or_else(|| {
        Failure::new("there is no folder for the driver's state: HOME is not set")
            .hint("give one with --state-dir")
    })
}

/// Has agents join: by people who are told how, or by itself.
fn launcher(plan: &DriverPlan, command: AgentCommand, node: &NodeHandle) -> Option<Rc<Launcher>> {
    let way = match plan.launcher {
        LauncherPlan::Join => {
            tell_how_to_join(plan, &command.driver, &command.token_file);
            return None;
        }
        LauncherPlan::Local => Way::Local,
        LauncherPlan::Ssh => Way::Ssh { failures_max: plan.config.max_restarts },
    };
    Some(Launcher::start(command, way, node))
}

/// `--log` where none is given.
const DEFAULT_LOG: &str = "info";

fn discovery(plan: &DiscoveryPlan, node: &NodeHandle) -> Box<dyn Discovery> {
    match plan {
        DiscoveryPlan::Script(path) => Box::new(ScriptDiscovery::new(path)),
        // Where nothing is discovered, nobody asks.
        DiscoveryPlan::None => Box::new(ScriptDiscovery::new(Path::new(""))),
        DiscoveryPlan::Dns(target) => {
            Box::new(DnsDiscovery::new(target.clone(), node.random("discovery: DNS", 0)))
        }
        DiscoveryPlan::File(path) => {
            Box::new(HostFileDiscovery::new(path, OffloadPort::blocking_threads()))
        }
    }
}

async fn forward(mut signals: Signals, driver: actix::Addr<Driver>) {
    loop {
        let heard = signals.next().await;
        tracing::info!("{}: the job is to end", heard.name);
        driver.do_send(StopJob { signal: heard.number });
    }
}

/// Why a driver acts no more.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Abandoned(String);

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
