//! [`ThreadSeat`]: the data of one process that its training thread and the scheduler share. Made by `nodes`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use elastic_collectives::AbortHandle;
use elastic_worker::state::training::ThreadMessage;

use super::exchange::{GroupBreak, GroupExchange, GroupName, NodeNumber, WaitOutcome};
use super::turnstile::{ThreadHalt, Turnstile};
use super::witness::Witness;

/// Event that the plan causes in a training function's next step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StepFate {
    /// Return an error.
    Fail,
    /// Panic.
    Panic,
    /// Flip a bit of an array on this rank alone.
    Corrupt,
    /// Abort the generation by an operation that it has launched.
    GiveUp,
    /// The next copy of memory beside the state fails.
    LoseCopy,
}

/// Orders of the plan for a process.
#[derive(Debug, Default)]
pub(super) struct SeatOrders {
    pub(super) fate: Option<StepFate>,
    /// The address at which it listens from its next look on.
    pub(super) new_address: Option<SocketAddr>,
    pub(super) warnings: Vec<String>,
    pub(super) copy_fails: bool,
}

/// One process, as both sides see it.
pub(super) struct ThreadSeat {
    pub(super) number: NodeNumber,
    /// None in a world of one without a driver, which has no turns.
    pub(super) turnstile: Option<Turnstile>,
    pub(super) abort: AbortHandle,
    /// Messages of the thread that its State has not heard.
    pub(super) told: Mutex<VecDeque<ThreadMessage>>,
    orders: Mutex<SeatOrders>,
    exchange: Arc<Mutex<GroupExchange>>,
    witness: Arc<Mutex<Witness>>,
}

pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadSeat {
    pub(super) fn new(
        number: NodeNumber,
        turnstile: Option<Turnstile>,
        exchange: &Arc<Mutex<GroupExchange>>,
        witness: &Arc<Mutex<Witness>>,
    ) -> Self {
        Self {
            number,
            turnstile,
            abort: AbortHandle::new()
                .expect("the system has a descriptor for each simulated worker"),
            told: Mutex::default(),
            orders: Mutex::default(),
            exchange: Arc::clone(exchange),
            witness: Arc::clone(witness),
        }
    }

    pub(super) fn exchange(&self) -> MutexGuard<'_, GroupExchange> {
        lock(&self.exchange)
    }

    pub(super) fn witness(&self) -> MutexGuard<'_, Witness> {
        lock(&self.witness)
    }

    pub(super) fn orders(&self) -> MutexGuard<'_, SeatOrders> {
        lock(&self.orders)
    }

    /// Thread: gives the turn away.
    pub(super) fn halt_at(&self, halt: ThreadHalt) {
        if let Some(turnstile) = &self.turnstile {
            turnstile.halt_at(halt);
        }
    }

    /// Whether the process was killed: nobody hears the messages of its thread while it unwinds.
    pub(super) fn is_killed(&self) -> bool {
        self.turnstile.as_ref().is_some_and(Turnstile::is_killed)
    }

    /// Thread: gives the turn away until its wait in the exchange has a result.
    pub(super) fn wait_for_group(&self) -> WaitOutcome {
        self.halt_at(ThreadHalt::Group);
        let mut exchange = self.exchange();
        let outcome = exchange.outcome(self.number);
        exchange.end_wait(self.number);
        outcome
    }

    /// Thread: tells the witness the process at fault when a wait for a group has failed.
    pub(super) fn tell_blame(&self, outcome: &WaitOutcome, group: &GroupName) {
        let rank = match outcome {
            WaitOutcome::There | WaitOutcome::Waits => return,
            WaitOutcome::Broken(GroupBreak::System) => None,
            WaitOutcome::Lost(rank, _)
            | WaitOutcome::Broken(
                GroupBreak::Connection(rank)
                | GroupBreak::Deadline(rank)
                | GroupBreak::Garbage(rank),
            ) => Some(*rank),
        };
        let blamed = match rank {
            Some(rank) => self.exchange().member(group, rank),
            None => Some(self.number),
        };
        self.witness().blames(self.number, blamed);
    }

    /// Thread: tells its State something.
    pub(super) fn tell(&self, message: ThreadMessage) {
        if !self.is_killed() {
            self.witness().told(self.number, &message);
            lock(&self.told).push_back(message);
        }
    }
}
