//! A handle on a child: asks it to stop, ends it by force, waits for its end.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use tokio::sync::Notify;

use super::exit::ChildExit;

/// The request that a child's task has not yet carried out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum ChildRequest {
    #[default]
    Run,
    Stop,
    Terminate,
}

/// State shared by a child's task and its handles.
#[derive(Default)]
pub(super) struct ChildShared {
    wanted: Cell<ChildRequest>,
    failure: RefCell<Option<String>>,
    waker: RefCell<Option<Waker>>,
    exit: RefCell<Option<ChildExit>>,
    gone: Notify,
}

impl ChildShared {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self::default())
    }

    pub(super) fn failed(&self, error: String) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    pub(super) fn take_failure(&self) -> Option<String> {
        self.failure.take()
    }

    /// Takes the request made since the last call.
    pub(super) fn take_wanted(&self) -> ChildRequest {
        self.wanted.take()
    }

    pub(super) fn wake_with(&self, waker: &Waker) {
        let mut current = self.waker.borrow_mut();
        if current.as_ref().is_none_or(|current| !current.will_wake(waker)) {
            *current = Some(waker.clone());
        }
    }

    pub(super) fn ended(&self, exit: ChildExit) {
        self.exit.replace(Some(exit));
        self.waker.take();
        self.gone.notify_waiters();
    }

    fn want(&self, wanted: ChildRequest) {
        if self.wanted.get() == ChildRequest::Terminate || self.exit.borrow().is_some() {
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
    slot: Rc<ChildShared>,
}

impl ChildHandle {
    pub(super) const fn new(slot: Rc<ChildShared>) -> Self {
        Self { slot }
    }

    /// Asks it to stop, as `ctx.stop()` does: its `stopping` hook may refuse. Messages that wait in its mailbox are not
    /// handled any more.
    pub fn stop(&self) {
        self.slot.want(ChildRequest::Stop);
    }

    /// Ends it by force when its task is next polled: no hook and no handler runs any more.
    pub fn terminate(&self) {
        self.slot.want(ChildRequest::Terminate);
    }

    /// Its exit, if it has ended.
    pub fn exit(&self) -> Option<ChildExit> {
        self.slot.exit.borrow().clone()
    }

    /// Waits until it has ended.
    pub async fn exited(&self) -> ChildExit {
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
