//! Ordered shutdown with a deadline: children are stopped one after the other, in the reverse of the order in
//! which they were started. Called by supervisors and by the shells of processes.

use std::time::Duration;

use actix::{Message, Recipient};
use tokio::time::{Instant, timeout_at};

use crate::child::{ChildExit, ChildHandle};

/// Asks an actor to finish its work and to stop itself (`ctx.stop()`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shutdown {
    /// The reason.
    pub reason: String,
    /// Time limit; then the actor is ended by force.
    pub within: Duration,
}

impl Message for Shutdown {
    type Result = ();
}

/// A child to be stopped.
#[derive(Clone, Debug)]
pub struct Stoppable {
    /// Its name, for the report.
    pub name: String,
    /// Its handle.
    pub handle: ChildHandle,
    /// The recipient of [`Shutdown`]; `None` for a child that is stopped as by `ctx.stop()`.
    pub shutdown: Option<Recipient<Shutdown>>,
}

/// The result of a shutdown.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ShutdownReport {
    /// Children that ended before the deadline, with their exits, in the order in which they ended.
    pub ended: Vec<(String, ChildExit)>,
    /// Children that were asked and had not stopped by the deadline (G-9); ended by force.
    pub stuck: Vec<String>,
    /// Children that were ended by force without having been asked, since the deadline had passed.
    pub not_asked: Vec<String>,
}

/// Stops `children`, given in the order of their start, last one first; the next is asked when the one before
/// has ended. Past the deadline, `within` from now, the children that are left are ended by force.
pub async fn shutdown_in_order(
    children: Vec<Stoppable>,
    reason: &str,
    within: Duration,
) -> ShutdownReport {
    let deadline = Instant::now() + within;
    let mut report = ShutdownReport::default();
    for child in children.into_iter().rev() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() && child.handle.exit().is_none() {
            child.handle.terminate();
            child.handle.exited().await;
            report.not_asked.push(child.name);
            continue;
        }
        match &child.shutdown {
            Some(shutdown) => {
                shutdown.do_send(Shutdown { reason: reason.to_owned(), within: left });
            }
            None => child.handle.stop(),
        }
        match timeout_at(deadline, child.handle.exited()).await {
            Ok(exit) => report.ended.push((child.name, exit)),
            Err(_elapsed) => {
                child.handle.terminate();
                child.handle.exited().await;
                report.stuck.push(child.name);
            }
        }
    }
    report
}
