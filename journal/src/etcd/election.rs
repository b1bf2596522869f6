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
    Bytes, Compare, KeyValue, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse,
    LeaseRequest, Nothing, Number, Operation, RangeRequest, TxnRequest, end_of,
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
    /// What its job runs, as one line: two jobs must not share one place in etcd.
    #[serde(default)]
    pub program: String,
}

/// A moment in the history of the store.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Moment(i64);

/// A driver that would act.
#[derive(Debug)]
pub struct Candidate {
    gateway: Gateway,
    keys: Keys,
    id: String,
    card: DriverCard,
    ttl: Duration,
    takes_over_only: bool,
    since: Option<Moment>,
    lease: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: Number,
    lease: Lease,
    /// Whether the card of the driver stands among those that stand by, under this lease.
    is_announced: bool,
}

/// What became of a campaign.
#[derive(Debug)]
pub enum Campaign {
    /// This driver acts from now on.
    Won(Box<Leadership>),
    /// It stands by for this one; none: nobody acts, and there is no job to take over yet.
    StandsBy(Option<DriverCard>),
    /// The job that it stood by for is over: the last words of the driver that ended it.
    Over(Vec<u8>),
}

/// The right to act, until the lease ends.
#[derive(Debug)]
pub struct Leadership {
    gateway: Gateway,
    keys: Keys,
    won_at: Number,
    lease_id: Number,
    lease: Lease,
}

/// What stands in the store.
struct Sight {
    leader: Option<KeyValue>,
    over: Option<KeyValue>,
    has_job: bool,
    revision: Number,
}

impl Candidate {
    /// A driver of the job at this address. `ttl` is for how long nobody acts after the acting driver has vanished,
    /// rounded up to whole seconds; etcd gives 2 s at least with its default settings. `takes_over_only`: it
    /// begins no job.
    pub fn new(
        address: EtcdAddress,
        card: DriverCard,
        ttl: Duration,
        takes_over_only: bool,
    ) -> Self {
        let keys = Keys::new(&address.prefix);
        let gateway = Gateway::new(address);
        let id = Uuid::new_v4().to_string();
        Self { gateway, keys, id, card, ttl, takes_over_only, since: None, lease: None }
    }

    /// Since when it stands by: a job that has ended since then was its own. None before the first campaign.
    pub const fn since(&self) -> Option<Moment> {
        self.since
    }

    /// Has stood by, or acted, since then, as another candidate of the same process.
    #[must_use]
    pub const fn standing_since(mut self, since: Option<Moment>) -> Self {
        self.since = since;
        self
    }

    /// Tries once to be the driver that acts; stands by if another is. `clock` is the time since any fixed moment.
    ///
    /// # Errors
    /// [`JournalError`], of which [`JournalError::Io`] may pass.
    pub fn campaign(&mut self, clock: &dyn Fn() -> Duration) -> Result<Campaign, JournalError> {
        let held = self.hold_lease(clock)?;
        let sight = self.look()?;
        let since = *self.since.get_or_insert(Moment(sight.revision.0));
        if let Some(over) = sight.over.as_ref().filter(|over| over.mod_revision.0 > since.0) {
            return Ok(Campaign::Over(over.value.0.clone()));
        }
        match &sight.leader {
            // It was won before, by a call whose answer was lost.
            Some(leader) if leader.lease == held.id => {
                return Ok(self.won(held, leader.create_revision));
            }
            Some(leader) => {
                let card = read_card(&leader.value);
                self.announce(held)?;
                return Ok(Campaign::StandsBy(Some(card)));
            }
            None if self.takes_over_only && !sight.has_job => {
                self.announce(held)?;
                return Ok(Campaign::StandsBy(None));
            }
            None => {}
        }
        let (leader, over) = (self.keys.leader(), self.keys.over());
        let ended_at = sight.over.map_or(Number(0), |over| over.mod_revision);
        let request = TxnRequest {
            // A job that has ended since was looked is not begun again.
            compare: vec![Compare::absent(&leader), Compare::modified_at(&over, ended_at)],
            success: vec![
                Operation::put_leased(&leader, self.card_bytes()?, held.id),
                Operation::delete(&self.keys.standby(&self.id)),
            ],
            failure: vec![Operation::get(&leader)],
        };
        let response = self.gateway.transact(&request, PATIENCE)?;
        if response.succeeded {
            return Ok(self.won(held, response.header.revision));
        }
        match response.into_key_values().next().flatten() {
            // One member has carried it out and not answered, another was asked again.
            Some(leader) if leader.lease == held.id => Ok(self.won(held, leader.create_revision)),
            leader => {
                self.announce(held)?;
                Ok(Campaign::StandsBy(leader.map(|leader| read_card(&leader.value))))
            }
        }
    }

    fn look(&mut self) -> Result<Sight, JournalError> {
        let keys = [self.keys.leader(), self.keys.over(), self.keys.head()];
        let success = keys.iter().map(|key| Operation::get(key)).collect();
        let request = TxnRequest { success, ..TxnRequest::default() };
        let response = self.gateway.transact(&request, PATIENCE)?;
        let revision = response.header.revision;
        let mut found = response.into_key_values();
        let mut next = || found.next().flatten();
        let (leader, over, head) = (next(), next(), next());
        Ok(Sight { leader, over, has_job: head.is_some(), revision })
    }

    fn card_bytes(&self) -> Result<Vec<u8>, JournalError> {
        Ok(serde_json::to_vec(&self.card).map_err(std::io::Error::from)?)
    }

    /// Writes the card among those that stand by, once a lease.
    fn announce(&mut self, held: Held) -> Result<(), JournalError> {
        if held.is_announced {
            return Ok(());
        }
        let put = Operation::put_leased(&self.keys.standby(&self.id), self.card_bytes()?, held.id);
        let request = TxnRequest { success: vec![put], ..TxnRequest::default() };
        self.gateway.transact(&request, PATIENCE)?;
        self.lease = Some(Held { is_announced: true, ..held });
        Ok(())
    }

    fn won(&mut self, held: Held, won_at: Number) -> Campaign {
        self.lease = None;
        let (gateway, keys) = (self.gateway.clone(), self.keys.clone());
        let Held { id: lease_id, lease, .. } = held;
        Campaign::Won(Box::new(Leadership { gateway, keys, won_at, lease_id, lease }))
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
        let lease = Lease::new(seconds(granted.ttl), asked_at);
        let held = Held { id: granted.id, lease, is_announced: false };
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
    /// The job's journal, which only this driver writes, for as long as it acts.
    pub fn journal(&self) -> EtcdJournal {
        EtcdJournal::new(self.gateway.clone(), self.keys.clone(), self.won_at)
    }

    /// The job is over: takes its journal away and leaves these last words, at which those that stand by end too.
    ///
    /// # Errors
    /// [`JournalError`]; whoever acts next then finds the job as it is.
    pub fn finish(&mut self, last_words: Vec<u8>) -> Result<(), JournalError> {
        self.journal().finish(last_words)?;
        self.resign()
    }

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
        program: String::new(),
    })
}
