//! A client of the driver: asks for its status, and gives it the operator's requests. Used by `operate`, `status`, `explain`, `doctor` and `demo`.

use std::time::Duration;

use elastic_protocol::messages::{
    ClientRequest, ClientResponse, ReachAnswer, ReachRequest, StatusReport,
};
use elastic_protocol::{ActorId, ActorName, NodeName};
use elastic_runtime::{ActorRef, AskError, UndeliveredReason};
use elastic_transport::{ConnectError, ConnectOptions, JoinToken, JoinedNode, join};

use super::TokenSource;
use crate::command_line::{CommandFailure, ResultExt};

/// Timeout for an answer of the driver.
const PATIENCE: Duration = Duration::from_secs(5);

/// Timeout for the driver's answer with the agents' findings: longer than they may take.
const PORTS_TRIED_WITHIN: Duration = Duration::from_secs(6);

/// Timeout for closing the connection.
const GOODBYE: Duration = Duration::from_millis(100);

/// Why a question has no answer, in the words of the one who asked.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("the connection with it was lost")]
    ConnectionLost,
    #[error("no answer came within {} s", .0.as_secs())]
    Late(Duration),
    #[error("{0}")]
    Other(String),
}

impl From<AskError<ClientRequest>> for NoAnswer {
    fn from(error: AskError<ClientRequest>) -> Self {
        use UndeliveredReason::{NoSession, SessionLost};
        match error {
            AskError::Undelivered(lost) if matches!(lost.reason, NoSession | SessionLost) => {
                Self::ConnectionLost
            }
            AskError::Lost { .. } => Self::ConnectionLost,
            AskError::DeadlinePassed { within, .. } => Self::Late(within),
            AskError::Undelivered(lost) => Self::Other(lost.reason.to_string()),
            AskError::Refused { refusal, .. } => Self::Other(refusal.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

/// A connection for requests.
pub(crate) struct StatusClient {
    joined: JoinedNode,
    driver: ActorRef<ClientRequest>,
}

impl StatusClient {
    /// Connects with the driver at `HOST:PORT`.
    pub(crate) async fn connect(driver: &str, token: &TokenSource) -> Result<Self, CommandFailure> {
        let joined = Self::join(driver, token.read()?).await;
        joined.failed("the driver cannot be asked").map_err(|failure| {
            failure.hint("does the job still run there? `--driver HOST:PORT` says which to ask")
        })
    }

    /// Connects with the driver at `HOST:PORT`.
    pub(crate) async fn join(driver: &str, token: JoinToken) -> Result<Self, ConnectError> {
        let mut options = ConnectOptions::new(driver, token, NodeName::Client);
        options.patience = PATIENCE;
        let joined = join(options).await?;
        let driver = joined.node.reference(ActorId::new(joined.driver.clone(), ActorName::STATUS));
        Ok(Self { joined, driver })
    }

    /// Asks for the status once.
    pub(crate) async fn ask(&self) -> Result<StatusReport, CommandFailure> {
        match self.request(ClientRequest::Status).await? {
            ClientResponse::Status(status) => Ok(*status),
            _ => Err(CommandFailure::new("the driver answered something else than its status")),
        }
    }

    /// Gives the driver a request.
    pub(crate) async fn request(
        &self,
        request: ClientRequest,
    ) -> Result<ClientResponse, CommandFailure> {
        let answer = self.driver.ask(request, PATIENCE).await.map_err(NoAnswer::from);
        answer.failed("the driver did not answer")
    }

    /// Has the hosts of the job try this host's ports; none if the driver does not answer.
    pub(crate) async fn try_ports(&self, request: ReachRequest) -> Option<ReachAnswer> {
        let relay = ActorId::new(self.joined.driver.clone(), ActorName::REACH);
        self.joined
            .node
            .reference::<ReachRequest>(relay)
            .ask(request, PORTS_TRIED_WITHIN)
            .await
            .ok()
    }

    /// Closes the connection.
    pub(crate) async fn close(self) {
        self.joined.transport.shutdown("the client has its answer", GOODBYE).await;
    }
}
