//! The registry actor: a thin shell around [`RegistryCore`]. It lives in the driver's node, takes votes from workers
//! and from the driver, and tells the driver the verdicts.

mod messages;
#[cfg(test)]
mod tests;

use actix::{Actor, Addr, Context, Handler, Recipient};
use elastic_protocol::Time;
use elastic_protocol::messages::Vote;
use elastic_runtime::{Clock, Delivery, NodeHandle, Routes};

pub use self::messages::{AskMissing, OpenGeneration, RegistryReport};
use crate::core::{Incident, OpenError, RegistryCore, VoteDecision};

/// The `WorkerStateRegistry`: supervisor of the generations.
pub struct Registry {
    core: RegistryCore,
    clock: Clock,
    reports: Recipient<RegistryReport>,
}

impl Registry {
    /// A registry without an open generation. Reports go to `reports` without a bound of their own: there are a few for
    /// each member of a generation, and the loss of one could not be repaired.
    pub fn new(node: &NodeHandle, reports: Recipient<RegistryReport>) -> Self {
        Self { core: RegistryCore::new(), clock: node.clock(), reports }
    }

    /// Messages that it takes from other nodes, for [`NodeHandle::register`].
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
        self.tell_verdicts();
    }

    fn tell_verdicts(&mut self) {
        while let Some(verdict) = self.core.poll_output() {
            tracing::debug!(?verdict, "verdict");
            self.reports.do_send(RegistryReport::Verdict(verdict));
        }
    }
}

impl Actor for Registry {
    type Context = Context<Self>;
}

impl Handler<OpenGeneration> for Registry {
    type Result = Result<(), OpenError>;

    fn handle(&mut self, open: OpenGeneration, _: &mut Context<Self>) -> Self::Result {
        let OpenGeneration { stamp, members, budget } = open;
        self.core.open(self.now(), stamp, members, budget).inspect_err(|error| {
            tracing::error!(%error, "the generation was not opened");
        })
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

impl Handler<Incident> for Registry {
    type Result = ();

    fn handle(&mut self, incident: Incident, _: &mut Context<Self>) {
        tracing::debug!(?incident, "incident");
        self.core.handle_incident(self.now(), incident);
        self.tell_verdicts();
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
