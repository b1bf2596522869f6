//! [`Candidate`]: a driver that wants to act. Driven by the driver's process. A candidate stands by under a
//! lease. The candidate that finds no leader key makes it, and acts as long as its lease lasts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::address::EtcdAddress;
use super::gateway::Gateway;
use super::head::{Head, SeenRecords};
use super::journal::{EtcdJournal, Keys, not_leading};
use super::lease::{Lease, LeaseEnd};
use super::wire::{
    Base64Bytes, Compare, EtcdOperation, KeyValue, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseRequest, Nothing, Number, TxnRequest,
};
use crate::JournalError;

/// Timeout of a call, over all members.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most standby drivers that are listed.
const MAX_STANDBYS: i64 = 64;

/// A driver's description of itself, for readers of the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DriverCard {
    /// The address where the driver listens, or will listen when it acts: `host:port`.
    pub address: String,
    /// The version of the driver's program.
    pub version: String,
    /// The job's program, as one line. It shows if two jobs share one place in etcd, which they must not.
    #[serde(default)]
    pub program: String,
    /// The id of the job that the driver leads; empty until its journal is open.
    #[serde(default)]
    pub job: String,
    /// The digest of the secret that seals the job's secrets; empty if they lie in the clear, and until the driver's
    /// journal is open.
    #[serde(default)]
    pub sealed_with: String,
}

/// A revision in the history of the store.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct StoreRevision(i64);

/// Identity of a leadership: its leader key differs from that of any other one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaderSign {
    won_at: Number,
    lease_id: Number,
}

/// A driver that wants to act.
#[derive(Debug)]
pub struct Candidate {
    gateway: Gateway,
    keys: Keys,
    id: String,
    card: DriverCard,
    ttl: Duration,
    takes_over_only: bool,
    since: Option<StoreRevision>,
    seen: SeenRecords,
    /// The last leadership of this process, which is over.
    led: Option<LeaderSign>,
    lease: Option<CandidateLease>,
}

#[derive(Clone, Copy, Debug)]
struct CandidateLease {
    id: Number,
    lease: Lease,
    /// Whether the driver's card is listed among the standby drivers under this lease.
    is_announced: bool,
}

/// Result of a campaign.
#[derive(Debug)]
pub enum Campaign {
    /// This driver acts from now on.
    Won(Box<Leadership>),
    /// This driver stands by, for the leader with this card. `None`: there is no leader, and no job to take
    /// over yet.
    StandsBy(Option<DriverCard>),
    /// The job that this driver stood by for has ended, with these last words of the driver that ended it.
    Over(Vec<u8>),
    /// The job that this driver led or stood by for is gone from the store, and no last words are there: this driver
    /// never begins another in its place.
    Vanished,
    /// The journal lacks records that this driver has seen stored. The driver never leads from such a journal.
    Outdated {
        /// Number of the last record.
        ends_with: u64,
        /// Number of the last record that was seen.
        seen: u64,
    },
}

/// The right to act, until the lease ends.
#[derive(Debug)]
pub struct Leadership {
    gateway: Gateway,
    keys: Keys,
    won_at: Number,
    lease_id: Number,
    lease: Lease,
    seen: SeenRecords,
}

/// The contents of the store.
struct Sight {
    leader: Option<KeyValue>,
    over: Option<KeyValue>,
    has_job: bool,
    /// The journal's head, if it can be read. A damaged one is refused when the journal is opened.
    head: Option<Head>,
    revision: Number,
}

impl Candidate {
    /// A driver of the job at this address. `ttl` is the leader lease: the delay before a standby takes over,
    /// rounded up to whole seconds. With default settings etcd gives at least 2 s. `takes_over_only`: the
    /// driver never begins a job.
    pub fn new(
        address: EtcdAddress,
        card: DriverCard,
        ttl: Duration,
        takes_over_only: bool,
    ) -> Self {
        let keys = Keys::new(&address.prefix);
        let gateway = Gateway::new(address);
        let id = Uuid::new_v4().to_string();
        let (since, seen, led, lease) = (None, SeenRecords::default(), None, None);
        Self { gateway, keys, id, card, ttl, takes_over_only, since, seen, led, lease }
    }

    /// The revision since which this driver stands by: a job that has ended after it was this driver's job.
    /// `None` before the first campaign.
    pub const fn since(&self) -> Option<StoreRevision> {
        self.since
    }

    /// Sets the revision since which an earlier candidate of the same process has stood by or acted.
    #[must_use]
    pub const fn standing_since(mut self, since: Option<StoreRevision>) -> Self {
        self.since = since;
        self
    }

    /// Shares the records that earlier candidates of the same process have seen, or stored when they led: this one
    /// begins no other job, and leads from no older journal.
    #[must_use]
    pub fn having_seen(mut self, seen: SeenRecords) -> Self {
        self.seen = seen;
        self
    }

    /// Names the last leadership of the same process, which is over: its key is no other leader's.
    #[must_use]
    pub const fn having_led(mut self, led: Option<LeaderSign>) -> Self {
        self.led = led;
        self
    }

    /// Tries once to become the driver that acts; stands by if another one acts. `clock` is the time since any
    /// fixed moment.
    ///
    /// # Errors
    /// [`JournalError`], of which [`JournalError::Io`] may pass.
    pub fn campaign(&mut self, clock: &dyn Fn() -> Duration) -> Result<Campaign, JournalError> {
        let held = self.hold_lease(clock)?;
        let sight = self.look_for_others()?;
        let now = StoreRevision(sight.revision.0);
        // The history of a store that was put back from a copy begins again before this driver came.
        let since = self.since.map_or(now, |since| since.min(now));
        self.since = Some(since);
        let seen = self.seen.last();
        if let Some(head) = sight.head {
            self.seen.note(head);
        }
        if let Some(over) = sight.over.as_ref().filter(|over| over.mod_revision.0 > since.0) {
            return Ok(Campaign::Over(over.value.0.clone()));
        }
        match &sight.leader {
            // An earlier call, whose answer was lost, has won the campaign.
            Some(leader) if leader.lease == held.id => {
                return Ok(self.won(held, leader.create_revision));
            }
            Some(leader) => {
                let card = read_card(&leader.value);
                self.announce(held)?;
                return Ok(Campaign::StandsBy(Some(card)));
            }
            None if seen > 0 && !sight.has_job => return Ok(Campaign::Vanished),
            None if self.takes_over_only && !sight.has_job => {
                self.announce(held)?;
                return Ok(Campaign::StandsBy(None));
            }
            None => {}
        }
        if let Some(Head { last: ends_with, .. }) = sight.head
            && ends_with < seen
        {
            return Ok(Campaign::Outdated { ends_with, seen });
        }
        let (leader, over) = (self.keys.leader(), self.keys.over());
        let ended_at = sight.over.map_or(Number(0), |over| over.mod_revision);
        // A job that has ended since the look must not begin again, nor one that has vanished since.
        let mut compare = vec![Compare::absent(&leader), Compare::modified_at(&over, ended_at)];
        if seen > 0 {
            compare.push(Compare::present(&self.keys.head()));
        }
        let request = TxnRequest {
            compare,
            success: vec![
                EtcdOperation::put_leased(&leader, self.card_bytes()?, held.id),
                EtcdOperation::delete(&self.keys.standby(&self.id)),
            ],
            failure: vec![EtcdOperation::get(&leader)],
        };
        let response = self.gateway.transact(&request, PATIENCE)?;
        if response.succeeded {
            return Ok(self.won(held, response.header.revision));
        }
        match response.into_key_values().next().flatten() {
            // One member has carried out the call without an answer, and another member was asked again.
            Some(leader) if leader.lease == held.id => Ok(self.won(held, leader.create_revision)),
            leader => {
                self.announce(held)?;
                Ok(Campaign::StandsBy(leader.map(|leader| read_card(&leader.value))))
            }
        }
    }

    /// The other driver that leads, without a campaign; none if nobody does.
    ///
    /// # Errors
    /// [`JournalError`], of which [`JournalError::Io`] may pass.
    pub fn leader(&mut self) -> Result<Option<DriverCard>, JournalError> {
        Ok(self.look_for_others()?.leader.map(|leader| read_card(&leader.value)))
    }

    /// Looks for other leaders than this process. Its own key is still there if the store did not answer when the lease was given
    /// back: it is removed now, so that nobody takes this driver for a leader, or waits for the lease to end.
    fn look_for_others(&mut self) -> Result<Sight, JournalError> {
        let mut sight = self.look()?;
        let sign = |leader: &KeyValue| LeaderSign {
            won_at: leader.create_revision,
            lease_id: leader.lease,
        };
        let found = sight.leader.as_ref().map(sign);
        if let Some(own) = found.filter(|sign| self.led == Some(*sign)) {
            let leader = self.keys.leader();
            let request = TxnRequest {
                compare: vec![Compare::created_at(&leader, own.won_at)],
                success: vec![EtcdOperation::delete(&leader)],
                ..TxnRequest::default()
            };
            self.gateway.transact(&request, PATIENCE)?;
            sight.leader = None;
        }
        Ok(sight)
    }

    fn look(&mut self) -> Result<Sight, JournalError> {
        let keys = [self.keys.leader(), self.keys.over(), self.keys.head()];
        let success = keys.iter().map(|key| EtcdOperation::get(key)).collect();
        let request = TxnRequest { success, ..TxnRequest::default() };
        let response = self.gateway.transact(&request, PATIENCE)?;
        let revision = response.header.revision;
        let mut found = response.into_key_values();
        let mut next = || found.next().flatten();
        let (leader, over, head) = (next(), next(), next());
        let has_job = head.is_some();
        let head = head.and_then(|head| Head::decode(&head.value.0).ok());
        Ok(Sight { leader, over, has_job, head, revision })
    }

    fn card_bytes(&self) -> Result<Vec<u8>, JournalError> {
        Ok(serde_json::to_vec(&self.card).map_err(std::io::Error::from)?)
    }

    /// Lists the card among the standby drivers, once for each lease.
    fn announce(&mut self, held: CandidateLease) -> Result<(), JournalError> {
        if held.is_announced {
            return Ok(());
        }
        let put =
            EtcdOperation::put_leased(&self.keys.standby(&self.id), self.card_bytes()?, held.id);
        let request = TxnRequest { success: vec![put], ..TxnRequest::default() };
        self.gateway.transact(&request, PATIENCE)?;
        self.lease = Some(CandidateLease { is_announced: true, ..held });
        Ok(())
    }

    fn won(&mut self, held: CandidateLease, won_at: Number) -> Campaign {
        self.lease = None;
        let (gateway, keys) = (self.gateway.clone(), self.keys.clone());
        let CandidateLease { id: lease_id, lease, .. } = held;
        let seen = self.seen.clone();
        Campaign::Won(Box::new(Leadership { gateway, keys, won_at, lease_id, lease, seen }))
    }

    fn hold_lease(&mut self, clock: &dyn Fn() -> Duration) -> Result<CandidateLease, JournalError> {
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
        let held = CandidateLease { id: granted.id, lease, is_announced: false };
        self.lease = Some(held);
        Ok(held)
    }

    /// Ends standing by, and gives the lease back.
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
    /// The job's journal. Only this driver can write it, for as long as it acts.
    pub fn journal(&self) -> EtcdJournal {
        EtcdJournal::new(self.gateway.clone(), self.keys.clone(), self.won_at, self.seen.clone())
    }

    /// Ends the job: removes its journal and stores these last words, at which standbys end too.
    ///
    /// # Errors
    /// [`JournalError`]; the next leader then finds the job as it is.
    pub fn finish(&mut self, last_words: Vec<u8>) -> Result<(), JournalError> {
        self.journal().finish(last_words)?;
        self.resign()
    }

    /// Identity of this leadership.
    pub const fn sign(&self) -> LeaderSign {
        LeaderSign { won_at: self.won_at, lease_id: self.lease_id }
    }

    /// The state of the lease.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Renews the lease, with timeout `patience`. Returns its new state.
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

    /// Leaves the lease unrenewed, since the driver's actors stand still. Returns its state.
    ///
    /// # Errors
    /// [`LeaseEnd`]: this driver must stop acting now.
    pub fn leave_unrenewed(&mut self, now: Duration) -> Result<Lease, LeaseEnd> {
        self.lease.handle_stall(now)?;
        Ok(self.lease)
    }

    /// The drivers that stand by, in a fixed order. The call has timeout `patience`.
    ///
    /// # Errors
    /// [`JournalError::Fenced`] and [`JournalError::NotLeading`]: the leader key is not this driver's any more, which must
    /// stop acting now. Other errors may pass.
    pub fn standbys(&mut self, patience: Duration) -> Result<Vec<DriverCard>, JournalError> {
        let leader = self.keys.leader();
        let request = TxnRequest {
            compare: vec![Compare::created_at(&leader, self.won_at)],
            success: vec![EtcdOperation::get_below(&self.keys.standbys(), MAX_STANDBYS)],
            failure: vec![EtcdOperation::get(&leader)],
        };
        let response = self.gateway.transact(&request, patience)?;
        if !response.succeeded {
            return Err(not_leading(response));
        }
        Ok(response.into_first_range().iter().map(|found| read_card(&found.value)).collect())
    }

    /// Gives the lease back at once, so that a standby need not wait for it to end.
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

/// Decodes a card. A card that cannot be decoded is from another version: its text is used as the address.
pub(super) fn read_card(bytes: &Base64Bytes) -> DriverCard {
    serde_json::from_slice(&bytes.0).unwrap_or_else(|_| DriverCard {
        address: String::from_utf8_lossy(&bytes.0).into_owned(),
        version: String::new(),
        program: String::new(),
        job: String::new(),
        sealed_with: String::new(),
    })
}
