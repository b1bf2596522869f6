//! The registry actor: a thin shell around [`RegistryCore`]. It lives in the driver's node, takes votes
//! from workers and from the driver, and tells the driver what they come to.

mod generation;
mod messages;
#[cfg(test)]
mod tests;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, Recipient};
use elastic_protocol::messages::Vote;
use elastic_protocol::{Stamp, Time};
use elastic_runtime::{Clock, Delivery, Exit, NodeHandle, Routes, spawn_child};

use self::generation::{End, Generation};
pub use self::messages::{AskMissing, CloseGeneration, MemberLost, OpenGeneration, RegistryReport};
use crate::core::{OpenError, RegistryCore, Verdict, VoteDecision};

/// The `WorkerStateRegistry`: supervisor of the generations.
pub struct Registry {
    core: RegistryCore,
    clock: Clock,
    reports: Recipient<RegistryReport>,
    current: Option<(Stamp, Addr<Generation>)>,
}

impl Registry {
    /// Nothing is open. Reports go to `reports` without a bound of their own: there are a few for each
    /// member of a generation, and one that is lost would never be made up for.
    pub fn new(node: &NodeHandle, reports: Recipient<RegistryReport>) -> Self {
        Self { core: RegistryCore::new(), clock: node.clock(), reports, current: None }
    }

    /// What it takes of other nodes, for [`NodeHandle::register`].
    pub fn routes(address: &Addr<Self>) -> Routes {
        Routes::new().tell::<Vote>(address.clone().recipient())
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn after_vote(&mut self, decision: &VoteDecision) {
        match decision {
            VoteDecision::Dropped(reason) => {
                let total = self.core.dropped();
                tracing::debug!(%reason, total, "a vote was dropped");
                self.reports.do_send(RegistryReport::VoteDropped { total });
            }
            VoteDecision::Taken(decision) => tracing::trace!(?decision, "a vote was taken"),
        }
        while let Some(verdict) = self.core.poll_output() {
            tracing::debug!(?verdict, "verdict");
            match &verdict {
                Verdict::Failed { failure, .. } => {
                    self.end(End::Lost(format!("{}: {}", failure.worker, failure.message)));
                }
                Verdict::AllSucceeded { .. } => self.end(End::Done),
                _ => {}
            }
            self.reports.do_send(RegistryReport::Verdict(verdict));
        }
    }

    /// Ends the child of the current generation, if it has not been told so before.
    fn end(&mut self, end: End) {
        if let Some((_, child)) = self.current.take() {
            child.do_send(end);
        }
    }
}

impl Actor for Registry {
    type Context = Context<Self>;
}

impl Handler<OpenGeneration> for Registry {
    type Result = Result<(), OpenError>;

    fn handle(&mut self, open: OpenGeneration, ctx: &mut Context<Self>) -> Self::Result {
        let OpenGeneration { stamp, members } = open;
        self.core.open(self.now(), stamp, members).inspect_err(|error| {
            tracing::error!(%error, "the generation was not opened");
        })?;
        self.end(End::Done);
        let parent = ctx.address();
        let on_exit = move |exit| parent.do_send(Ended { stamp, exit });
        self.current = Some((stamp, spawn_child(|_| Generation, on_exit)));
        Ok(())
    }
}

impl Handler<CloseGeneration> for Registry {
    type Result = ();

    fn handle(&mut self, close: CloseGeneration, _: &mut Context<Self>) {
        self.core.close(close.stamp);
        if self.current.as_ref().is_some_and(|(stamp, _)| *stamp == close.stamp) {
            self.end(End::Done);
        }
    }
}

impl Handler<Delivery<Vote>> for Registry {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<Vote>, _: &mut Context<Self>) {
        let Delivery { from, message } = delivery;
        let decision = self.core.handle_vote_from(self.now(), &from, &message);
        self.after_vote(&decision);
    }
}

impl Handler<MemberLost> for Registry {
    type Result = ();

    fn handle(&mut self, lost: MemberLost, _: &mut Context<Self>) {
        let MemberLost { stamp, worker, reason } = lost;
        let decision = self.core.handle_lost(self.now(), stamp, &worker, &reason);
        self.after_vote(&decision);
    }
}

impl Handler<AskMissing> for Registry {
    type Result = ();

    fn handle(&mut self, ask: AskMissing, _: &mut Context<Self>) {
        let is_open = self.core.open_stamp() == Some(ask.stamp);
        let missing = if is_open { self.core.missing() } else { Vec::new() };
        self.reports.do_send(RegistryReport::Missing { stamp: ask.stamp, missing });
    }
}

/// A generation's actor is gone.
struct Ended {
    stamp: Stamp,
    exit: Exit,
}

impl Message for Ended {
    type Result = ();
}

impl Handler<Ended> for Registry {
    type Result = ();

    fn handle(&mut self, ended: Ended, _: &mut Context<Self>) {
        let Ended { stamp, exit } = ended;
        tracing::info!(term = %stamp.term, generation = %stamp.generation, %exit, "generation ended");
        self.reports.do_send(RegistryReport::GenerationEnded { stamp, exit });
    }
}
