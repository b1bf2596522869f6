//! The one timer of an actor, and the port for blocking work.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use actix::{Actor, Context, Handler, Message};
use elastic_protocol::Time;

use super::settle;
use crate::offload::{Delayed, JOBS_MAX};
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
        let all: Vec<_> = (0..JOBS_MAX).map(|_| port.run("wait", || ())).collect();
        assert_eq!(
            port.run("one more", || ()).await,
            Err(OffloadError::Busy { label: "one more" })
        );
        drop(all);
        settle().await;
        assert_eq!(port.run("again", || ()).await, Ok(()));
    });
}

#[test]
fn blocking_work_leaves_the_thread_in_production() {
    let threads = crate::system::run(async {
        let port = OffloadPort::blocking_threads();
        let there = port.run("thread", || std::thread::current().id()).await;
        (there, std::thread::current().id())
    });
    let (there, here) = threads.expect("a runtime");
    assert_ne!(there, Ok(here));
}
