//! [`Gateway`]: calls to etcd. One member is asked; if it does not answer, the next one is, until the time given for the
//! call is over. Called by `election`, `journal` and `keeper`.

use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

use super::address::EtcdAddress;
use super::wire::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::JournalError;

/// How long one member may take to answer.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// How much an answer may hold. Ranges are asked for in pages that stay below.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// A cluster of etcd, to which calls go.
#[derive(Clone, Debug)]
pub struct Gateway {
    agent: Agent,
    address: EtcdAddress,
    /// The member that answered last.
    current: usize,
}

impl Gateway {
    /// Calls will go to the members of this cluster. Nothing is called yet.
    pub fn new(address: EtcdAddress) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_global(Some(MEMBER_TIMEOUT))
            .build();
        Self { agent: Agent::new_with_config(config), address, current: 0 }
    }

    /// The cluster.
    pub const fn address(&self) -> &EtcdAddress {
        &self.address
    }

    /// Calls, and gives up after `patience`. A call that failed may have been carried out all the same.
    pub(super) fn call<R: DeserializeOwned>(
        &mut self,
        path: &str,
        request: &impl Serialize,
        patience: Duration,
    ) -> Result<R, JournalError> {
        let body = serde_json::to_vec(request).map_err(io::Error::from)?;
        let members = self.address.members.len();
        let share = (patience / u32::try_from(members).unwrap_or(1)).min(MEMBER_TIMEOUT);
        let mut failure = None;
        for _ in 0..members {
            match self.ask(self.current, path, &body, share) {
                Ok(answer) => return Ok(answer),
                // The first complaint is the one about the member that should have answered.
                Err(error) => failure = failure.or(Some(error)),
            }
            self.current = (self.current + 1) % members;
        }
        Err(JournalError::Io(failure.unwrap_or_else(|| io::ErrorKind::NotFound.into())))
    }

    fn ask<R: DeserializeOwned>(
        &self,
        member: usize,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> io::Result<R> {
        let member = &self.address.members[member];
        let failed = |what: &dyn std::fmt::Display| {
            io::Error::other(format!("etcd at {member}, {path}: {what}"))
        };
        let request = self.agent.post(format!("http://{member}{path}"));
        let request = request.config().timeout_global(Some(timeout)).build();
        let request = request.content_type("application/json");
        let mut response = request.send(body).map_err(|error| failed(&error))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES);
        let text = body.read_to_vec().map_err(|error| failed(&error))?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&text);
            return Err(failed(&format_args!("{status}: {}", text.trim())));
        }
        serde_json::from_slice(&text).map_err(|error| failed(&error))
    }

    pub(super) fn range(
        &mut self,
        request: &RangeRequest,
        patience: Duration,
    ) -> Result<RangeResponse, JournalError> {
        self.call("/v3/kv/range", request, patience)
    }

    pub(super) fn transact(
        &mut self,
        request: &TxnRequest,
        patience: Duration,
    ) -> Result<TxnResponse, JournalError> {
        self.call("/v3/kv/txn", request, patience)
    }
}
