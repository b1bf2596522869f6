//! `--role worker`: the process of a host's agent. Called by `main`.

use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use elastic_agent::core::AgentSettings;
use elastic_agent::output::ShownRate;
use elastic_agent::{AgentActor, AgentExit, Drain, StandardStreams, SystemProcesses};
use elastic_protocol::NodeName;
use elastic_runtime::{ChildExit, Pulse, spawn_child, system};
use elastic_store::relay::listener::free_port;
use elastic_transport::{
    ConnectError, ConnectOptions, FoundDrivers, JoinedNode, PassingWant, join,
};
use futures_util::future::{Either, select};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::boot_time;
use super::driver_address::DriverAddress;
use super::driver_reach::advice;
use super::host_watch::{AgentLanes, HostWatch};
use super::leash::LeashLines;
use super::network::check_interface;
use super::random::system_seed;
use super::reach::HostTrials;
use super::signals::{Heard, Signals, tick};
use super::store_service::StoreService;
use super::watch::tell;
use crate::command_line::{CommandFailure, ResultExt, WorkerPlan};

/// Interval between two looks for a token that is missing yet.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time without a driver after which a warning names the address that does not answer.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// Interval between two such warnings.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Timeout for the last messages to the driver, and for the last lines of workers' output.
const GOODBYE: Duration = Duration::from_secs(1);

/// Runs the agent until its job is over.
pub(crate) fn run_agent(plan: WorkerPlan) -> Result<(), CommandFailure> {
    if plan.is_spare {
        tracing::info!(host = %plan.host, "this node's first task is its agent, with a slot for this one");
        return Ok(());
    }
    if let Some(interface) = &plan.interface {
        check_interface(interface)?;
    }
    let is_launched = plan.is_launched;
    let end = system::run(serve(plan)).failed("the system refuses what the agent needs")??;
    match end.code {
        0 => Ok(()),
        code => {
            let failure = CommandFailure::new(end.reason).with_code(code);
            Err(if is_launched { failure.told_elsewhere() } else { failure })
        }
    }
}

async fn serve(plan: WorkerPlan) -> Result<AgentExit, CommandFailure> {
    let pulse = Pulse::new(boot_time());
    tokio::task::spawn_local(tick(pulse.clone()));
    let signals = Signals::start(pulse).failed("signals cannot be heard")?;
    tracing::debug!(?plan, "configuration");
    let (found, (tell_agent, agent_told)) = (FoundDrivers::default(), oneshot::channel());
    if let Some(leash) = plan.leash {
        tokio::task::spawn_local(LeashLines::hear(leash).obey(found.clone(), agent_told));
    }
    let (port, joined) = {
        let heard = std::pin::pin!(signals.next());
        let joining = std::pin::pin!(async {
            let port = store_port()
                .await
                .failed("no port of the loopback is free for the store of scripts of torch")?;
            Ok::<_, CommandFailure>((port, find_driver(&plan, &found).await?))
        });
        match select(heard, joining).await {
            Either::Left((heard, _)) => return Ok(ended_early(heard)),
            Either::Right((joined, _)) => joined?,
        }
    };
    let streams = StandardStreams::new().failed("the output cannot be shown")?;
    // Over ssh the output goes into the driver's log, with that of all other hosts.
    let streams = if plan.leash.is_some() { streams.limited(ShownRate::REMOTE) } else { streams };
    let streams = Arc::new(streams);
    let processes = SystemProcesses::new(streams.clone());
    processes.adopt_orphans().failed("the ends of processes cannot be heard of")?;
    let processes = StoreService::start(processes, &joined.node, None, port)
        .failed("the store for scripts of torch cannot be served on the loopback")?;
    let mut ports = vec![processes.lane(), processes.admission_lane()];
    ports.extend(processes.inspection_lanes());
    ports.push(processes.health_lane());
    tokio::task::spawn_local(tell(ports.clone()));
    let lanes = AgentLanes { ports, streams: streams.clone(), files: processes.output_files() };
    let processes = DriverAddress::new(
        processes,
        &plan.driver,
        joined.transport.driver_addresses(),
        plan.interface,
    );
    let route = processes.route().clone();
    HostTrials::start(&joined.node, plan.host.clone(), move || route.data_ip(None));
    let meeting = processes.meeting().address();
    let watch = HostWatch {
        lanes,
        route: processes.route().clone(),
        meeting: Rc::clone(processes.meeting()),
    };
    let settings = AgentSettings::new(plan.host, plan.slots);
    let (role, run_id, nodes) = (plan.role, plan.run_id, plan.nodes);
    let settings = AgentSettings { role, meeting, run_id, nodes, ..settings };
    let processes = Box::new(processes);
    let (tell_end, end) = oneshot::channel();
    let node = joined.node.clone();
    let (tell_fault, fault) = oneshot::channel();
    // Both channels lose their reader once this function has returned.
    let on_end = move |end| drop(tell_end.send(end));
    let agent = spawn_child(
        |_| AgentActor::new(node, settings, processes, on_end),
        move |exit| drop(tell_fault.send(exit)),
    );
    tokio::task::spawn_local(forward(signals, agent.clone()));
    tokio::task::spawn_local(watch.tell(agent.clone()));
    // Without a leash nothing waits for the agent.
    drop(tell_agent.send(agent));
    let end = match end.await {
        Ok(end) => end,
        Err(_closed) => AgentExit { code: 1, reason: fault_of(fault.await) },
    };
    joined.transport.shutdown(&end.reason, GOODBYE).await;
    if !streams.flush(GOODBYE) {
        tracing::warn!("the last lines of workers' output were not read in time");
    }
    Ok(end)
}

/// A port for the store of this host's workers, which is waited for while none is free.
async fn store_port() -> io::Result<TcpListener> {
    let mut want = PassingWant::new();
    loop {
        let error = match free_port() {
            Ok(port) => return Ok(port),
            Err(error) => error,
        };
        let is_first = !want.has_begun();
        let Some(pause) = want.handle_failure(&error) else { return Err(error) };
        if is_first {
            let within = PassingWant::WITHIN;
            tracing::warn!(reason = %error, ?within, "no port is free on the loopback: waiting for one");
        }
        tokio::time::sleep(pause).await;
    }
}

/// Joins the job as soon as there is a token and a driver.
async fn find_driver(
    plan: &WorkerPlan,
    found: &FoundDrivers,
) -> Result<JoinedNode, CommandFailure> {
    let until = Instant::now() + plan.patience;
    if let Some(reason) = plan.token.awaits() {
        let (driver, token) = (&plan.driver, &plan.token);
        let within = plan.patience;
        tracing::warn!(driver, %token, reason, ?within, "no token yet: waiting for the driver to store it");
        while plan.token.awaits().is_some() && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    loop {
        let token = plan.token.read()?;
        let authority = token.authority;
        let name = NodeName::Agent(plan.host.clone());
        let mut options = ConnectOptions::new(&plan.driver, token, name);
        options.seed = system_seed();
        options.found = found.clone();
        options.patience = until.saturating_duration_since(Instant::now());
        match told_meanwhile(&plan.driver, until, join(options)).await {
            Ok(joined) => return Ok(joined),
            // The token of an earlier driver was read just before this driver stored its own.
            Err(ConnectError::WrongAuthority { .. })
                if plan.token.read().is_ok_and(|token| token.authority != authority) => {}
            Err(error) => return Err(refused(plan, error)),
        }
    }
}

/// Waits for the driver, and says at which address it does not answer: once soon, and then rarely.
async fn told_meanwhile<T>(driver: &str, until: Instant, joining: impl Future<Output = T>) -> T {
    let mut joining = std::pin::pin!(joining);
    let mut pause = TOLD_AFTER;
    loop {
        if let Ok(joined) = timeout(pause, &mut joining).await {
            return joined;
        }
        pause = TOLD_EVERY;
        let left = until.saturating_duration_since(Instant::now());
        let gives_up_in = Duration::from_secs(left.as_secs());
        tracing::warn!(driver, ?gives_up_in, "no driver answers there yet: waiting for it");
    }
}

fn refused(plan: &WorkerPlan, error: ConnectError) -> CommandFailure {
    let hint = advice(&plan.driver, &error);
    CommandFailure::new(format!("host {} could not join the driver at {}", plan.host, plan.driver))
        .source(error)
        .hint(hint)
}

async fn forward(signals: Signals, agent: Addr<AgentActor>) {
    loop {
        let heard = signals.next().await;
        tracing::info!("{}: asked to end; its workers are stopped", heard.name);
        agent.do_send(Drain { reason: heard.name.to_owned(), code: heard.code() });
    }
}

fn ended_early(heard: Heard) -> AgentExit {
    AgentExit {
        code: heard.code(),
        reason: format!("{} before the driver was reached", heard.name),
    }
}

fn fault_of(exit: Result<ChildExit, oneshot::error::RecvError>) -> String {
    match exit {
        Ok(exit) => format!("a fault in the agent: it {exit}"),
        Err(_never_told) => "a fault in the agent: it is gone".to_owned(),
    }
}
