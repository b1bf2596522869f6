//! [`Gateway`]: calls to etcd. One member is asked; if it does not answer, the next one is asked, until the
//! timeout of the call. Called by `election`, `journal` and `keeper`.

use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

use super::address::EtcdAddress;
use super::wire::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::JournalError;

/// Timeout for the answer of one member.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// The most bytes of an answer. Ranges are read in pages that stay below it.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// A client of an etcd cluster.
#[derive(Clone, Debug)]
pub struct Gateway {
    agent: Agent,
    address: EtcdAddress,
    /// The member that answered last.
    current: usize,
}

impl Gateway {
    /// A client of the members of this cluster. Nothing is called yet.
    pub fn new(address: EtcdAddress) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_global(Some(MEMBER_TIMEOUT));
        let config = match &address.tls {
            Some(tls) => config.tls_config(tls.config()).build(),
            None => config.build(),
        };
        Self { agent: Agent::new_with_config(config), address, current: 0 }
    }

    /// The address of the cluster.
    pub const fn address(&self) -> &EtcdAddress {
        &self.address
    }

    /// Makes a call, with timeout `patience`. A call that failed may still have been carried out.
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
                // The first error is kept: it is about the member that should have answered.
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
        let scheme = if self.address.tls.is_some() { "https" } else { "http" };
        let request = self.agent.post(format!("{scheme}://{member}{path}"));
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
