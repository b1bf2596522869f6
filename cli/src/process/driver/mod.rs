//! `--role driver` and `run`: the process of the one authority of a job. Called by `main` and by `node`.

mod durable;
mod job_end;
mod listening;
mod lost_job;
mod opening;
mod patience;
mod reach;
mod standing;
mod state_keeper;
mod threads;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use elastic_agent::output::check_folder;
use elastic_driver::recording::{DriverStart, RecordedDriver};
use elastic_driver::{Driver, DriverParts, StopJob};
use elastic_host_manager::{
    Discovery, DnsDiscovery, HostFileDiscovery, NoDiscovery, ScriptDiscovery,
};
use elastic_observe::since_1970;
use elastic_protocol::{JobId, JobOutcome, JobResult};
use elastic_runtime::{NodeHandle, Pulse, spawn_child, system, wall_clock};
use elastic_store::actor::StoreActor;
use elastic_transport::JoinToken;
use futures_util::future::select;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::durable::{Durable, OverMark};
use self::job_end::{LastWorkers, end_of, note_end, registered, tell};
use self::listening::{Listening, SharedCredentials};
use self::lost_job::outdated;
use self::opening::{OpenedDriver, open, open_store};
use self::patience::{StartPatience, TRY_EVERY};
use self::reach::{reached_at, tell_how_to_join};
use self::standing::{LOOK_EVERY, LeaderSeat, Standing, finish, resign};
use self::state_keeper::StateKeeper;
use super::accounting::Accounting;
use super::boot_time;
use super::dashboard::{Dashboard, DashboardJob};
use super::event_log::{EventLog, LoggedStart};
use super::launcher::{AgentCommand, LaunchMethod, Launcher};
use super::network::check_interface;
use super::node::Beside;
use super::observer::{DriverEnd, ObservedDashboard, Observer};
use super::progress::show;
use super::random::system_rng;
use super::reach::TrialRelay;
use super::recording::{RECORDING_FOLDER, RecordingLane};
use super::signals::{Heard, Signals, tick};
use super::state_dir::EVENTS_FILE;
use super::traces::TraceLane;
use super::watch::{Lanes, Watch};
use crate::command_line::{
    CommandFailure, DashboardPlan, DiscoveryPlan, DriverPlan, LauncherKind, MORE_THREADS,
    ResultExt, short_id, stderr_lane,
};

/// Timeout for the last messages to agents.
const GOODBYE: Duration = Duration::from_secs(1);

/// Grace period after the job's end for agents that the driver started.
const AGENTS_GO_WITHIN: Duration = Duration::from_secs(2);

/// Runs a job to its end, or until another driver continues it.
///
/// `beside` is the agent of this node, if the driver runs on one of several equal nodes.
pub(crate) fn run_driver(
    mut plan: DriverPlan,
    log: &str,
    beside: Option<Rc<Beside>>,
) -> Result<(), CommandFailure> {
    // Its own agent would refuse the interface, and would be started again and again.
    if let Some(interface) =
        plan.interface.as_deref().filter(|_| plan.launcher == LauncherKind::Local)
    {
        check_interface(interface)?;
    }
    let mut standing = Standing::default();
    let pulse = Pulse::new(boot_time());
    let signals = signals(&plan, &pulse)?;
    loop {
        let life = async {
            tokio::task::spawn_local(tick(pulse.clone()));
            drive(&mut plan, log, beside.as_ref(), &mut standing, &signals).await
        };
        let end = system::run(life).failed("the system refuses what the driver needs");
        let end = match end.and_then(|end| end) {
            Err(failure) if signals.first().is_none() && standing.outlasts(&failure) => {
                // Nothing runs here meanwhile.
                thread::park_timeout(LOOK_EVERY);
                let Some(heard) = signals.received() else { continue };
                DriverLifeEnd::Asked(heard)
            }
            end => end?,
        };
        match end {
            // Such a signal ends a job, and this driver had no job to end any more.
            DriverLifeEnd::HandedOver | DriverLifeEnd::Followed
                if let Some(heard) = signals.beyond_handover() =>
            {
                return Err(stopped_without_the_job(heard));
            }
            DriverLifeEnd::Over(JobResult { outcome: JobOutcome::Succeeded, .. })
            | DriverLifeEnd::Followed => {
                return Ok(());
            }
            // The standby may be gone. This process stays until another driver leads, behind all that stand by.
            DriverLifeEnd::HandedOver => {
                standing.since = None;
                standing.leaves = signals.first();
            }
            DriverLifeEnd::Over(result) => return Err(tell(result)),
            DriverLifeEnd::Asked(heard) if standing.leaves.is_some() => {
                return Err(stopped_without_the_job(heard));
            }
            DriverLifeEnd::Asked(heard) => {
                let message = format!("stopped by signal {} while standing by", heard.number);
                return Err(CommandFailure::new(message).with_code(heard.code()));
            }
            // The request to end was about this process, too.
            DriverLifeEnd::Deposed(reason) if let Some(heard) = signals.first() => {
                return Err(stopped_without_the_job(heard).source(Abandoned(reason)));
            }
            DriverLifeEnd::Lost(failure) => return Err(outlived(failure, beside, &signals)),
            // Everything of the old term is gone with its system of actors: the driver is as if just started.
            DriverLifeEnd::Deposed(reason) => {
                standing.is_deposed = true;
                tracing::warn!(reason, "this driver goes back to standing by");
            }
        }
    }
}

/// The failure of a driver that was asked to end when it led the job no more.
fn stopped_without_the_job(heard: Heard) -> CommandFailure {
    CommandFailure::new(format!("stopped by signal {}", heard.number))
        .with_code(heard.code())
        .hint("another driver may go on with the job: `elastic-node stop` asks that one")
}

/// Starts to receive signals, once there is a thread for that if the driver goes on with a job. Until then signals end the
/// process by themselves, and nothing runs here.
fn signals(plan: &DriverPlan, pulse: &Pulse) -> Result<Signals, CommandFailure> {
    let mut patience = StartPatience::new(!plan.begins_job());
    loop {
        let failure = match Signals::start(pulse.clone()).failed("signals cannot be heard") {
            Ok(signals) => return Ok(signals),
            Err(failure) if failure.system_code() == Some(libc::EAGAIN) => {
                failure.hint(MORE_THREADS)
            }
            Err(failure) => return Err(failure),
        };
        patience.bear(failure)?;
        thread::park_timeout(TRY_EVERY);
    }
}

/// Waits until the agent of this node has ended, or a signal asks for it: the agent ends with this process, and its
/// workers train on without a driver. Returns the failure, with which the process ends.
fn outlived(
    failure: CommandFailure,
    beside: Option<Rc<Beside>>,
    signals: &Signals,
) -> CommandFailure {
    let Some(beside) = beside else { return failure };
    failure.report();
    tracing::warn!("this node's workers train on without a driver; its process stays with them");
    let waited = async {
        tokio::task::spawn_local(tick(signals.pulse()));
        let (ended, heard) = (pin!(beside.ended()), pin!(signals.next()));
        select(ended, heard).await;
    };
    // If the system refuses the wait, the agent ends now.
    drop(system::run(waited));
    failure.told_elsewhere()
}

/// The way in which a life of a driver ends.
#[derive(Debug)]
enum DriverLifeEnd {
    /// The job is over.
    Over(JobResult),
    /// The driver was asked to go, and has left the job to its standbys.
    HandedOver,
    /// The driver was asked to go, and another one continues the job.
    Followed,
    /// The driver was asked to go before it acted.
    Asked(Heard),
    /// The driver may not act any more, or not yet.
    Deposed(String),
    /// The driver must not lead any more, for this reason; the job goes on without it.
    Lost(CommandFailure),
}

async fn drive(
    plan: &mut DriverPlan,
    log: &str,
    beside: Option<&Rc<Beside>>,
    standing: &mut Standing,
    signals: &Signals,
) -> Result<DriverLifeEnd, CommandFailure> {
    // The driver's own log already reports hosts and workers.
    let log = if log == DEFAULT_LOG { "warn" } else { log };
    let start_beside = |join: &str| beside.map_or(Ok(()), |beside| beside.start(join, log));
    let lanes = Lanes::new();
    let keeps_agent = beside.map(|beside| {
        let keep = Rc::clone(beside).keep(lanes.agents.clone(), log.to_owned());
        tokio::task::spawn_local(keep)
    });
    let opened = match plan.store.clone() {
        None => match open(plan, &lanes, beside.and_then(|beside| beside.take_socket()), signals)
            .await?
        {
            Ok(opened) => opened,
            Err(heard) => return Ok(DriverLifeEnd::Asked(heard)),
        },
        Some(store) => {
            match open_store(plan, &store.address, standing, signals, &lanes, &start_beside).await?
            {
                Ok(opened) => opened,
                Err(end) => return Ok(end),
            }
        }
    };
    let OpenedDriver { state, listening, durable, seat } = opened;
    let Listening { job, term, node, transport, credentials, address } = &listening;
    let reached_at = reached_at(plan, *address);
    let events_path = state.path().join(EVENTS_FILE);
    let began = since_1970(wall_clock());
    let accounting = Accounting::begin(node, &job.to_string(), &events_path);
    let (umask, at, name) = (plan.config.output.umask, wall_clock(), job.to_string());
    let absolute = |folder: &String| Some(std::path::absolute(folder).ok()?.display().to_string());
    let output_dir = plan.config.output.directory.as_ref().and_then(absolute);
    let output_dir = output_dir.as_deref();
    // Only a job's first driver is refused here: a later one can do without a folder of its own.
    let goes_on = term.0 > 1;
    if let Some(folder) = output_dir.filter(|_| !goes_on) {
        let free = check_folder(Path::new(folder), &name);
        free.map_err(|taken| CommandFailure::usage(taken.to_string()).hint(OTHER_FOLDER))?;
    }
    let start = LoggedStart { job: &name, address: &reached_at, output_dir };
    let events = EventLog::open(events_path.clone(), umask, at, term.0, &start)
        .failed("the event log cannot be written")?;
    let token = credentials.borrow().join_token();
    let token_file = state.publish(&token, *address, goes_on)?;
    tracing::debug!(events = %events_path.display(), "the event log");
    let output_dir = output_dir.map(Into::into);
    let shown = DashboardJob { id: job.to_string(), log: events_path, since: began, output_dir };
    let dashboard = start_dashboard(plan, &token, shown, goes_on)?;
    let observed = dashboard.as_ref().map(|dashboard| ObservedDashboard {
        feed: dashboard.feed.clone(),
        url: page_address(dashboard.address, &reached_at),
    });
    let page = observed.as_ref().map_or_else(String::new, |it| format!(", page {}", it.url));
    tracing::info!("job {} at {address}{page}", short_id(&name));
    let entry = registered(plan, *job, &reached_at, state.path());
    let registry = entry.as_ref().map(|(registry, _)| registry.clone());
    let state = Arc::new(state);
    let journal = durable.as_ref().and_then(|durable| durable.file.clone());
    let mark = durable.as_ref().map_or_else(OverMark::default, |durable| durable.over.clone());
    let state_keeper = StateKeeper { state: Arc::clone(&state), journal, entry };
    let _kept = state_keeper.clone().start(lanes.state.clone());
    tracing::debug!(?plan, "configuration");

    let command = AgentCommand {
        program: match std::env::current_exe() {
            // Without /proc: agents that join by themselves are not started by the driver.
            Err(_) if plan.launcher == LauncherKind::Join => "elastic-node".into(),
            path => path.failed("this program does not find itself")?,
        },
        driver: reached_at.clone(),
        token_file,
        token: token.to_line(),
        outlives_driver: plan.keeps_journal,
        role: plan.role.clone(),
        interface: plan.interface.clone(),
        log: log.to_owned(),
    };
    start_beside(&reached_at)?;
    let launcher = launcher(plan, command, node, &lanes, beside.is_some());
    if let (Some(launcher), Some(durable)) = (&launcher, &durable) {
        launcher.adopt(durable.tenure.image.hosts.iter().map(|host| host.name.clone()));
    }
    let (tell_end, ended) = oneshot::channel();
    let (tell_over, over) = oneshot::channel();
    let recording = if plan.records { open_recording(state.path()) } else { None };
    let recorded = recording.as_ref().map(RecordingLane::words);
    let words = stderr_lane().into_iter().chain([events.words()]).chain(recorded).collect();
    let stalls_after = seat.as_ref().map(LeaderSeat::stalls_after);
    let watch = Watch::new(lanes.clone(), words, stalls_after);
    tokio::task::spawn_local(watch.clone().tell());
    let marker = events.marker();
    let (traces, ledger) = (TraceLane::open(&name), accounting.clone());
    let observer = Observer::new(
        events,
        ledger,
        launcher.clone(),
        watch,
        observed,
        traces,
        (tell_over, tell_end),
    );
    let mut config = plan.config.clone();
    config.driver_address = reached_at;
    if let Some(folder) = &plan.log_dir {
        config.output.directory = Some(log_folder(folder, config.run_id.as_deref(), *job)?);
    }
    let (start, journal) = match durable {
        Some(Durable { tenure, port, .. }) => {
            let tenure = Box::new(tenure.beginning_at(wall_clock()));
            (DriverStart::Journal { config, tenure }, Some(port))
        }
        None => (DriverStart::New { config, job: *job, term: *term }, None),
    };
    let recorder = recording.map(RecordingLane::recorder);
    let core = RecordedDriver::begin(start, system_rng(), node.now(), wall_clock(), recorder);
    let is_durable = journal.is_some();
    let permit = seat.as_ref().map(LeaderSeat::permit);
    let parts = DriverParts {
        core,
        journal,
        host_manager: plan.hosts.clone(),
        discovery: discovery(&plan.discovery, node, &lanes),
        credentials: Rc::new(SharedCredentials(Rc::clone(credentials))),
        observer: Box::new(observer),
        permit: Box::new(move || permit.as_ref().is_none_or(|it| it.is_valid(boot_time()))),
    };
    let (tell_fault, fault) = oneshot::channel();
    // The channel loses its reader once this function has returned.
    let driver = Driver::start(node, parts, move |exit| drop(tell_fault.send(exit)));
    TrialRelay::start(node, driver.clone());
    if let Some(launcher) = &launcher {
        launcher.report_to(driver.clone());
    }
    // Over ssh, agents cannot know that their output goes to a terminal.
    let is_live = std::io::stderr().is_terminal() && plan.launcher != LauncherKind::Ssh;
    tokio::task::spawn_local(show(node.clone(), driver.clone(), is_live));
    tokio::task::spawn_local(accounting.clone().mark(marker, driver.clone()));
    let last_workers = LastWorkers::default();
    tokio::task::spawn_local(last_workers.clone().keep(over, driver.clone()));
    // It ends with this driver's lead.
    if let Some(dashboard) = &dashboard {
        tokio::task::spawn_local(dashboard.publish(driver.clone(), accounting.clone()));
    }
    let keeper = seat.map(|seat| seat.serve(driver.clone()));
    if let Some(heard) = standing.leaves {
        tracing::warn!("no other driver has taken the job over: it ends, as this one was asked to");
        driver.do_send(StopJob { signal: heard.number });
    }
    tokio::task::spawn_local(forward(signals.clone(), driver.clone()));
    let store = StoreActor::new(node.clone());
    let _store =
        spawn_child(|_| store, |exit| tracing::error!("a fault in the driver: the store {exit}"));

    let ended = ended.await;
    if let Some(keeps_agent) = keeps_agent {
        keeps_agent.abort();
    }
    let result = match (ended, keeper) {
        (Ok(DriverEnd::Over(result)), keeper) => {
            if let Some(keeper) = keeper {
                finish(keeper, &result, mark, &lanes.journal).await;
            }
            Ok(DriverLifeEnd::Over(result))
        }
        (Ok(DriverEnd::HandedOver), keeper) => {
            if let Some(keeper) = keeper {
                resign(keeper, &lanes.journal).await;
            }
            transport.shutdown("another driver goes on with the job", GOODBYE).await;
            return Ok(DriverLifeEnd::HandedOver);
        }
        (Ok(DriverEnd::Abandoned { reason, is_outdated: true }), keeper) => {
            // Each driver that leads from that journal finds the same, and none leads twice.
            if let Some(keeper) = keeper {
                resign(keeper, &lanes.journal).await;
            }
            transport.shutdown("the driver has ended", GOODBYE).await;
            return Ok(DriverLifeEnd::Lost(outdated(plan, reason)));
        }
        (Ok(DriverEnd::Abandoned { reason, .. }), Some(_keeper)) => {
            // Messages still on their way come from a driver that may not act: they are dropped.
            transport.shutdown("the driver may not act any more", Duration::ZERO).await;
            return Ok(DriverLifeEnd::Deposed(reason));
        }
        (Ok(DriverEnd::Abandoned { reason, .. }), None) => {
            Err(CommandFailure::new("this driver acts no more; the job goes on without it")
                .source(Abandoned(reason))
                .hint("start it again when the cause is mended"))
        }
        (Err(_dropped), _) => {
            Err(CommandFailure::new("a fault in the driver ended it").hint(match fault.await {
                Ok(exit) => format!("please report this: it {exit}"),
                Err(_) => "please report this".to_owned(),
            }))
        }
    };
    if result.is_err() && is_durable {
        // A restarted driver finds the job as it is.
        transport.shutdown("the driver has ended", GOODBYE).await;
        return result;
    }
    let (job, end) = (*job, end_of(&result, &driver, &last_workers).await);
    if let Some(status) = end.as_ref().and_then(|end| end.status.as_ref()) {
        tracing::info!("{}", accounting.summary(status));
    }
    let withdrawn = lanes.state.run("withdrawal", move || {
        if let (Some(registry), Some(end)) = (registry, end) {
            note_end(&registry, job, end);
        }
        state_keeper.withdraw();
    });
    if timeout(GOODBYE, withdrawn).await.is_err() {
        tracing::warn!("the state directory does not answer: token and journal are left there");
    }
    transport.shutdown("the job is over", GOODBYE).await;
    if let Some(launcher) = launcher {
        launcher.close(AGENTS_GO_WITHIN).await;
    }
    result
}

/// Starts the dashboard, if there is to be one. Its failure costs the page and not the job, unless a person has asked
/// for it.
fn start_dashboard(
    plan: &DriverPlan,
    token: &JoinToken,
    job: DashboardJob,
    goes_on: bool,
) -> Result<Option<Dashboard>, CommandFailure> {
    let Some(DashboardPlan { bind, is_asked_for }) = plan.dashboard else { return Ok(None) };
    match Dashboard::start(bind, token, job, goes_on) {
        Ok(dashboard) => {
            tracing::debug!("metrics: http://{}/metrics", dashboard.address);
            Ok(Some(dashboard))
        }
        Err(failure) if is_asked_for => Err(failure),
        Err(failure) => {
            tracing::warn!(%failure, "there is no dashboard");
            Ok(None)
        }
    }
}

/// Address of the page for a browser: at the driver's own name or address, if the dashboard listens on all of them.
fn page_address(listens_at: SocketAddr, reached_at: &str) -> String {
    match reached_at.rsplit_once(':') {
        Some((host, _)) if listens_at.ip().is_unspecified() => {
            format!("http://{host}:{}/", listens_at.port())
        }
        _ => format!("http://{listens_at}/"),
    }
}

/// The recording of this driver; none if it cannot be opened, which costs the recording and not the job.
fn open_recording(state_dir: &Path) -> Option<RecordingLane> {
    let folder = state_dir.join(RECORDING_FOLDER);
    match RecordingLane::open(state_dir) {
        Ok(lane) => {
            tracing::info!(folder = %folder.display(), "the driver's inputs are recorded");
            Some(lane)
        }
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the driver is not recorded");
            None
        }
    }
}

/// Hint if the folder of `--output-dir` holds the output of another job that lives.
const OTHER_FOLDER: &str =
    "elastic-node list shows the jobs of this machine; the folder is free when that job has ended";

/// The job's folder below `--log-dir`: its name and the beginning of its id, so that no two jobs share a folder.
fn log_folder(folder: &Path, run_id: Option<&str>, job: JobId) -> Result<String, CommandFailure> {
    let name: String = run_id
        .unwrap_or("none")
        .chars()
        .map(|it| if it.is_alphanumeric() { it } else { '_' })
        .collect();
    let id: String = job.to_string().chars().take(8).collect();
    let folder = std::path::absolute(folder.join(format!("{name}_{id}")));
    let folder = folder.failed("--log-dir is no folder")?;
    folder.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        CommandFailure::usage(format!("--log-dir {} is not UTF-8", folder.display()))
    })
}

/// Prepares the start of agents. Either a launcher starts them, or people do, who get the command unless they know it.
fn launcher(
    plan: &DriverPlan,
    command: AgentCommand,
    node: &NodeHandle,
    lanes: &Lanes,
    is_told: bool,
) -> Option<Rc<Launcher>> {
    let way = match plan.launcher {
        LauncherKind::Join if is_told => return None,
        LauncherKind::Join => {
            tell_how_to_join(plan, &command.driver, &command.token_file);
            return None;
        }
        LauncherKind::Local => LaunchMethod::Local,
        LauncherKind::Ssh => LaunchMethod::Ssh { failures_max: plan.config.max_restarts },
    };
    Some(Launcher::start(command, way, node, lanes.agents.clone()))
}

/// Default of `--log`.
const DEFAULT_LOG: &str = "info";

fn discovery(plan: &DiscoveryPlan, node: &NodeHandle, lanes: &Lanes) -> Box<dyn Discovery> {
    match plan {
        DiscoveryPlan::Script(path) => {
            Box::new(ScriptDiscovery::new(path, lanes.discovery.clone()))
        }
        DiscoveryPlan::None => Box::new(NoDiscovery),
        DiscoveryPlan::Dns(target) => {
            Box::new(DnsDiscovery::new(target.clone(), node.random("discovery: DNS", 0)))
        }
        DiscoveryPlan::File(path) => {
            Box::new(HostFileDiscovery::new(path, lanes.discovery.clone()))
        }
    }
}

async fn forward(signals: Signals, driver: actix::Addr<Driver>) {
    loop {
        let heard = signals.next().await;
        tracing::info!("{}: asked to end", heard.name);
        driver.do_send(StopJob { signal: heard.number });
    }
}

/// The reason why a driver stopped acting.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Abandoned(String);
