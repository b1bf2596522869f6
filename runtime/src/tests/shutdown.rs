//! Tests of ordered shutdown.

use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler};

use crate::system::run_paused;
use crate::{ChildExit, Shutdown, Stoppable, shutdown_in_order, spawn_child_with_handle};

/// Stops so long after it was asked; never without a number.
struct Slow(Option<Duration>);

impl Actor for Slow {
    type Context = Context<Self>;
}

impl Handler<Shutdown> for Slow {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        if let Some(wait) = self.0 {
            ctx.run_later(wait, |_, ctx| ctx.stop());
        }
    }
}

fn child(name: &str, slow: Option<Duration>) -> Stoppable {
    let (address, handle) = spawn_child_with_handle(|_| Slow(slow), |_| {});
    Stoppable { name: name.to_owned(), handle, shutdown: Some(address.recipient()) }
}

const TENTH: Duration = Duration::from_millis(100);

#[test]
fn children_stop_in_reverse_order() {
    run_paused(async {
        let mut children: Vec<_> = ["a", "b", "c"].map(|name| child(name, Some(TENTH))).into();
        children[1].shutdown = None;
        let report = shutdown_in_order(children, "done", 10 * TENTH).await;
        let ended = ["c", "b", "a"].map(|name| (name.to_owned(), ChildExit::Stopped));
        assert_eq!(report.ended, ended);
        assert!(report.stuck.is_empty() && report.not_asked.is_empty());
    });
}

#[test]
fn a_stuck_child_is_named_and_ended() {
    run_paused(async {
        let children: Vec<_> =
            [("a", Some(TENTH)), ("b", None), ("c", Some(TENTH))].map(|(n, s)| child(n, s)).into();
        let handles = children.clone();
        let began = tokio::time::Instant::now();
        let report = shutdown_in_order(children, "done", 5 * TENTH).await;
        assert_eq!(began.elapsed(), 5 * TENTH);
        assert_eq!(report.ended, [("c".to_owned(), ChildExit::Stopped)]);
        assert_eq!((report.stuck, report.not_asked), (vec!["b".to_owned()], vec!["a".to_owned()]));
        assert!(handles.iter().all(|child| child.handle.exit().is_some()));
    });
}
