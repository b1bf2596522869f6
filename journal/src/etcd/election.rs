//! [`Candidate`]: a driver that would act. It stands by under a lease; the one that finds no leader key makes it, and
//! acts as long as the lease lasts. Driven by the driver's process.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::address::EtcdAddress;
use super::gateway::Gateway;
use super::journal::{EtcdJournal, Keys};
use super::lease::{Lease, LeaseEnd};
use super::wire::{
    Bytes, Compare, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
    Nothing, Number, Operation, RangeRequest, TxnRequest, end_of,
};
use crate::JournalError;

/// How long a call may take, over all members.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many drivers may stand by, as far as they are listed.
const MAX_STANDBYS: i64 = 64;

/// What a driver tells of itself to those who look into the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DriverCard {
    /// Where it listens, or will when it acts: `host:port`.
    pub address: String,
    /// The version of its program.
    pub version: String,
}

/// A driver that would act.
#[derive(Debug)]
pub struct Candidate {
    gateway: Gateway,
    keys: Keys,
    id: String,
    card: DriverCard,
    ttl: Duration,
    lease: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: Number,
    lease: Lease,
}

/// What became of a campaign.
#[derive(Debug)]
pub enum Campaign {
    /// This driver acts from now on.
    Won(Box<Leadership>),
    /// This one does.
    Leads(DriverCard),
}

/// The right to act, until the lease ends.
#[derive(Debug)]
pub struct Leadership {
    /// The job's journal.
    pub journal: EtcdJournal,
    pub(super) gateway: Gateway,
    pub(super) keys: Keys,
    pub(super) lease_id: Number,
    pub(super) lease: Lease,
}

impl Candidate {
    /// A driver of this job. `ttl` is for how long nobody acts after the acting driver has vanished, rounded up
    /// to whole seconds; etcd gives 2 s at least with its default settings.
    pub fn new(address: EtcdAddress, job: &str, card: DriverCard, ttl: Duration) -> Self {
        let keys = Keys::new(&address.prefix, job);
        let gateway = Gateway::new(address);
        Self { gateway, keys, id: Uuid::new_v4().to_string(), card, ttl, lease: None }
    }

    /// Tries once to be the driver that acts; stands by if another is. `clock` is the time since any fixed moment.
    ///
    /// # Errors
    /// [`JournalError`], of which [`JournalError::Io`] may pass.
    pub fn campaign(&mut self, clock: &dyn Fn() -> Duration) -> Result<Campaign, JournalError> {
        let held = self.hold_lease(clock)?;
        let (leader, standby) = (self.keys.leader(), self.keys.standby(&self.id));
        let card = serde_json::to_vec(&self.card).map_err(std::io::Error::from)?;
        let request = TxnRequest {
            compare: vec![Compare::absent(&leader)],
            success: vec![
                Operation::put_leased(&leader, card.clone(), held.id),
                Operation::delete(&standby),
            ],
            failure: vec![Operation::get(&leader), Operation::put_leased(&standby, card, held.id)],
        };
        let response = self.gateway.transact(&request, PATIENCE)?;
        if response.succeeded {
            return Ok(self.won(held, response.header.revision));
        }
        let found = response.responses.into_iter().find_map(|response| response.response_range);
        let leader = found.and_then(|range| range.kvs.into_iter().next()).unwrap_or_default();
        if leader.lease == held.id {
            // It was won before, by a call whose answer was lost.
            return Ok(self.won(held, leader.create_revision));
        }
        Ok(Campaign::Leads(read_card(&leader.value)))
    }

    fn won(&mut self, held: Held, won_at: Number) -> Campaign {
        self.lease = None;
        let (gateway, keys) = (self.gateway.clone(), self.keys.clone());
        let journal = EtcdJournal::new(gateway.clone(), keys.clone(), won_at);
        let Held { id: lease_id, lease } = held;
        Campaign::Won(Box::new(Leadership { journal, gateway, keys, lease_id, lease }))
    }

    fn hold_lease(&mut self, clock: &dyn Fn() -> Duration) -> Result<Held, JournalError> {
        if let Some(mut held) = self.lease {
            let asked_at = clock();
            if asked_at < held.lease.poll_timeout() {
                return Ok(held);
            }
            let answered = keep_alive(&mut self.gateway, held.id, PATIENCE)?;
            if held.lease.handle_answer(clock(), asked_at, answered).is_ok() {
                self.lease = Some(held);
                return Ok(held);
            }
        }
        let asked_at = clock();
        let whole_seconds = self.ttl.as_secs() + u64::from(self.ttl.subsec_nanos() > 0);
        let ttl = Number(i64::try_from(whole_seconds.max(1)).unwrap_or(i64::MAX));
        let granted: LeaseGrantResponse =
            self.gateway.call("/v3/lease/grant", &LeaseGrantRequest { ttl }, PATIENCE)?;
        let held = Held { id: granted.id, lease: Lease::new(seconds(granted.ttl), asked_at) };
        self.lease = Some(held);
        Ok(held)
    }

    /// Stands by no longer.
    ///
    /// # Errors
    /// [`JournalError`]; the lease then ends by itself.
    pub fn withdraw(mut self) -> Result<(), JournalError> {
        match self.lease.take() {
            Some(held) => revoke(&mut self.gateway, held.id),
            None => Ok(()),
        }
    }
}

impl Leadership {
    /// How the lease stands.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Asks for the lease to last longer, at most for `patience`. Returns how it stands then.
    ///
    /// # Errors
    /// [`LeaseEnd`]: this driver must stop acting now.
    pub fn renew(
        &mut self,
        clock: &dyn Fn() -> Duration,
        patience: Duration,
    ) -> Result<Lease, LeaseEnd> {
        let asked_at = clock();
        match keep_alive(&mut self.gateway, self.lease_id, patience) {
            Ok(duration) => self.lease.handle_answer(clock(), asked_at, duration)?,
            Err(_) => self.lease.handle_silence(clock())?,
        }
        Ok(self.lease)
    }

    /// The drivers that stand by, in a fixed order; asks at most for `patience`.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn standbys(&mut self, patience: Duration) -> Result<Vec<DriverCard>, JournalError> {
        let first = self.keys.standbys();
        let request = RangeRequest {
            range_end: Some(end_of(&first).as_str().into()),
            key: Bytes::from(first.as_str()),
            limit: Some(Number(MAX_STANDBYS)),
            revision: None,
        };
        let range = self.gateway.range(&request, patience)?;
        Ok(range.kvs.iter().map(|found| read_card(&found.value)).collect())
    }

    /// Gives up acting at once, so that another need not wait for the lease to end.
    ///
    /// # Errors
    /// [`JournalError`]; the lease then ends by itself.
    pub fn resign(&mut self) -> Result<(), JournalError> {
        revoke(&mut self.gateway, self.lease_id)
    }
}

fn keep_alive(
    gateway: &mut Gateway,
    id: Number,
    patience: Duration,
) -> Result<Duration, JournalError> {
    let answer: LeaseKeepAliveResponse =
        gateway.call("/v3/lease/keepalive", &LeaseRequest { id }, patience)?;
    Ok(seconds(answer.result.ttl))
}

fn revoke(gateway: &mut Gateway, id: Number) -> Result<(), JournalError> {
    gateway.call::<Nothing>("/v3/lease/revoke", &LeaseRequest { id }, PATIENCE).map(drop)
}

fn seconds(ttl: Number) -> Duration {
    Duration::from_secs(u64::try_from(ttl.0).unwrap_or(0))
}

/// A card that cannot be read is another version's: its text is better than nothing.
fn read_card(bytes: &Bytes) -> DriverCard {
    serde_json::from_slice(&bytes.0).unwrap_or_else(|_| DriverCard {
        address: String::from_utf8_lossy(&bytes.0).into_owned(),
        version: String::new(),
    })
}
