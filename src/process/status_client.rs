//! A client of the driver: asks for its status.

use std::time::Duration;

use elastic_protocol::NodeName;
use elastic_protocol::messages::{ClientRequest, ClientResponse, StatusReport};
use elastic_runtime::{ActorId, ActorName, ActorRef};
use elastic_transport::{ConnectOptions, JoinedNode, join};

use super::TokenSource;
use crate::cli::{Failure, ResultExt};

/// How long a driver may take to answer at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long goodbye may take.
const GOODBYE: Duration = Duration::from_millis(100);

/// A connection for questions.
pub(crate) struct StatusClient {
    joined: JoinedNode,
    driver: ActorRef<ClientRequest>,
}

impl StatusClient {
    /// Connects with the driver at `HOST:PORT`.
    pub(crate) async fn connect(driver: &str, token: &TokenSource) -> Result<Self, Failure> {
        let mut options = ConnectOptions::new(driver, token.read()?, NodeName::Client);
        options.patience = PATIENCE;
        let joined =
            join(options).await.failed("the driver cannot be asked").map_err(|failure| {
                failure.hint("does the job still run there? `--driver HOST:PORT` says which to ask")
            })?;
        let driver = joined.node.reference(ActorId::new(joined.driver.clone(), ActorName::STATUS));
        Ok(Self { joined, driver })
    }

    /// Asks once.
    pub(crate) async fn ask(&self) -> Result<StatusReport, Failure> {
        let answer = self.driver.ask(ClientRequest::Status, PATIENCE).await;
        let ClientResponse::Status(status) = answer.failed("the driver did not answer")?;
        Ok(*status)
    }

    /// Says goodbye.
    pub(crate) async fn close(self) {
        self.joined.transport.shutdown("the client has its answer", GOODBYE).await;
    }
}
