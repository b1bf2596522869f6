//! The store that an agent serves to its workers: every process learns its address, and asks in the namespace of its
//! own generation. Used by [`agent`](super::agent).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use actix::{Addr, Recipient};
use elastic_agent::core::{SpawnOrder, StopSignal};
use elastic_agent::{ProcessEvent, ProcessPort, SystemProcesses};
use elastic_protocol::environment::{MEETING_ADDRESS, STORE_ADDRESS};
use elastic_protocol::{NodeId, Stamp, WorkerId};
use elastic_runtime::{DroppingWriterTrouble, NodeHandle, OffloadPort, spawn_child};
use elastic_store::relay::actor::{GenerationEnded, Relay};
use elastic_store::relay::core::ConnectionOwner;
use elastic_store::relay::listener::{ClientAdmission, listen};

use super::store_access::{Owner, Owners};

/// A process port that tells processes the store's address.
pub(crate) struct StoreService {
    processes: SystemProcesses,
    relay: Addr<Relay>,
    address: SocketAddr,
    generations: Generations,
    admission_lane: OffloadPort,
}

/// The generation of each process that belongs to one.
type Generations = Rc<RefCell<BTreeMap<WorkerId, Stamp>>>;

impl StoreService {
    /// Serves the store of `driver` on a port of the loopback.
    ///
    /// # Errors
    /// If the system refuses an event for it.
    pub(crate) fn start(
        processes: SystemProcesses,
        node: &NodeHandle,
        driver: Option<NodeId>,
        port: TcpListener,
    ) -> io::Result<Self> {
        let relay = Relay::new(node.clone(), driver);
        let on_exit = |exit| tracing::warn!("a fault in the agent: the relay of the store {exit}");
        let relay = spawn_child(|_| relay, on_exit);
        let generations = Generations::default();
        let owners = Owners::new(processes.leaders());
        let admission_lane = owners.lane().clone();
        let admission = admission(owners, Rc::clone(&generations));
        let address = listen(port, relay.clone(), admission)?;
        tracing::debug!(%address, "serves the store");
        Ok(Self { processes, relay, address, generations, admission_lane })
    }

    /// The lane that starts processes.
    pub(crate) fn lane(&self) -> OffloadPort {
        self.processes.lane()
    }

    /// The lanes that look at processes' activity.
    pub(crate) fn inspection_lanes(&self) -> [OffloadPort; 2] {
        self.processes.inspection_lanes()
    }

    /// The lane that starts health checks.
    pub(crate) fn health_lane(&self) -> OffloadPort {
        self.processes.health_lane()
    }

    /// The lane that finds the owners of connections.
    pub(crate) fn admission_lane(&self) -> OffloadPort {
        self.admission_lane.clone()
    }

    /// See [`SystemProcesses::output_files`].
    pub(crate) fn output_files(&self) -> Box<dyn Fn() -> Option<DroppingWriterTrouble>> {
        Box::new(self.processes.output_files())
    }
}

fn admission(owners: Owners, generations: Generations) -> ClientAdmission {
    Rc::new(move |ends| {
        let (owners, generations) = (owners.clone(), Rc::clone(&generations));
        Box::pin(async move {
            let owner = owners.find(ends).await?;
            owner_of_one_generation(owner, &generations.borrow())
        })
    })
}

/// The first of the workers that may have a connection: any of them asks in the name of the same generation, and all of a
/// generation end together. Workers of two generations are not told apart by guessing.
fn owner_of_one_generation(
    Owner { candidates, unread }: Owner,
    generations: &BTreeMap<WorkerId, Stamp>,
) -> Result<ConnectionOwner, String> {
    let stamp_of = |worker: &WorkerId| generations.get(worker).copied().unwrap_or_default();
    let mut stamps = candidates.iter().map(stamp_of);
    let stamp = stamps.next().unwrap_or_default();
    let worker = candidates.first().cloned();
    match worker.filter(|_| stamps.all(|other| other == stamp)) {
        Some(worker) => Ok(ConnectionOwner { worker, stamp }),
        None => {
            Err(format!("workers of two generations may have it: {}", unread.unwrap_or_default()))
        }
    }
}

/// Adds the variables that torchrun sets for its workers unless the user has.
fn add_defaults(environment: &mut Vec<(String, String)>) {
    let has_neighbours =
        environment.iter().any(|(name, value)| name == "LOCAL_WORLD_SIZE" && value != "1");
    let of_torch = [("TORCH_NCCL_ASYNC_ERROR_HANDLING", true), ("OMP_NUM_THREADS", has_neighbours)];
    for (name, is_set) in of_torch {
        if is_set && std::env::var_os(name).is_none() {
            environment.push((name.to_owned(), "1".to_owned()));
        }
    }
}

/// torchrun's switch for a `MASTER_PORT` that rank 0 itself opens.
const NO_AGENT_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// The addresses of the store, and of the meeting point of stock torch.
///
/// If all ranks are on this machine, `MASTER_ADDR:MASTER_PORT` is the store itself. Across machines it is the address
/// from the driver: rank 0's host with a free port, for rank 0's own listener, such as torch's own store. Our store
/// would have to admit clients of other machines, which show no credential.
fn where_to_meet(store: SocketAddr, environment: &[(String, String)]) -> Vec<(String, String)> {
    let given = |name: &str| environment.iter().rev().find(|(it, _)| it == name);
    let master = given("MASTER_ADDR").map(|(_, master)| master.as_str());
    let is_here = master.is_none_or(|master| {
        master == "localhost" || master.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    });
    let serves_torch = is_here && std::env::var(NO_AGENT_STORE).as_deref() != Ok("1");
    let mut told = vec![
        (STORE_ADDRESS, store.to_string()),
        // Spelled as Python prints it.
        ("TORCHELASTIC_USE_AGENT_STORE", if serves_torch { "True" } else { "False" }.to_owned()),
    ];
    if let (Some(master), Some((_, port))) = (master, given("MASTER_PORT")) {
        let host = if master.contains(':') { format!("[{master}]") } else { master.to_owned() };
        told.push((MEETING_ADDRESS, format!("{host}:{port}")));
    }
    if serves_torch {
        told.push(("MASTER_ADDR", store.ip().to_string()));
        told.push(("MASTER_PORT", store.port().to_string()));
    }
    told.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl ProcessPort for StoreService {
    fn spawn(&mut self, mut order: SpawnOrder, events: Recipient<ProcessEvent>) {
        if let Some(place) = &order.place {
            let local_rank = place.local_rank.to_string();
            for argument in &mut order.program.argv {
                // Replaced as torchrun does.
                *argument = argument.replace("${local_rank}", &local_rank);
            }
        }
        // The last entry for a variable wins.
        order.environment.extend(where_to_meet(self.address, &order.environment));
        if order.place.is_some() {
            add_defaults(&mut order.environment);
        }
        if let Some(place) = &order.place {
            let mut generations = self.generations.borrow_mut();
            let alive = self.processes.leaders().all();
            // Processes of this generation may be waiting for their start in the lane of processes.
            generations.retain(|worker, of| {
                *of == place.stamp || alive.iter().any(|(other, _)| other == worker)
            });
            generations.insert(order.worker.clone(), place.stamp);
        }
        self.processes.spawn(order, events);
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        self.processes.signal(worker, signal);
        if self.generations.borrow().contains_key(worker) {
            self.relay.do_send(GenerationEnded(worker.clone()));
        }
    }

    fn inspect(&mut self, worker: &WorkerId, with_stack: bool, events: Recipient<ProcessEvent>) {
        self.processes.inspect(worker, with_stack, events);
    }

    fn check_health(
        &mut self,
        command: String,
        timeout: Duration,
        events: Recipient<ProcessEvent>,
    ) {
        self.processes.check_health(command, timeout, events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(master: &str) -> Vec<(String, String)> {
        let environment = [("MASTER_ADDR", master), ("MASTER_PORT", "5")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        where_to_meet(([127, 0, 0, 1], 4).into(), &environment)
    }

    fn of<'a>(told: &'a [(String, String)], name: &str) -> Option<&'a str> {
        told.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn workers_of_one_generation_may_stand_for_each_other_and_of_two_may_not() {
        let host = elastic_protocol::HostName::new("a").expect("a literal");
        let worker = |slot| WorkerId {
            host: host.clone(),
            slot,
            incarnation: elastic_protocol::Incarnation(1),
        };
        let unread = Some("/proc/7/fd cannot be read".to_owned());
        let owner = Owner { candidates: vec![worker(0), worker(1)], unread };
        let (one, other) = (
            Stamp::default(),
            Stamp { generation: elastic_protocol::GenerationId(7), ..Stamp::default() },
        );
        let same = BTreeMap::from([(worker(0), other), (worker(1), other)]);
        let found = owner_of_one_generation(owner.clone(), &same).expect("one generation");
        assert_eq!((found.worker, found.stamp), (worker(0), other));
        let mixed = BTreeMap::from([(worker(0), one), (worker(1), other)]);
        let refused = owner_of_one_generation(owner, &mixed).expect_err("two generations");
        assert!(refused.contains("/proc/7/fd cannot be read"), "{refused}");
    }

    #[test]
    fn on_one_machine_torch_meets_at_our_store_and_across_machines_at_rank_0_s() {
        let here = told("127.0.0.1");
        assert_eq!(
            (of(&here, "MASTER_ADDR"), of(&here, "MASTER_PORT")),
            (Some("127.0.0.1"), Some("4"))
        );
        assert_eq!(of(&here, "TORCHELASTIC_USE_AGENT_STORE"), Some("True"));
        let across = told("192.0.2.7");
        assert_eq!((of(&across, "MASTER_ADDR"), of(&across, "MASTER_PORT")), (None, None));
        assert_eq!(of(&across, "TORCHELASTIC_USE_AGENT_STORE"), Some("False"));
        let addresses = ["127.0.0.1:5", "192.0.2.7:5", "[2001:db8::7]:5"];
        for (told, meeting) in [here, across, told("2001:db8::7")].iter().zip(addresses) {
            assert_eq!(of(told, STORE_ADDRESS), Some("127.0.0.1:4"));
            assert_eq!(of(told, MEETING_ADDRESS), Some(meeting));
        }
    }
}
