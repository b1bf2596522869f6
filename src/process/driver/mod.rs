//! `--role driver` and `run`: the process of the one authority of a job.

mod durable;
mod listening;
mod reach;
mod standing;

use std::io::IsTerminal as _;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use elastic_driver::{Driver, DriverCore, DriverParts, StopJob};
use elastic_host_manager::{Discovery, DnsDiscovery, HostFileDiscovery, ScriptDiscovery};
use elastic_journal::etcd::{EtcdAddress, Moment};
use elastic_protocol::{JobId, JobResult, Outcome, Term, WorkerFailure};
use elastic_runtime::{NodeHandle, OffloadPort, spawn_child, system, wall_clock};
use elastic_store::actor::Store;
use elastic_transport::ReservedAddress;
use tokio::sync::oneshot;

use self::durable::{Durable, Unusable};
use self::listening::{Listening, SharedCredentials, not_listening};
use self::reach::{reached_at, tell_how_to_join};
use self::standing::{Seat, Stood, boot_time, finish, resign, stand};
use super::event_log::EventLog;
use super::launcher::{AgentCommand, Launcher, Way};
use super::observer::{DriverEnd, Observer};
use super::progress::show;
use super::random::system_rng;
use super::signals::{Heard, Signals};
use super::state_dir::{EVENTS_FILE, StateDir, default_state_dir};
use crate::cli::{DiscoveryPlan, DriverPlan, Failure, LauncherPlan, ResultExt};

/// How long the last words to agents may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long agents that the driver started have to end once their job is over.
const AGENTS_GO_WITHIN: Duration = Duration::from_secs(2);

/// Runs a job to its end, or to where another driver goes on with it.
pub(crate) fn run_driver(mut plan: DriverPlan, log: &str) -> Result<(), Failure> {
    let mut since = None;
    loop {
        let end = system::run(drive(&mut plan, log, &mut since));
        match end.failed("the system refuses what the driver needs")?? {
            End::Over(JobResult { outcome: Outcome::Succeeded, .. }) | End::HandedOver => {
                return Ok(());
            }
            End::Over(result) => return Err(tell(result)),
            End::Asked(heard) => {
                let message = format!("stopped by signal {} while standing by", heard.number);
                return Err(Failure::new(message).with_code(heard.code()));
            }
            // Whatever belonged to its term is gone with its system of actors: it is as if it was just started.
            End::Deposed(reason) => tracing::warn!(reason, "this driver goes back to standing by"),
        }
    }
}

/// How a life of a driver ends.
#[derive(Debug)]
enum End {
    /// With the job.
    Over(JobResult),
    /// Another driver goes on with the job, as this one was asked to go.
    HandedOver,
    /// It was asked to go while it stood by.
    Asked(Heard),
    /// It may not act any more, or not yet.
    Deposed(String),
}

async fn drive(
    plan: &mut DriverPlan,
    log: &str,
    since: &mut Option<Moment>,
) -> Result<End, Failure> {
    let mut signals = Signals::new().failed("signals cannot be heard")?;
    let opened = match plan.store.clone() {
        None => open(plan)?,
        Some(store) => match open_store(plan, &store, since, &mut signals).await? {
            Ok(opened) => opened,
            Err(end) => return Ok(end),
        },
    };
    let Opened { state, listening, durable, seat } = opened;
    let Listening { job, term, node, transport, credentials, address } = &listening;
    let reached_at = reached_at(plan, *address);
    let events = state.path().join(EVENTS_FILE);
    let events = EventLog::open(events, wall_clock(), term.0, &job.to_string(), &reached_at)
        .failed("the event log cannot be written")?;
    let token = credentials.borrow().join_token();
    let token_file = state.publish(&token, *address)?;
    tracing::info!(%job, %address, %term, events = %events.path().display(), "the driver listens");
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
    let launcher = launcher(plan, command, node);
    if let (Some(launcher), Some(durable)) = (&launcher, &durable) {
        launcher.adopt(durable.tenure.image.hosts.iter().map(|host| host.name.clone()));
    }
    let (tell_end, ended) = oneshot::channel();
    let observer = Observer::new(events, launcher.clone(), tell_end);
    let mut config = plan.config.clone();
    config.driver_address = reached_at;
    if let Some(folder) = &plan.log_dir {
        config.output.directory = Some(log_folder(folder, config.run_id.as_deref(), *job)?);
    }
    let (core, journal) = match durable {
        Some(Durable { tenure, port, .. }) => {
            (DriverCore::with_journal(config, tenure, system_rng(), node.now()), Some(port))
        }
        None => (DriverCore::new(config, *job, *term, system_rng(), node.now()), None),
    };
    let is_durable = journal.is_some();
    let permit = seat.as_ref().map(Seat::permit);
    let parts = DriverParts {
        core,
        journal,
        host_manager: plan.hosts.clone(),
        discovery: discovery(&plan.discovery, node),
        credentials: Rc::new(SharedCredentials(Rc::clone(credentials))),
        observer: Box::new(observer),
        permit: Box::new(move || permit.as_ref().is_none_or(|it| it.is_valid(boot_time()))),
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
    let keeper = seat.map(|seat| seat.serve(driver.clone()));
    tokio::task::spawn_local(forward(signals, driver));
    let store = Store::new(node.clone());
    let _store =
        spawn_child(|_| store, |exit| tracing::error!("a fault in the driver: the store {exit}"));

    let result = match (ended.await, keeper) {
        (Ok(DriverEnd::Over(result)), keeper) => {
            if let Some(keeper) = keeper {
                finish(keeper, &result).await;
            }
            Ok(End::Over(result))
        }
        (Ok(DriverEnd::HandedOver), keeper) => {
            if let Some(keeper) = keeper {
                resign(keeper).await;
            }
            transport.shutdown("another driver goes on with the job", GOODBYE).await;
            return Ok(End::HandedOver);
        }
        (Ok(DriverEnd::Abandoned(reason)), Some(_keeper)) => {
            // What is on its way to nodes is of a driver that may not act.
            transport.shutdown("the driver may not act any more", Duration::ZERO).await;
            return Ok(End::Deposed(reason));
        }
        (Ok(DriverEnd::Abandoned(reason)), None) => {
            Err(Failure::new("this driver acts no more; the job goes on without it")
                .source(Abandoned(reason))
                .hint("start it again when the cause is mended"))
        }
        (Err(_dropped), _) => {
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
    /// Its right to act, where there are others that might.
    seat: Option<Seat>,
}

fn open(plan: &mut DriverPlan) -> Result<Opened, Failure> {
    if !plan.keeps_journal {
        let secrets = Listening::new_job().failed("the job's secrets cannot be made")?;
        let listening = Listening::start(plan, None, secrets, Term(1))?;
        let state = StateDir::open(&state_dir(plan, listening.address)?)?;
        // Nobody will come for those who are left.
        plan.config.deadlines.orphan_training.get_or_insert(plan.config.deadlines.orphan);
        return Ok(Opened { state, listening, durable: None, seat: None });
    }
    let state = StateDir::open(&state_dir(plan, plan.bind)?)?;
    let durable = Durable::open(state.path(), &plan.config.program)?;
    if durable.tenure.is_takeover() {
        listen_where_it_did(plan, &state);
    }
    let listening = listen(plan, None, &durable)?;
    Ok(Opened { state, listening, durable: Some(durable), seat: None })
}

/// With a store for several drivers: returns when this one may act, or ends.
async fn open_store(
    plan: &mut DriverPlan,
    store: &EtcdAddress,
    since: &mut Option<Moment>,
    signals: &mut Signals,
) -> Result<Result<Opened, End>, Failure> {
    let state = StateDir::open(&state_dir(plan, plan.bind)?)?;
    listen_where_it_did(plan, &state);
    let reserved = ReservedAddress::bind(plan.bind, wall_clock).map_err(not_listening)?;
    let address = reserved.local_address().failed("the driver cannot listen")?;
    // Its next life is to be found there too.
    plan.bind = address;
    let reached_at = reached_at(plan, address);
    let seat = match stand(store, plan, &reached_at, since, signals).await? {
        Stood::Acts(seat) => *seat,
        Stood::Over(result) => return Ok(Err(End::Over(result))),
        Stood::Asked(heard) => return Ok(Err(End::Asked(heard))),
    };
    let way_out = format!(
        "give this job a place of its own (--store etcd://HOST:PORT/NAME); or delete the keys below \
         {store} to give that one up"
    );
    let journal = Box::new(seat.journal());
    let durable = match Durable::begin(journal, &store.to_string(), &plan.config.program, way_out) {
        Ok(durable) => durable,
        Err(Unusable::Now(error)) => return Ok(Err(End::Deposed(error.to_string()))),
        Err(Unusable::Lasting(failure)) => return Err(failure),
    };
    let listening = listen(plan, Some(reserved.into_socket()), &durable)?;
    Ok(Ok(Opened { state, listening, durable: Some(durable), seat: Some(seat) }))
}

/// On any free port, a driver takes the one at which its agents and workers look for it.
fn listen_where_it_did(plan: &mut DriverPlan, state: &StateDir) {
    if let Some(former) = state.address().filter(|_| plan.bind.port() == 0) {
        plan.bind.set_port(former.port());
    }
}

fn listen(
    plan: &mut DriverPlan,
    socket: Option<Rc<UdpSocket>>,
    durable: &Durable,
) -> Result<Listening, Failure> {
    plan.hosts.known = durable.known_hosts();
    let term = durable.tenure.image.term;
    let listening = Listening::start(plan, socket, durable.secrets.clone(), term)?;
    for worker in durable.expected_workers() {
        listening.credentials.borrow_mut().issue_worker(worker);
    }
    Ok(listening)
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
        tracing::info!("{}: asked to end", heard.name);
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
