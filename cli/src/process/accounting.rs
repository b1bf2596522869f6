//! The job's goodput ledger in the driver's process: fed by the observer, asked by `status`. It goes on from the event
//! log of former drivers in the same state directory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskGlance, Driver, DriverEvent};
use elastic_observe::{EventTally, GoodputLedger, LoggedJob, TimeBucket, since_1970, summarize};
use elastic_protocol::Time;
use elastic_protocol::messages::{GoodputStatus, StatusReport};
use elastic_runtime::{NodeHandle, wall_clock};
use tokio::time::sleep;

use super::event_log::{EventMarker, lines_of, open_log_to_go_on};

/// Interval between two lines of the event log that say how much goodput there was. The next driver takes the last of
/// them for the last sign of this one.
const MARK_EVERY: Duration = Duration::from_secs(30);

/// The ledger, and the clock that it counts by. Clones share them.
#[derive(Clone)]
pub(crate) struct Accounting {
    ledger: Rc<RefCell<GoodputLedger>>,
    tally: Rc<RefCell<EventTally>>,
    node: NodeHandle,
    /// The same moment by the wall clock, once, and by the node's clock, which does not jump.
    origin: (Time, Time),
}

impl Accounting {
    /// The ledger of a job, with the events that its log has already.
    pub(crate) fn begin(node: &NodeHandle, job: &str, log: &Path) -> Self {
        // Both clocks at one moment: reading the log takes time, which counts as well.
        let (now, here) = (since_1970(wall_clock()), node.now());
        let ledger = match job_in(log).filter(|record| record.job == job) {
            Some(mut record) => {
                record.ledger.handle_driver_gone(record.last_at);
                record.ledger.handle_driver_back(now);
                record.ledger
            }
            None => GoodputLedger::new(now),
        };
        let ledger = Rc::new(RefCell::new(ledger));
        let tally = Rc::default();
        Self { ledger, tally, node: node.clone(), origin: (now, here) }
    }

    /// Takes an event.
    pub(crate) fn handle_event(&self, event: &DriverEvent) {
        let now = self.now();
        self.ledger.borrow_mut().handle_event(now, event);
        self.tally.borrow_mut().handle_event(event);
    }

    /// The goodput as `status` shows it.
    pub(crate) fn status(&self) -> GoodputStatus {
        self.ledger.borrow().status(self.now())
    }

    /// The last line about the job, with its last status.
    pub(crate) fn summary(&self, last: &StatusReport) -> String {
        let ledger = self.ledger.borrow();
        summarize(self.now() - ledger.began(), last, &ledger)
    }

    /// Counts of this driver's events, and the slots in each bucket.
    pub(crate) fn tally(&self) -> (EventTally, BTreeMap<TimeBucket, u64>) {
        let ledger = self.ledger.borrow();
        let slots = TimeBucket::ALL.map(|bucket| (bucket, ledger.slots_in(bucket)));
        let slots = slots.into_iter().filter(|(_, slots)| *slots > 0).collect();
        (self.tally.borrow().clone(), slots)
    }

    /// Writes to the event log now and then, until the driver is gone.
    pub(crate) async fn mark(self, marker: EventMarker, driver: Addr<Driver>) {
        sleep(MARK_EVERY).await;
        while let Ok(glance) = driver.send(AskGlance).await {
            marker.goodput(wall_clock(), &self.status(), &glance);
            sleep(MARK_EVERY).await;
        }
    }

    fn now(&self) -> Time {
        let (wall, origin) = self.origin;
        wall + (self.node.now() - origin)
    }
}

/// The last job of an event log; none if there is no log, or it cannot be read.
fn job_in(log: &Path) -> Option<LoggedJob> {
    LoggedJob::of_lines(lines_of(open_log_to_go_on(log).ok()?))
}
