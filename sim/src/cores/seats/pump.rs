//! The world as the pump of mode *actors* drives it. Called by `actors` and its hub.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use elastic_runtime::{ChildExit, PanicRecord};

use super::super::World;
use crate::actors::hub::Hub;
use crate::options::RunOptions;
use crate::report::RunVerdict;
use crate::trace::Recording;

impl World {
    /// A world whose nodes are actors.
    pub(crate) fn with_actors(
        options: &RunOptions,
        recording: Recording,
        hub: &Rc<Hub>,
    ) -> Rc<RefCell<Self>> {
        let mut world = Self::prepare(options, recording, Some(hub));
        world.begin();
        hub.connect(world)
    }

    /// Handles all events that are due. Returns the time of the next event, or `None` if the run is over.
    pub(crate) fn advance(&mut self, now: u64) -> Option<u64> {
        self.run_until(now);
        self.now = self.now.max(now);
        if self.failure.is_some() || self.is_done { None } else { self.agenda.next_at() }
    }

    /// Runs a node's call. Returns its result and the time of the next event.
    pub(crate) fn called<R>(&mut self, now: u64, call: impl FnOnce(&mut Self) -> R) -> (R, u64) {
        self.now = self.now.max(now);
        let result = call(self);
        let next =
            if self.failure.is_some() { 0 } else { self.agenda.next_at().unwrap_or(u64::MAX) };
        (result, next)
    }

    pub(crate) fn node_panicked(&mut self, panic: &PanicRecord) {
        self.fail_safety(format!("a node panicked: {panic}"));
    }

    pub(crate) fn actor_failed(&mut self, who: &str, exit: &ChildExit) {
        self.fail_safety(format!("{who} {exit}"));
    }

    /// Asks the driver which nodes it waits for, if the run failed for liveness.
    pub(crate) fn status_question(
        &self,
        within: Duration,
    ) -> Option<impl Future<Output = String> + use<>> {
        let is_asked =
            self.failure.as_ref().is_some_and(|failure| failure.verdict == RunVerdict::Liveness);
        let driver = self.driver.node().filter(|_| is_asked && self.driver.runs());
        driver.map(|driver| driver.status(within))
    }

    pub(crate) fn explain_failure(&mut self, words: String) {
        if let Some(failure) = &mut self.failure {
            failure.reason += &words;
        }
    }

    /// Drops all nodes and reports.
    pub(crate) fn end(&mut self) -> crate::report::RunReport {
        self.driver.seat = None;
        self.former.clear();
        for host in &mut self.hosts {
            host.agent = None;
        }
        for process in &mut self.processes {
            process.state.end();
        }
        self.report()
    }
}
