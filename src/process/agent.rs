//! `--role worker`: the process of a host's agent.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use elastic_protocol::NodeName;
use elastic_runtime::{Exit, spawn_child, system};
use elastic_transport::{ConnectError, ConnectOptions, JoinedNode, join};
use elastic_worker::agent::core::AgentSettings;
use elastic_worker::agent::{AgentActor, AgentEnd, Drain, StandardStreams, SystemProcesses};
use futures_util::future::{Either, select};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::driver_address::DriverAddress;
use super::leash::obey;
use super::random::system_seed;
use super::signals::{Heard, Signals};
use super::store_service::StoreService;
use crate::cli::{Failure, ResultExt, WorkerPlan};

/// How long a driver is looked for that does not answer, or has not stored its token yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a token that is not there yet is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the last words to the driver, and the last lines of workers' output, may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Runs the agent until its job is over.
pub(crate) fn run_agent(plan: WorkerPlan) -> Result<(), Failure> {
    if plan.is_spare {
        tracing::info!(host = %plan.host, "this node's first task is its agent, with a slot for this one");
        return Ok(());
    }
    let is_launched = plan.is_launched;
    let end = system::run(serve(plan)).failed("the system refuses what the agent needs")??;
    match end.code {
        0 => Ok(()),
        code => {
            let failure = Failure::new(end.reason).with_code(code);
            Err(if is_launched { failure.told_elsewhere() } else { failure })
        }
    }
}

async fn serve(plan: WorkerPlan) -> Result<AgentEnd, Failure> {
    let mut signals = Signals::new().failed("signals cannot be heard")?;
    tracing::debug!(?plan, "configuration");
    let joined = {
        let heard = std::pin::pin!(signals.next());
        let joining = std::pin::pin!(find_driver(&plan));
        match select(heard, joining).await {
            Either::Left((heard, _)) => return Ok(ended_early(heard)),
            Either::Right((joined, _)) => joined?,
        }
    };
    let streams = Arc::new(StandardStreams::new().failed("the output cannot be shown")?);
    let processes = SystemProcesses::new(streams.clone());
    let processes = StoreService::start(processes, &joined.node, None)
        .failed("the store for scripts of torch cannot be served on the loopback")?;
    let processes = Box::new(DriverAddress::new(processes, &plan.driver));
    let settings = AgentSettings { role: plan.role, ..AgentSettings::new(plan.host, plan.slots) };
    let (tell_end, end) = oneshot::channel();
    let node = joined.node.clone();
    let (tell_fault, fault) = oneshot::channel();
    // Nobody waits for either once this function has returned.
    let on_end = move |end| drop(tell_end.send(end));
    let agent = spawn_child(
        |_| AgentActor::new(node, settings, processes, on_end),
        move |exit| drop(tell_fault.send(exit)),
    );
    tokio::task::spawn_local(forward(signals, agent.clone()));
    if let Some(leash) = plan.leash {
        tokio::task::spawn_local(obey(leash, agent));
    }
    let end = match end.await {
        Ok(end) => end,
        Err(_closed) => AgentEnd { code: 1, reason: fault_of(fault.await) },
    };
    joined.transport.shutdown(&end.reason, GOODBYE).await;
    if !streams.flush(GOODBYE) {
        tracing::warn!("the last lines of workers' output were not read in time");
    }
    Ok(end)
}

/// Joins, as soon as there is a token and a driver.
async fn find_driver(plan: &WorkerPlan) -> Result<JoinedNode, Failure> {
    let until = Instant::now() + PATIENCE;
    if plan.token.may_appear() {
        tracing::info!(driver = plan.driver, "no token yet: waiting for the driver to start here");
        while plan.token.may_appear() && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    loop {
        let token = plan.token.read()?;
        let authority = token.authority;
        let name = NodeName::Agent(plan.host.clone());
        let mut options = ConnectOptions::new(&plan.driver, token, name);
        options.seed = system_seed();
        options.patience = until.saturating_duration_since(Instant::now());
        match join(options).await {
            Ok(joined) => return Ok(joined),
            // An earlier driver's token was read just before this one's was stored.
            Err(ConnectError::WrongAuthority { .. })
                if plan.token.read().is_ok_and(|token| token.authority != authority) => {}
            Err(error) => return Err(refused(plan, error)),
        }
    }
}

fn refused(plan: &WorkerPlan, error: ConnectError) -> Failure {
    let hint = match &error {
        ConnectError::Unreachable { .. } => {
            "is the driver running, and is this its address? It listens on 127.0.0.1 only, unless it was \
             given --bind"
        }
        ConnectError::WrongAuthority { .. } | ConnectError::WrongSecret(_) => {
            "copy the token file of the driver that runs there now; each job has its own"
        }
        ConnectError::Version { .. } => "install the same release on both machines",
        _ => "the driver's log says more",
    };
    Failure::new(format!("host {} could not join the driver at {}", plan.host, plan.driver))
        .source(error)
        .hint(hint)
}

async fn forward(mut signals: Signals, agent: Addr<AgentActor>) {
    loop {
        let heard = signals.next().await;
        agent.do_send(Drain { reason: heard.name.to_owned(), code: heard.code() });
    }
}

fn ended_early(heard: Heard) -> AgentEnd {
    AgentEnd { code: heard.code(), reason: format!("{} before the driver was reached", heard.name) }
}

fn fault_of(exit: Result<Exit, oneshot::error::RecvError>) -> String {
    match exit {
        Ok(exit) => format!("a fault in the agent: it {exit}"),
        Err(_never_told) => "a fault in the agent: it is gone".to_owned(),
    }
}
