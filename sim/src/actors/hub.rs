//! The connection between nodes and world. A node acts through its [`Port`]. The hub wakes the pump when an action
//! causes an event earlier than the pump's wake-up time. Used by `node`, `boot` and the ports.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::Instant;

use super::node::NodeLife;
use crate::cores::World;

/// Shared state of nodes, world and pump; one per run.
#[derive(Debug)]
pub(crate) struct Hub {
    world: OnceCell<Weak<RefCell<World>>>,
    started: Instant,
    /// World time at which the pump wakes.
    armed: Cell<u64>,
    pump: RefCell<Option<Waker>>,
    /// Ended nodes that are not dropped yet, since a node may end during a call of its own.
    dead: RefCell<Vec<Rc<NodeLife>>>,
}

impl Hub {
    /// A hub whose world time begins now.
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            world: OnceCell::new(),
            started: Instant::now(),
            armed: Cell::new(0),
            pump: RefCell::new(None),
            dead: RefCell::new(Vec::new()),
        })
    }

    /// Connects the ports to a world.
    pub(crate) fn connect(&self, world: World) -> Rc<RefCell<World>> {
        let world = Rc::new(RefCell::new(world));
        let _connected = self.world.set(Rc::downgrade(&world)).is_ok();
        world
    }

    /// World time.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn instant(&self, at: u64) -> Instant {
        self.started + Duration::from_nanos(at)
    }

    /// Notes that the pump sleeps until then.
    pub(super) fn arm(&self, at: u64, waker: &Waker) {
        self.armed.set(at);
        let mut pump = self.pump.borrow_mut();
        if pump.as_ref().is_none_or(|pump| !pump.will_wake(waker)) {
            *pump = Some(waker.clone());
        }
    }

    fn enter<R>(&self, call: impl FnOnce(&mut World) -> R) -> Option<R> {
        let world = self.world.get()?.upgrade()?;
        let mut world = world.borrow_mut();
        let (result, next) = world.called(self.now(), call);
        if next < self.armed.get() {
            self.armed.set(next);
            if let Some(pump) = &*self.pump.borrow() {
                pump.wake_by_ref();
            }
        }
        Some(result)
    }

    pub(super) fn died(&self, life: Rc<NodeLife>) {
        self.dead.borrow_mut().push(life);
    }

    /// Drops ended nodes. Must be called only while no node runs and the world is not borrowed.
    pub(super) fn bury(&self) {
        if self.dead.borrow().is_empty() {
            return;
        }
        for life in self.dead.take() {
            let gone: Option<LocalSet> = life.take();
            drop(gone);
        }
    }
}

/// A node's way to the world. It is bound to one life of the node and shut before that life ends.
#[derive(Clone)]
pub(crate) struct Port {
    hub: Rc<Hub>,
    life: Rc<NodeLife>,
}

impl Port {
    pub(super) const fn new(hub: Rc<Hub>, life: Rc<NodeLife>) -> Self {
        Self { hub, life }
    }

    /// Calls the world; `None` if the node has ended.
    pub(super) fn call<R>(&self, call: impl FnOnce(&mut World) -> R) -> Option<R> {
        if self.life.is_muted() { None } else { self.hub.enter(call) }
    }
}
