//! Tests of the mode *actors*: node code that panics, and nodes that end.

use std::cell::Cell;
use std::rc::Rc;

use elastic_protocol::Term;
use tokio::task::spawn_local;

use super::node::{NodeBirth, SimulatedNode};
use super::transport::Side;
use super::{DriverNode, run_beside};
use crate::options::{RunOptions, SimulationMode};
use crate::report::RunVerdict;
use crate::trace::Recording;

fn birth() -> NodeBirth {
    NodeBirth { id: DriverNode::id(Term(1)), seed: 0, side: Side::Driver { life: 1 }, ppm: 0 }
}

fn options() -> RunOptions {
    RunOptions { mode: SimulationMode::Actors, calm: true, seconds: 2, ..RunOptions::new(1) }
}

#[test]
fn a_panic_in_a_node_fails_the_run() {
    let report = run_beside(&options(), Recording::default(), |hub| {
        SimulatedNode::start(hub, birth(), |_, _| spawn_local(async { panic!("an assertion") }))
    });
    assert_eq!(report.verdict(), RunVerdict::Safety);
    assert!(report.reason().is_some_and(|reason| reason.contains("an assertion")), "{report:?}");
}

#[test]
fn what_an_ended_node_says_is_not_heard() {
    struct LastWords(super::hub::Port, Rc<Cell<u32>>);
    impl Drop for LastWords {
        fn drop(&mut self) {
            let is_heard = self.0.call(|_| ()).is_some();
            self.1.set(self.1.get() + if is_heard { 1 } else { 100 });
        }
    }
    let said = Rc::new(Cell::new(0));
    let words = Rc::clone(&said);
    let report = run_beside(&options(), Recording::default(), |hub| {
        let (node, _) = SimulatedNode::start(hub, birth(), |_, port| {
            let words = LastWords(port.clone(), words);
            spawn_local(async move {
                let _words = words;
                std::future::pending::<()>().await;
            })
        });
        drop(node);
    });
    assert_eq!(report.verdict(), RunVerdict::Ok, "{:?}", report.reason());
    assert_eq!(said.get(), 100, "dropped, and not heard");
}
