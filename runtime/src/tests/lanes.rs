//! Tests of lanes: work that does not return is named once its lane's time has passed (G-9).

use std::sync::mpsc;
use std::time::Duration;

use crate::system::run_paused;
use crate::{BlockingLane, OffloadPort};

#[test]
fn g_9_work_that_does_not_return_is_named_after_the_time_of_its_lane() {
    let lanes = [
        BlockingLane::JOURNAL,
        BlockingLane::DISCOVERY,
        BlockingLane::AGENTS,
        BlockingLane::PROCESSES,
        BlockingLane::INSPECTIONS,
        BlockingLane::HEALTH_CHECKS,
        BlockingLane::ADMISSION,
        BlockingLane::STATE,
        BlockingLane::TERMINAL,
        BlockingLane::OTHER,
    ];
    for lane in lanes {
        run_paused(async move {
            let port = OffloadPort::lane(lane);
            let (let_go, held) = mpsc::channel::<()>();
            // An error means that the test has let go.
            let work = port.run("work", move || held.recv().is_err());
            tokio::time::advance(lane.answers_within).await;
            assert_eq!(port.hanging(), None, "{} may take that long", lane.name);
            tokio::time::advance(Duration::from_millis(1)).await;
            let hanging = port.hanging().expect("it is named");
            assert_eq!((hanging.lane, hanging.label), (lane.name, "work"));
            drop(let_go);
            work.await.expect("it returns");
            assert_eq!(port.hanging(), None, "{} is well again", lane.name);
        });
    }
}
