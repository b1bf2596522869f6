//! A handle on a child: asks it to stop, ends it by force, waits for its end.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use tokio::sync::Notify;

use super::exit::Exit;

/// What is wanted of a child.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Wanted {
    #[default]
    Run,
    Stop,
    Terminate,
}

/// What a child's task and its handles share.
#[derive(Default)]
pub(super) struct Slot {
    wanted: Cell<Wanted>,
    failure: RefCell<Option<String>>,
    waker: RefCell<Option<Waker>>,
    exit: RefCell<Option<Exit>>,
    gone: Notify,
}

impl Slot {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self::default())
    }

    pub(super) fn failed(&self, error: String) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    pub(super) fn take_failure(&self) -> Option<String> {
        self.failure.take()
    }

    /// What is wanted since the last look.
    pub(super) fn take_wanted(&self) -> Wanted {
        self.wanted.take()
    }

    pub(super) fn wake_with(&self, waker: &Waker) {
        let mut current = self.waker.borrow_mut();
        if current.as_ref().is_none_or(|current| !current.will_wake(waker)) {
            *current = Some(waker.clone());
        }
    }

    pub(super) fn ended(&self, exit: Exit) {
        self.exit.replace(Some(exit));
        self.waker.take();
        self.gone.notify_waiters();
    }

    fn want(&self, wanted: Wanted) {
        if self.wanted.get() == Wanted::Terminate || self.exit.borrow().is_some() {
            return;
        }
        self.wanted.set(wanted);
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A handle on a child; clones are of the same child. Dropping it changes nothing for the child.
#[derive(Clone)]
pub struct ChildHandle {
    slot: Rc<Slot>,
}

impl ChildHandle {
    pub(super) const fn new(slot: Rc<Slot>) -> Self {
        Self { slot }
    }

    /// Asks it to stop, as `ctx.stop()` does: its `stopping` hook may say no. What waits in its mailbox is
    /// not handled any more.
    pub fn stop(&self) {
        self.slot.want(Wanted::Stop);
    }

    /// Ends it by force when its task is next polled: no hook and no handler runs any more.
    pub fn terminate(&self) {
        self.slot.want(Wanted::Terminate);
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        self.slot.exit.borrow().clone()
    }

    /// Waits until it has ended.
    pub async fn exited(&self) -> Exit {
        loop {
            if let Some(exit) = self.exit() {
                return exit;
            }
            self.slot.gone.notified().await;
        }
    }
}

impl fmt::Debug for ChildHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.slot.exit.borrow() {
            Some(exit) => write!(formatter, "ChildHandle({exit})"),
            None => formatter.write_str("ChildHandle(alive)"),
        }
    }
}
