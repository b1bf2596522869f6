//! [`Credentials`]: the driver's table of nodes that may enrol. The driver calls it from its `admit` callback.

use std::collections::BTreeMap;

use elastic_protocol::{Incarnation, NodeId, WorkerId};

use crate::identity::enrol::{EnrolClaim, EnrolRefusal, EnrolRequest};
use crate::identity::job_secrets::JobSecrets;
use crate::identity::secret::TokenSecret;
use crate::identity::token::{Fingerprint, JoinToken, TokenKind};

/// Secrets of a job: one for hosts, one for clients, and one for each worker.
#[derive(Debug)]
pub struct Credentials {
    authority: Fingerprint,
    join: TokenSecret,
    client: TokenSecret,
    /// The secret from which workers' secrets are derived.
    master: TokenSecret,
    workers: BTreeMap<WorkerId, IssuedCredential>,
    next: Incarnation,
}

/// A worker's secret, and the key with which the worker has enrolled. The same key may ask again, because its
/// answer may have been lost.
#[derive(Debug)]
struct IssuedCredential {
    secret: TokenSecret,
    spent_on: Option<Vec<u8>>,
}

impl Credentials {
    /// The table of a driver; see [`JobSecrets::credentials`].
    pub(crate) fn new(authority: Fingerprint, secrets: &JobSecrets, first: Incarnation) -> Self {
        Self {
            authority,
            join: secrets.join.clone(),
            client: secrets.client.clone(),
            master: secrets.workers.clone(),
            workers: BTreeMap::new(),
            next: first,
        }
    }

    fn token(&self, kind: TokenKind, secret: &TokenSecret) -> JoinToken {
        JoinToken { authority: self.authority, kind, secret: secret.clone() }
    }

    /// The token for hosts, and for clients on the driver's own machine.
    pub fn join_token(&self) -> JoinToken {
        self.token(TokenKind::Join, &self.join)
    }

    /// The token for clients only.
    pub fn client_token(&self) -> JoinToken {
        self.token(TokenKind::Client, &self.client)
    }

    /// The token with which this worker enrols, once. Every incarnation of the driver issues the same token to
    /// the same worker.
    pub fn issue_worker(&mut self, worker: &WorkerId) -> JoinToken {
        let name = postcard::to_stdvec(worker).expect("a worker's id has no part that can fail");
        let secret = self.master.derive(&name);
        let token = self.token(TokenKind::Worker(worker.clone()), &secret);
        self.workers.insert(worker.clone(), IssuedCredential { secret, spent_on: None });
        token
    }

    /// Withdraws a worker's token: the worker has ended, or never came.
    pub fn withdraw_worker(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// Decides on a request.
    ///
    /// # Errors
    /// [`EnrolRefusal`], which is sent to the node.
    pub fn admit(&mut self, request: &EnrolRequest) -> Result<NodeId, EnrolRefusal> {
        let wrong = || EnrolRefusal::WrongSecret(request.claim.name());
        let right = match &request.claim {
            EnrolClaim::Agent(_) => request.secret.is(&self.join),
            EnrolClaim::Client => request.secret.is(&self.join) | request.secret.is(&self.client),
            EnrolClaim::Worker(worker) => {
                let spent = || EnrolRefusal::Spent(worker.clone());
                let credential = self.workers.get_mut(worker).ok_or_else(spent)?;
                if !request.secret.is(&credential.secret) {
                    return Err(wrong());
                }
                let key = credential.spent_on.get_or_insert_with(|| request.public_key.clone());
                if *key != request.public_key {
                    return Err(spent());
                }
                return Ok(NodeId::worker(worker));
            }
        };
        if !right {
            return Err(wrong());
        }
        let incarnation = self.next;
        self.next = incarnation.next();
        Ok(NodeId { name: request.claim.name(), incarnation })
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, JobId};
    use uuid::Uuid;

    use super::*;

    fn request(claim: &EnrolClaim, token: &JoinToken) -> EnrolRequest {
        let secret = token.secret.clone();
        EnrolRequest { claim: claim.clone(), secret, public_key: vec![4; 65] }
    }

    #[test]
    fn each_secret_opens_its_own_door_only() {
        let secrets = JobSecrets::new(JobId(Uuid::from_u128(5))).expect("made");
        let mut table = Credentials::new(Fingerprint([0; 32]), &secrets, Incarnation(5));
        let host = HostName::new("a").expect("a name");
        let worker = WorkerId { host: host.clone(), slot: 0, incarnation: Incarnation(1) };
        let (agent, client) = (EnrolClaim::Agent(host), EnrolClaim::Client);
        let claim = EnrolClaim::Worker(worker.clone());
        let (join, ask) = (table.join_token(), table.client_token());

        assert_eq!(table.admit(&request(&agent, &join)).expect("agent").incarnation.0, 5);
        assert_eq!(table.admit(&request(&client, &join)).expect("client").incarnation.0, 6);
        assert_eq!(table.admit(&request(&client, &ask)).expect("client").incarnation.0, 7);
        let refusal = table.admit(&request(&agent, &ask)).expect_err("a client's secret");
        assert_eq!(refusal, EnrolRefusal::WrongSecret(agent.name()));
        let refusal = table.admit(&request(&claim, &join)).expect_err("none was issued");
        assert_eq!(refusal, EnrolRefusal::Spent(worker.clone()));

        let token = table.issue_worker(&worker);
        assert!(table.admit(&request(&claim, &join)).is_err(), "a host's secret");
        assert!(table.admit(&request(&agent, &token)).is_err(), "a worker's secret");
        assert_eq!(table.admit(&request(&claim, &token)), Ok(NodeId::worker(&worker)));
        assert_eq!(table.admit(&request(&claim, &token)), Ok(NodeId::worker(&worker)), "same key");
        let other = EnrolRequest { public_key: vec![5; 65], ..request(&claim, &token) };
        assert_eq!(table.admit(&other), Err(EnrolRefusal::Spent(worker.clone())), "once");
        table.withdraw_worker(&worker);
        assert_eq!(table.admit(&request(&claim, &token)), Err(EnrolRefusal::Spent(worker)));
    }
}
