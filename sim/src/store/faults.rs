//! The faults of a run in mode `store`, drawn before it and struck between two of its events. Part of `world`.

use elastic_runtime::random::stream;
use rand::Rng;

use super::world::StoreWorld;

/// A fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StoreFault {
    /// The driver dies; another life of it begins.
    DriverDeath,
    /// A host's session with the driver breaks.
    SessionLost,
    /// A generation begins.
    Generation,
    /// A worker's process is stopped: its generation is over.
    WorkerStopped,
    /// A client closes its connection.
    ClientGone,
    /// Nothing happens for so many seconds.
    Silence(u64),
}

/// A fault at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedStoreFault {
    /// The number of the event before which it strikes.
    pub(super) at: u64,
    pub(super) fault: StoreFault,
    /// Random number that chooses the host or client to strike.
    pub(super) pick: u32,
}

/// Longest time of faults, in events.
const FAULTS_MAX_EVENTS: u64 = 1_200;

/// Draws the faults of a seed.
pub(super) fn draw(seed: u64) -> Vec<PlannedStoreFault> {
    let mut random = stream(seed, "store faults", 0);
    let count = if random.random_bool(0.1) { 0 } else { random.random_range(1..20) };
    let until = random.random_range(50..FAULTS_MAX_EVENTS);
    let mut drawn: Vec<PlannedStoreFault> = (0..count)
        .map(|_| {
            let fault = match random.random_range(0..100) {
                0..20 => StoreFault::DriverDeath,
                20..35 => StoreFault::SessionLost,
                35..50 => StoreFault::Generation,
                50..65 => StoreFault::WorkerStopped,
                65..85 => StoreFault::ClientGone,
                _ => StoreFault::Silence(random.random_range(1..60)),
            };
            PlannedStoreFault { at: random.random_range(0..until), fault, pick: random.random() }
        })
        .collect();
    drawn.sort_by_key(|it| it.at);
    drawn
}

impl StoreWorld {
    /// A fault strikes.
    pub(super) fn strike(&mut self, fault: PlannedStoreFault) {
        let host = fault.pick as usize % self.agents.len();
        match fault.fault {
            StoreFault::DriverDeath => self.replace_driver(),
            StoreFault::SessionLost => self.lose_session(host),
            StoreFault::Generation => self.begin_generation(),
            StoreFault::WorkerStopped => {
                let clients = &self.agents[host].clients;
                let at = fault.pick as usize / 7 % clients.len().max(1);
                if let Some(worker) = clients.values().nth(at).map(|it| it.worker.clone()) {
                    self.stop_worker(host, &worker);
                }
            }
            StoreFault::ClientGone => {
                let clients = &self.agents[host].clients;
                let at = fault.pick as usize / 7 % clients.len().max(1);
                if let Some(client) = clients.keys().nth(at).copied() {
                    self.close_client(host, client);
                }
            }
            StoreFault::Silence(seconds) => self.pass(seconds),
        }
    }
}
