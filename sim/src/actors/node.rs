//! A simulated node: a `LocalSet` for its actors, polled by a task of the outer one. Started by `boot`.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use elastic_protocol::NodeId;
use elastic_runtime::transport::{TransportEvent, TransportSink};
use elastic_runtime::{Clock, NodeHandle};
use tokio::task::{LocalSet, spawn_local};

use super::hub::{Hub, Port};
use super::transport::{Side, SimTransport};

/// Start of all nodes' wall clocks, in seconds since 1970: 2026-01-01.
const WALL_CLOCK_BEGINS_S: u64 = 1_767_225_600;

/// One life of a node.
#[derive(Debug, Default)]
pub(crate) struct NodeLife {
    is_muted: Cell<bool>,
    is_stopped: Cell<bool>,
    local: RefCell<Option<LocalSet>>,
    waker: RefCell<Option<Waker>>,
}

impl NodeLife {
    pub(super) fn is_muted(&self) -> bool {
        self.is_muted.get()
    }

    /// Takes all contents of the node: its actors, futures and timers.
    pub(super) fn take(&self) -> Option<LocalSet> {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        self.local.take()
    }
}

/// Polls a node until it is gone, except while it is stopped.
struct NodeTask(Rc<NodeLife>);

impl Future for NodeTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let life = &self.0;
        {
            let mut waker = life.waker.borrow_mut();
            if waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        if life.is_stopped.get() || life.is_muted.get() {
            return if life.local.borrow().is_some() { Poll::Pending } else { Poll::Ready(()) };
        }
        match life.local.borrow_mut().as_mut() {
            Some(local) => Pin::new(local).poll(cx),
            None => Poll::Ready(()),
        }
    }
}

/// Identity, seed and clock of a new node.
#[derive(Clone, Debug)]
pub(crate) struct NodeBirth {
    pub(crate) id: NodeId,
    /// Seed of all the node's randomness.
    pub(crate) seed: u64,
    pub(crate) side: Side,
    /// Millionths by which the node's clock is too fast.
    pub(crate) ppm: i64,
}

/// The world's handle of a node. Dropping it kills the node's process: the node is muted, and buried when the pump
/// runs next.
pub(crate) struct SimulatedNode {
    sink: TransportSink,
    life: Rc<NodeLife>,
    hub: Rc<Hub>,
}

impl SimulatedNode {
    /// Starts a node; `fill` starts its actors inside it.
    pub(super) fn start<T>(
        hub: &Rc<Hub>,
        birth: NodeBirth,
        fill: impl FnOnce(&NodeHandle, &Port) -> T,
    ) -> (Self, T) {
        let NodeBirth { id, seed, side, ppm } = birth;
        let local = LocalSet::new();
        let life = Rc::new(NodeLife::default());
        let port = Port::new(Rc::clone(hub), Rc::clone(&life));
        let started = tokio::time::Instant::now();
        let begins = SystemTime::UNIX_EPOCH
            + Duration::from_secs(WALL_CLOCK_BEGINS_S)
            + Duration::from_nanos(hub.now());
        let (sink, filled) = {
            let _entered = local.enter();
            let clock = Clock::start_at_rate(ppm);
            let wall_clock = move || begins + started.elapsed();
            let handle = NodeHandle::with_clocks(id.clone(), seed, clock, wall_clock);
            handle.attach(Rc::new(SimTransport::new(id, side, port.clone())));
            let filled = fill(&handle, &port);
            (handle.sink(), filled)
        };
        // The sink does not keep the node alive. The actors that `fill` started do.
        life.local.replace(Some(local));
        spawn_local(NodeTask(Rc::clone(&life)));
        (Self { sink, life, hub: Rc::clone(hub) }, filled)
    }

    /// Delivers an event of the transport.
    pub(super) fn tell(&self, event: TransportEvent) {
        (self.sink)(event);
    }

    /// Sends SIGSTOP or SIGCONT.
    pub(super) fn set_stopped(&self, is_stopped: bool) {
        self.life.is_stopped.set(is_stopped);
        if !is_stopped && let Some(waker) = &*self.life.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for SimulatedNode {
    fn drop(&mut self) {
        self.life.is_muted.set(true);
        self.hub.died(Rc::clone(&self.life));
    }
}

impl std::fmt::Debug for SimulatedNode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Node")
    }
}
