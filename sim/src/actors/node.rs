//! A simulated node: a `LocalSet` for its actors, polled by a task of the outer one.

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

/// Where the wall clocks of all nodes begin: 2026-01-01.
const WALL_CLOCK_BEGINS_S: u64 = 1_767_225_600;

/// One life of a node.
#[derive(Debug, Default)]
pub(crate) struct Life {
    is_muted: Cell<bool>,
    is_stopped: Cell<bool>,
    local: RefCell<Option<LocalSet>>,
    waker: RefCell<Option<Waker>>,
}

impl Life {
    pub(super) fn is_muted(&self) -> bool {
        self.is_muted.get()
    }

    /// Takes all that the node has: its actors, futures and timers.
    pub(super) fn take(&self) -> Option<LocalSet> {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        self.local.take()
    }
}

/// Polls a node until it is gone; leaves it alone while it is stopped.
struct NodeTask(Rc<Life>);

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

/// What a node is started as.
#[derive(Clone, Debug)]
pub(crate) struct Birth {
    pub(crate) id: NodeId,
    /// All its randomness comes from it.
    pub(crate) seed: u64,
    pub(crate) side: Side,
    /// How many millionths its clock is too fast.
    pub(crate) ppm: i64,
}

/// The world's hold on a node. Dropped, the node's process is dead: it says nothing more, and is buried when
/// the pump runs next.
pub(crate) struct Node {
    sink: TransportSink,
    life: Rc<Life>,
    hub: Rc<Hub>,
}

impl Node {
    /// Starts a node; `fill` starts its actors, in it.
    pub(super) fn start<T>(
        hub: &Rc<Hub>,
        birth: Birth,
        fill: impl FnOnce(&NodeHandle, &Port) -> T,
    ) -> (Self, T) {
        let Birth { id, seed, side, ppm } = birth;
        let local = LocalSet::new();
        let life = Rc::new(Life::default());
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
            handle.attach(Rc::new(SimTransport::new(id, side, port.clone(), handle.sink())));
            let filled = fill(&handle, &port);
            (handle.sink(), filled)
        };
        // The sink does not keep the node; what `fill` started does.
        life.local.replace(Some(local));
        spawn_local(NodeTask(Rc::clone(&life)));
        (Self { sink, life, hub: Rc::clone(hub) }, filled)
    }

    /// The transport tells it.
    pub(super) fn tell(&self, event: TransportEvent) {
        (self.sink)(event);
    }

    /// SIGSTOP and SIGCONT.
    pub(super) fn set_stopped(&self, is_stopped: bool) {
        self.life.is_stopped.set(is_stopped);
        if !is_stopped && let Some(waker) = &*self.life.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.life.is_muted.set(true);
        self.hub.died(Rc::clone(&self.life));
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Node")
    }
}
