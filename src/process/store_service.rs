//! The store as an agent serves it to its workers: every process is told where it is, and asks in the
//! namespace of its own generation. Used by [`agent`](super::agent).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use actix::{Addr, Recipient};
use elastic_protocol::{NodeId, Stamp, WorkerId};
use elastic_runtime::{NodeHandle, spawn_child};
use elastic_store::relay::actor::{GenerationEnded, Relay};
use elastic_store::relay::core::Owner;
use elastic_store::relay::listener::{Admission, listen};
use elastic_worker::agent::core::{SpawnOrder, StopSignal};
use elastic_worker::agent::{Leaders, ProcessEvent, ProcessPort, SystemProcesses};

use super::store_access::owner;

/// Processes that are told where the store is.
pub(crate) struct StoreService {
    processes: SystemProcesses,
    relay: Addr<Relay>,
    address: SocketAddr,
    generations: Generations,
}

/// The generation of each process that belongs to one.
type Generations = Rc<RefCell<BTreeMap<WorkerId, Stamp>>>;

impl StoreService {
    /// Serves the store of `driver` on the loopback.
    ///
    /// # Errors
    /// If the system gives no port.
    pub(crate) fn start(
        processes: SystemProcesses,
        node: &NodeHandle,
        driver: Option<NodeId>,
    ) -> io::Result<Self> {
        let relay = Relay::new(node.clone(), driver);
        let on_exit = |exit| tracing::warn!("a fault in the agent: the relay of the store {exit}");
        let relay = spawn_child(|_| relay, on_exit);
        let generations = Generations::default();
        let admission = admission(processes.leaders(), Rc::clone(&generations));
        let address = listen(relay.clone(), admission)?;
        tracing::debug!(%address, "serves the store");
        Ok(Self { processes, relay, address, generations })
    }
}

fn admission(leaders: Leaders, generations: Generations) -> Admission {
    Rc::new(move |ends| {
        let worker = owner(ends, &leaders.all())?;
        let stamp = generations.borrow().get(&worker).copied().unwrap_or_default();
        Ok(Owner { worker, stamp })
    })
}

/// What torchrun sets for its workers unless the user has.
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

impl ProcessPort for StoreService {
    fn spawn(&mut self, mut order: SpawnOrder, events: Recipient<ProcessEvent>) {
        let of_torch = [
            ("MASTER_ADDR", self.address.ip().to_string()),
            ("MASTER_PORT", self.address.port().to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ];
        if let Some(place) = &order.place {
            let local_rank = place.local_rank.to_string();
            for argument in &mut order.program.argv {
                // As torchrun does.
                *argument = argument.replace("${local_rank}", &local_rank);
            }
        }
        // Later entries win.
        order.environment.extend(of_torch.map(|(name, value)| (name.to_owned(), value)));
        if order.place.is_some() {
            add_defaults(&mut order.environment);
        }
        if let Some(place) = &order.place {
            let mut generations = self.generations.borrow_mut();
            let alive = self.processes.leaders().all();
            generations.retain(|worker, _| alive.iter().any(|(other, _)| other == worker));
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
}
