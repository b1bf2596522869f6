//! The agents' side of `rendezvous`: real agents as actors of one thread, each with a node, a certificate and a
//! session of its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use actix::Recipient;
use anyhow::Context as _;
use elastic_agent::core::{AgentSettings, SpawnOrder, StopSignal};
use elastic_agent::{AgentActor, ProcessEvent, ProcessPort};
use elastic_protocol::{HostName, NodeName, WorkerId};
use elastic_runtime::{spawn_child, system};
use elastic_transport::{ConnectOptions, join};
use futures_util::future::try_join_all;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::driver::DriverEndpoint;

/// The agents that have a rank.
#[derive(Debug, Default)]
struct Roll {
    ranks: RefCell<BTreeSet<u32>>,
    changed: Notify,
}

/// In place of an agent's processes: notes the rank that one would have.
struct Noted(Rc<Roll>);

impl ProcessPort for Noted {
    fn spawn(&mut self, order: SpawnOrder, events: Recipient<ProcessEvent>) {
        self.0.ranks.borrow_mut().extend(order.place.map(|place| place.rank));
        self.0.changed.notify_one();
        events.do_send(ProcessEvent::Spawned { worker: order.worker, result: Ok(1) });
    }

    fn signal(&mut self, _: &WorkerId, _: StopSignal) {}

    fn inspect(&mut self, _: &WorkerId, _: bool, _: Recipient<ProcessEvent>) {}

    fn check_health(&mut self, _: String, _: Duration, _: Recipient<ProcessEvent>) {}
}

/// Joins with all agents at once, and tells when the last has its rank.
pub(super) fn run(
    count: u32,
    driver: &DriverEndpoint,
    patience: Duration,
    tell: mpsc::Sender<()>,
) -> anyhow::Result<()> {
    system::run(async move {
        let roll = Rc::<Roll>::default();
        let joining = (0..count).map(|number| start(number, driver, patience, Rc::clone(&roll)));
        // Dropped, they would leave.
        let _agents = try_join_all(joining).await?;
        let all = async {
            while roll.ranks.borrow().len() < count as usize {
                roll.changed.notified().await;
            }
        };
        timeout(patience, all).await.context("some agents have no rank")?;
        tell.send(()).context("nobody wants to know")
    })?
}

async fn start(
    number: u32,
    driver: &DriverEndpoint,
    patience: Duration,
    roll: Rc<Roll>,
) -> anyhow::Result<impl Sized> {
    let host = HostName::new(&format!("host{number}"))?;
    let name = NodeName::Agent(host.clone());
    let mut options = ConnectOptions::new(driver.address.to_string(), driver.token.clone(), name);
    options.seed = u64::from(number);
    options.patience = patience;
    let joined = join(options).await?;
    let node = joined.node.clone();
    let settings = AgentSettings::new(host, 1);
    let agent = spawn_child(|_| AgentActor::new(node, settings, Box::new(Noted(roll)), drop), drop);
    Ok((joined, agent))
}
