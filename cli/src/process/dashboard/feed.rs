//! The queue of events from the actors' thread to the dashboard's. The actors' thread never waits for it: events that
//! do not fit are counted. Fed by `observer`, read by `follow`.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use elastic_driver::DriverEvent;
use elastic_observe::since_1970;
use elastic_protocol::Time;
use tokio::sync::{Notify, mpsc};

/// Most events that wait for the dashboard's thread. A job of 4,000 workers tells of each when it starts.
const EVENTS_QUEUED_MAX: usize = 16_384;

/// The end of the queue at the actors. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct EventFeed {
    events: mpsc::Sender<(Time, DriverEvent)>,
    missed: Arc<AtomicU64>,
    fed: Rc<Notify>,
}

/// The end of the queue at the dashboard's thread.
#[derive(Debug)]
pub(super) struct FedEvents {
    events: mpsc::Receiver<(Time, DriverEvent)>,
    missed: Arc<AtomicU64>,
}

impl EventFeed {
    /// An empty queue.
    pub(super) fn new() -> (Self, FedEvents) {
        let (tell, events) = mpsc::channel(EVENTS_QUEUED_MAX);
        let missed = Arc::new(AtomicU64::new(0));
        let feed = Self { events: tell, missed: Arc::clone(&missed), fed: Rc::default() };
        (feed, FedEvents { events, missed })
    }

    /// Gives an event away.
    pub(crate) fn push(&self, at: SystemTime, event: &DriverEvent) {
        if self.events.try_send((since_1970(at), event.clone())).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
        self.fed.notify_one();
    }

    /// Returns once an event was given away, since the last call or from now on.
    pub(super) async fn fed(&self) {
        self.fed.notified().await;
    }
}

impl FedEvents {
    /// The next event; none if the driver is gone.
    pub(super) async fn next(&mut self) -> Option<(Time, DriverEvent)> {
        self.events.recv().await
    }

    /// The next event, if it is there already.
    pub(super) fn next_now(&mut self) -> Option<(Time, DriverEvent)> {
        self.events.try_recv().ok()
    }

    /// Number of events that did not fit since the last call.
    pub(super) fn missed(&self) -> u64 {
        self.missed.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use elastic_driver::EventKind;
    use elastic_protocol::{GenerationId, Term};

    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let (feed, mut events) = EventFeed::new();
        let kind = EventKind::GenerationRunning { world_size: 1 };
        let event = DriverEvent { term: Term(1), generation: GenerationId(1), kind };
        for _ in 0..EVENTS_QUEUED_MAX + 3 {
            feed.push(SystemTime::UNIX_EPOCH, &event);
        }
        assert_eq!((events.missed(), events.missed()), (3, 0));
        assert_eq!(events.next_now(), Some((Time::ZERO, event)));
    }
}
