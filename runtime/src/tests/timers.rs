//! Tests of an actor's timer, and of the port for blocking work.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use actix::{Actor, Context, Handler, Message};
use elastic_protocol::Time;

use super::settle;
use crate::lane::BlockingLane;
use crate::offload::Delayed;
use crate::system::run_paused;
use crate::{Clock, OffloadError, OffloadPort, TimedActor, TimerSlot, spawn_child, take_panic};

struct Arm(Option<Time>);

impl Message for Arm {
    type Result = ();
}

struct Timed {
    timer: TimerSlot,
    fired: Rc<RefCell<Vec<Time>>>,
    again: Option<Time>,
}

impl Actor for Timed {
    type Context = Context<Self>;
}

impl Handler<Arm> for Timed {
    type Result = ();

    fn handle(&mut self, arm: Arm, ctx: &mut Context<Self>) {
        self.timer.arm(ctx, arm.0);
    }
}

impl TimedActor for Timed {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        self.fired.borrow_mut().push(now);
        let again = self.again.filter(|_| self.fired.borrow().len() < 5);
        self.timer.arm(ctx, again);
    }
}

fn run(arms: Vec<(u64, Option<u64>)>, again: Option<Time>) -> Vec<u64> {
    run_paused(async move {
        let clock = Clock::start();
        let fired = Rc::new(RefCell::new(Vec::new()));
        let kept = fired.clone();
        let make =
            |_: &mut Context<Timed>| Timed { timer: TimerSlot::new(clock), fired: kept, again };
        let address = spawn_child(make, |_| {});
        for (at_ms, deadline_ms) in arms {
            tokio::time::sleep_until(clock.instant(Time::from_ms(at_ms))).await;
            address.do_send(Arm(deadline_ms.map(Time::from_ms)));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        fired.take().into_iter().map(|time| time.0 / 1_000_000).collect()
    })
}

#[test]
fn the_timer_fires_once_for_what_it_was_armed_for_last() {
    assert_eq!(run(vec![(0, Some(50)), (10, Some(50)), (20, Some(30))], None), [30]);
    assert_eq!(run(vec![(0, Some(50)), (10, Some(90)), (60, None)], None), []);
    assert_eq!(run(vec![(0, Some(50)), (60, Some(80))], None), [50, 80]);
}

#[test]
fn a_deadline_in_the_past_cannot_hold_the_thread() {
    let fired = run(vec![(20, Some(10))], Some(Time::from_ms(5)));
    assert_eq!(fired.len(), 5);
    assert!(fired.is_sorted_by(|earlier, later| earlier < later), "a tick between any two");
}

#[test]
fn blocking_work_answers_after_a_simulated_delay() {
    run_paused(async {
        let port = OffloadPort::new(Delayed(|_| Duration::from_millis(300)));
        let clock = Clock::start();
        let result = port.run("square", || 7 * 7).await;
        assert_eq!((result, clock.now()), (Ok(49), Time::from_ms(300)));
        let error = port.run("fails", || panic!("no disk")).await.map(|(): ()| ());
        let Err(OffloadError::Panicked { message, .. }) = error else { panic!("{error:?}") };
        assert!(message.starts_with("no disk"), "{message}");
        assert!(take_panic().is_some());
        let all: Vec<_> =
            (0..BlockingLane::OTHER.jobs_max).map(|_| port.run("wait", || ())).collect();
        tokio::time::sleep(Duration::from_secs(6)).await;
        let busy_for = Duration::from_secs(6);
        let (label, lane) = ("one more", BlockingLane::OTHER.name);
        let busy = OffloadError::Busy { label, lane, busy_for };
        assert_eq!(port.run("one more", || ()).await, Err(busy));
        let hanging = port.hanging().map(|hanging| hanging.to_string());
        assert_eq!(hanging.as_deref(), Some("blocking work: not answered for 6 s (wait)"));
        drop(all);
        settle().await;
        assert_eq!(port.run("again", || ()).await, Ok(()));
    });
}

#[test]
fn blocking_work_leaves_the_thread_in_production() {
    let threads = crate::system::run(async {
        let port = OffloadPort::lane(BlockingLane::OTHER);
        let there = port.run("thread", || std::thread::current().id()).await;
        (there, std::thread::current().id())
    });
    let (there, here) = threads.expect("a runtime");
    assert_ne!(there, Ok(here));
}

#[test]
fn s_5_a_place_in_a_lane_is_free_when_its_thread_is_back_and_not_before() {
    let ended = crate::system::run(async {
        let port = OffloadPort::lane(BlockingLane { jobs_max: 1, ..BlockingLane::DISCOVERY });
        let (go, held) = std::sync::mpsc::channel::<()>();
        let hangs = port.run("hangs", move || held.recv());
        // The asker has given up; the thread has not returned.
        drop(hangs);
        let refused = port.run("second", || ()).await;
        assert!(
            matches!(refused, Err(OffloadError::Busy { lane: "discovery", .. })),
            "{refused:?}"
        );
        // Another lane is not affected.
        assert_eq!(OffloadPort::lane(BlockingLane::JOURNAL).run("write", || 1).await, Ok(1));
        drop(go);
        while port.run("again", || ()).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    assert!(ended.is_ok());
}

#[test]
fn s_5_the_end_of_a_process_does_not_wait_for_a_lane_that_hangs() {
    let (go, held) = std::sync::mpsc::channel::<()>();
    let ended = crate::system::run(async move {
        drop(OffloadPort::lane(BlockingLane::DISCOVERY).run("hangs", move || held.recv()));
    });
    // If the end waited for the thread, the test would never get here.
    drop(go);
    assert!(ended.is_ok());
}
