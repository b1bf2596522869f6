//! Questions: [`ActorRef::ask`], which sends one and waits for its answer up to a deadline (G-9).

use std::time::Duration;

use elastic_protocol::codec::decode;
use elastic_protocol::{ActorId, WireRequest};
use tokio::sync::oneshot;

use crate::actor_ref::ActorRef;
use crate::delivery::ReplyTo;
use crate::envelope::Header;
use crate::failure::{AskError, Undelivered, UndeliveredReason};
use crate::node::{NodeHandle, Resolution};

impl<R: WireRequest> ActorRef<R> {
    /// Asks, now; the future gives the answer, or why there is none. Dropping the future gives the answer
    /// up, but does not take the question back.
    ///
    /// In an actor: `ctx.spawn(reference.ask(..).into_actor(self).map(|answer, actor, ctx| ..))`.
    ///
    /// `within` is the deadline, counted from now, rounded up to the next millisecond.
    ///
    /// # Errors
    /// [`AskError`] tells "not handled" from "unknown".
    pub fn ask(
        &self,
        request: R,
        within: Duration,
    ) -> impl Future<Output = Result<R::Reply, AskError<R>>> + use<R> {
        let (answer, answered) = oneshot::channel();
        let mut pending = None;
        let asked = if self.is_local() {
            self.ask_here(request, answer)
        } else {
            self.ask_there(request, answer).map(|guard| pending = Some(guard))
        };
        let to = self.id.clone();
        async move {
            if let Err((request, reason)) = asked {
                return Err(undelivered(to, request, reason));
            }
            let _forget = pending;
            match tokio::time::timeout(within, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_dropped)) => Err(AskError::Unanswered { to }),
                Err(_elapsed) => Err(AskError::DeadlinePassed { to, within }),
            }
        }
    }

    fn ask_here(&self, request: R, answer: AnswerSender<R>) -> Result<(), (R, UndeliveredReason)> {
        let reply = ReplyTo::local(answer, self.id.clone());
        let from = self.node.local().clone();
        let asked = self.node.inner.ask_here(self.id.name, from, request, reply);
        asked.map_err(|(question, reason)| (question.request, reason))
    }

    fn ask_there(
        &self,
        request: R,
        answer: AnswerSender<R>,
    ) -> Result<ForgetOnDrop, (R, UndeliveredReason)> {
        let number = self.node.inner.asks.borrow_mut().next();
        let Some(number) = number else {
            return Err((request, UndeliveredReason::TooManyAsked));
        };
        let header = Header::Ask { actor: self.id.name, kind: R::KIND, request: number };
        if let Err(reason) = self.send(&header, &request) {
            return Err((request, reason));
        }
        let resolve = resolver(self.id.clone(), answer);
        let peer = self.id.node.clone();
        self.node.inner.asks.borrow_mut().insert(number, peer, resolve);
        Ok(ForgetOnDrop { node: self.node.clone(), number })
    }
}

type AnswerSender<R> = oneshot::Sender<Result<<R as WireRequest>::Reply, AskError<R>>>;

fn undelivered<R>(to: ActorId, message: R, reason: UndeliveredReason) -> AskError<R> {
    AskError::Undelivered(Undelivered { to, message, reason })
}

fn resolver<R: WireRequest>(to: ActorId, answer: AnswerSender<R>) -> crate::node::Resolve {
    Box::new(move |resolution| {
        let mut result = Ok(());
        let resolved = match resolution {
            Resolution::Answered(body) => decode(body).map_err(|error| {
                result = Err(error);
                AskError::MalformedAnswer { to }
            }),
            Resolution::Refused(refusal) => Err(AskError::Refused { to, refusal }),
            Resolution::Unanswered => Err(AskError::Unanswered { to }),
            Resolution::HandedBack(body) => Err(match decode(body) {
                Ok(request) => undelivered(to, request, UndeliveredReason::SessionLost),
                Err(_not_ours) => AskError::Lost { to },
            }),
            Resolution::Lost => Err(AskError::Lost { to }),
        };
        // The asker may have given up.
        let _ = answer.send(resolved);
        result
    })
}

/// Takes a question out of the table when its asker gives up.
struct ForgetOnDrop {
    node: NodeHandle,
    number: u64,
}

impl Drop for ForgetOnDrop {
    fn drop(&mut self) {
        self.node.inner.asks.borrow_mut().forget(self.number);
    }
}
