//! Requests of the operator (`status`, `stop`, `drain`, `readmit`), and the answers that wait until what was decided is stored.
//! Part of the [`Driver`] actor.

use actix::{ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, WrapFuture as _};
use elastic_host_manager::{DrainDecision, DrainHost, HostManager, ReadmitDecision, ReadmitHost};
use elastic_protocol::NodeName;
use elastic_protocol::messages::{ClientRequest, ClientResponse};
use elastic_runtime::{Question, ReplyTo};

use super::Driver;
use crate::core::DriverInput;
use crate::core::held_answers::ReleasedAnswer;

/// A decision of the host manager about the operator's request. It comes by way of the driver's mailbox, and so after the hosts
/// that it changed.
struct HostDecided(OperatorAnswer);

impl Message for HostDecided {
    type Result = ();
}

/// An answer to the operator that waits until its decision is stored.
pub(super) struct OperatorAnswer {
    reply: ReplyTo<ClientRequest>,
    response: ClientResponse,
    /// The state since the decision, as a text.
    state: String,
    /// Advice to the operator if the decision is not stored.
    way_out: &'static str,
}

/// The way out of a request about a host that is not stored.
const GIVE_AGAIN: &str = "give the command again once the journal can be written";

/// The way out of a stop that is not stored. While the same driver leads, a second one would end the job at once.
const STOP_AGAIN: &str =
    "if the job goes on once the journal can be written, give the command again";

impl Driver {
    /// Answers the operator's commands whose effects are stored, and those whose effects are not stored in time.
    pub(super) fn answer_operator(&mut self) {
        let now = self.node.now();
        let leads = self.core.leads();
        while let Some(released) =
            self.answers.poll(now, leads, |record| self.core.is_recorded(record))
        {
            match released {
                ReleasedAnswer::Stored(answer) => answer.reply.answer(answer.response),
                ReleasedAnswer::Late(OperatorAnswer { reply, state, way_out, .. }) => {
                    let trouble = self.core.journal_trouble();
                    let trouble = trouble.unwrap_or("the journal does not answer");
                    reply.answer(refused(format!(
                        "{state}, but this is not stored, and the next driver would not know it: {trouble}; {way_out}"
                    )));
                }
                ReleasedAnswer::Deposed(answer) => answer.reply.answer(leads_no_more()),
            }
        }
    }

    /// Answers once the last record is stored. A driver that leads no more stores none, and refuses.
    fn answer_when_stored(&mut self, answer: OperatorAnswer) {
        match self.core.leads() {
            true => self.answers.hold(self.now(), self.core.last_record(), answer),
            false => answer.reply.answer(leads_no_more()),
        }
    }

    /// Passes a request of the operator to the host manager. `answer` makes the answer of its decision. Without a decision the
    /// client gets no answer, and reports that.
    fn ask_host_manager<M>(
        &self,
        request: M,
        ctx: &mut Context<Self>,
        answer: impl FnOnce(M::Result) -> OperatorAnswer + 'static,
    ) where
        M: Message + Send + 'static,
        M::Result: Send,
        HostManager: Handler<M>,
    {
        let Some(children) = &self.children else { return };
        let decided = children.host_manager.send(request).into_actor(self);
        ctx.spawn(decided.map(|decision, _driver, ctx| {
            if let Ok(decision) = decision {
                ctx.address().do_send(HostDecided(answer(decision)));
            }
        }));
    }
}

impl Handler<Question<ClientRequest>> for Driver {
    type Result = ();

    fn handle(&mut self, question: Question<ClientRequest>, ctx: &mut Context<Self>) {
        // A worker may ask for the status, but not decide about its job.
        let is_client = question.from.name == NodeName::Client;
        match question.request {
            request if request != ClientRequest::Status && !is_client => {
                question.reply.answer(refused(
                    "only a client with the job's token may ask for that".to_owned(),
                ));
            }
            ClientRequest::Status => {
                let mut status = self.status();
                let now = humantime::format_rfc3339_millis(self.node.wall_clock());
                status.answered_at = Some(now.to_string());
                question.reply.answer(ClientResponse::Status(Box::new(status)));
            }
            ClientRequest::Stop => {
                self.take(DriverInput::StopAsked);
                self.answer_when_stored(OperatorAnswer {
                    reply: question.reply,
                    response: ClientResponse::Done,
                    state: "the job is to end".to_owned(),
                    way_out: STOP_AGAIN,
                });
                self.drain(ctx);
            }
            ClientRequest::Drain { host } => {
                let reply = question.reply;
                self.ask_host_manager(DrainHost { host: host.clone() }, ctx, move |decision| {
                    let response = match decision {
                        DrainDecision::Drained => ClientResponse::Done,
                        DrainDecision::OutAlready => ClientResponse::DoneAlready,
                        DrainDecision::NotListed => refused(format!("this job has no host {host}")),
                        DrainDecision::TooMany => refused("too many hosts are drained".to_owned()),
                    };
                    let state = format!("host {host} is drained");
                    OperatorAnswer { reply, response, state, way_out: GIVE_AGAIN }
                });
            }
            ClientRequest::Readmit { host } => {
                let reply = question.reply;
                let state = format!("host {host} may have workers again");
                self.ask_host_manager(ReadmitHost { host }, ctx, move |decision| {
                    let response = match decision {
                        ReadmitDecision::Readmitted => ClientResponse::Done,
                        ReadmitDecision::NotOut => ClientResponse::DoneAlready,
                    };
                    OperatorAnswer { reply, response, state, way_out: GIVE_AGAIN }
                });
            }
        }
    }
}

impl Handler<HostDecided> for Driver {
    type Result = ();

    /// A request that found the host as it was asked for waits, too: the record that says so may be on its way.
    fn handle(&mut self, decided: HostDecided, ctx: &mut Context<Self>) {
        let answer = decided.0;
        if matches!(answer.response, ClientResponse::Refused { .. }) {
            return answer.reply.answer(answer.response);
        }
        self.answer_when_stored(answer);
        self.drain(ctx);
    }
}

fn leads_no_more() -> ClientResponse {
    let reason = "this driver leads the job no more, and the next one would not know of the request: give the command again";
    refused(reason.to_owned())
}

const fn refused(reason: String) -> ClientResponse {
    ClientResponse::Refused { reason }
}
