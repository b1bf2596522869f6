//! [`Credentials`]: the driver's table of who may enrol. The driver calls it from its `admit` callback.

use std::collections::BTreeMap;

use elastic_protocol::{Incarnation, NodeId, WorkerId};

use crate::enrol::{Claim, EnrolRequest, Refusal};
use crate::job_secrets::JobSecrets;
use crate::secret::Secret;
use crate::token::{Fingerprint, Token, TokenKind};

/// Secrets of a job: one for hosts, one for clients, and one for each worker.
#[derive(Debug)]
pub struct Credentials {
    authority: Fingerprint,
    join: Secret,
    client: Secret,
    /// Workers' secrets are derived from it.
    master: Secret,
    workers: BTreeMap<WorkerId, Credential>,
    next: Incarnation,
}

/// A worker's secret, and the key that it has enrolled with. The same key may ask again, as its answer may
/// have been lost.
#[derive(Debug)]
struct Credential {
    secret: Secret,
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

    fn token(&self, kind: TokenKind, secret: &Secret) -> Token {
        Token { authority: self.authority, kind, secret: secret.clone() }
    }

    /// For hosts, and for clients on the driver's own machine.
    pub fn join_token(&self) -> Token {
        self.token(TokenKind::Join, &self.join)
    }

    /// For clients only.
    pub fn client_token(&self) -> Token {
        self.token(TokenKind::Client, &self.client)
    }

    /// A token that lets this worker enrol, once: the same for the same worker, whichever incarnation of
    /// the driver gives it.
    pub fn issue_worker(&mut self, worker: &WorkerId) -> Token {
        let name = postcard::to_stdvec(worker).expect("a worker's id has no part that can fail");
        let secret = self.master.derive(&name);
        let token = self.token(TokenKind::Worker(worker.clone()), &secret);
        self.workers.insert(worker.clone(), Credential { secret, spent_on: None });
        token
    }

    /// Withdraws a worker's token: the worker has ended, or never came.
    pub fn withdraw_worker(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// Decides over a request.
    ///
    /// # Errors
    /// [`Refusal`] is what the node is told.
    pub fn admit(&mut self, request: &EnrolRequest) -> Result<NodeId, Refusal> {
        let wrong = || Refusal::WrongSecret(request.claim.name());
        let right = match &request.claim {
            Claim::Agent(_) => request.secret.is(&self.join),
            Claim::Client => request.secret.is(&self.join) | request.secret.is(&self.client),
            Claim::Worker(worker) => {
                let spent = || Refusal::Spent(worker.clone());
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
    use std::time::{Duration, SystemTime};

    use elastic_protocol::{HostName, JobId};
    use uuid::Uuid;

    use super::*;

    fn request(claim: &Claim, token: &Token) -> EnrolRequest {
        let secret = token.secret.clone();
        EnrolRequest { claim: claim.clone(), secret, public_key: vec![4; 65] }
    }

    #[test]
    fn each_secret_opens_its_own_door_only() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let secrets = JobSecrets::new(JobId(Uuid::from_u128(5)), now).expect("made");
        let mut table = Credentials::new(Fingerprint([0; 32]), &secrets, Incarnation(5));
        let host = HostName::new("a").expect("a name");
        let worker = WorkerId { host: host.clone(), slot: 0, incarnation: Incarnation(1) };
        let (agent, client) = (Claim::Agent(host), Claim::Client);
        let claim = Claim::Worker(worker.clone());
        let (join, ask) = (table.join_token(), table.client_token());

        assert_eq!(table.admit(&request(&agent, &join)).expect("agent").incarnation.0, 5);
        assert_eq!(table.admit(&request(&client, &join)).expect("client").incarnation.0, 6);
        assert_eq!(table.admit(&request(&client, &ask)).expect("client").incarnation.0, 7);
        let refusal = table.admit(&request(&agent, &ask)).expect_err("a client's secret");
        assert_eq!(refusal, Refusal::WrongSecret(agent.name()));
        let refusal = table.admit(&request(&claim, &join)).expect_err("none was issued");
        assert_eq!(refusal, Refusal::Spent(worker.clone()));

        let token = table.issue_worker(&worker);
        assert!(table.admit(&request(&claim, &join)).is_err(), "a host's secret");
        assert!(table.admit(&request(&agent, &token)).is_err(), "a worker's secret");
        assert_eq!(table.admit(&request(&claim, &token)), Ok(NodeId::worker(&worker)));
        assert_eq!(table.admit(&request(&claim, &token)), Ok(NodeId::worker(&worker)), "same key");
        let other = EnrolRequest { public_key: vec![5; 65], ..request(&claim, &token) };
        assert_eq!(table.admit(&other), Err(Refusal::Spent(worker.clone())), "once");
        table.withdraw_worker(&worker);
        assert_eq!(table.admit(&request(&claim, &token)), Err(Refusal::Spent(worker)));
    }
}
