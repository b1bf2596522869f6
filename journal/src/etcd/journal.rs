//! [`EtcdJournal`]: the journal of the driver that holds the leader key. Made by [`super::Candidate::campaign`].

use std::time::Duration;

use super::election::{DriverCard, read_card};
use super::gateway::Gateway;
use super::head::{Head, SeenRecords};
use super::wire::{
    Base64Bytes, Compare, EtcdOperation, KeyValue, Number, RangeRequest, TxnRequest, TxnResponse,
    end_of,
};
use crate::{Journal, JournalBatch, JournalError, JournalSnapshot, LoadedJournal, seal};

/// Timeout of a read or write, over all members.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes in a part. etcd accepts requests of 1.5 MiB; in JSON they are encoded as base64.
const PART_BYTES: usize = 512 << 10;

/// The most parts written in one transaction. etcd accepts 128 operations in one.
const BATCH_PARTS: usize = 64;

/// The most parts read in one call.
const PAGE_PARTS: i64 = 16;

/// A journal in etcd, written as long as its driver holds the leader key.
#[derive(Clone, Debug)]
pub struct EtcdJournal {
    gateway: Gateway,
    keys: Keys,
    /// The revision at which this driver made the leader key. It is unique to this leadership.
    won_at: Number,
    head: Option<StoredHead>,
    seen: SeenRecords,
}

/// The head that this driver has read or written last.
#[derive(Clone, Copy, Debug)]
struct StoredHead {
    head: Head,
    /// The revision of that write; 0 if there is none.
    at: Number,
}

/// The keys of one job.
#[derive(Clone, Debug)]
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self(format!("{prefix}/"))
    }

    pub(super) fn over(&self) -> String {
        format!("{}over", self.0)
    }

    pub(super) fn leader(&self) -> String {
        format!("{}leader", self.0)
    }

    pub(super) fn standbys(&self) -> String {
        format!("{}standby/", self.0)
    }

    pub(super) fn standby(&self, id: &str) -> String {
        format!("{}standby/{id}", self.0)
    }

    pub(super) fn head(&self) -> String {
        format!("{}head", self.0)
    }

    /// The key prefix of the parts of a record or snapshot with this number. Keys sort as the numbers do.
    fn numbered(&self, kind: &str, number: u64) -> String {
        format!("{}{kind}/{number:020}/", self.0)
    }
}

const RECORD: &str = "record";
const SNAPSHOT: &str = "snapshot";

impl EtcdJournal {
    pub(super) const fn new(
        gateway: Gateway,
        keys: Keys,
        won_at: Number,
        seen: SeenRecords,
    ) -> Self {
        Self { gateway, keys, won_at, head: None, seen }
    }

    /// Carries out the operations, if this driver still holds the leader key.
    fn write(&mut self, operations: Vec<EtcdOperation>) -> Result<(), JournalError> {
        let leader = self.keys.leader();
        let request = TxnRequest {
            compare: vec![Compare::created_at(&leader, self.won_at)],
            success: operations,
            failure: vec![EtcdOperation::get(&leader)],
        };
        let response = self.gateway.transact(&request, PATIENCE)?;
        if response.succeeded { Ok(()) } else { Err(not_leading(response)) }
    }

    /// Carries out the operations, of which one stores the head `next`, if this driver still holds the leader key and the
    /// stored head is the one that it knows.
    fn write_after(
        &mut self,
        known: StoredHead,
        next: Head,
        operations: Vec<EtcdOperation>,
    ) -> Result<StoredHead, JournalError> {
        let (leader, head) = (self.keys.leader(), self.keys.head());
        let request = TxnRequest {
            compare: vec![
                Compare::created_at(&leader, self.won_at),
                Compare::modified_at(&head, known.at),
            ],
            success: operations,
            failure: vec![EtcdOperation::get(&leader), EtcdOperation::get(&head)],
        };
        let response = self.gateway.transact(&request, PATIENCE)?;
        if response.succeeded {
            let at = if next == known.head { known.at } else { response.header.revision };
            return Ok(StoredHead { head: next, at });
        }
        let found: Vec<_> = response.clone().into_key_values().collect();
        match &found[..] {
            [Some(leader), Some(head)] if leader.create_revision == self.won_at => {
                // One member has carried out the call without an answer, and another member was asked again.
                if next != known.head && head.value.0 == next.encode() {
                    return Ok(StoredHead { head: next, at: head.mod_revision });
                }
                Err(replaced())
            }
            [Some(leader), None] if leader.create_revision == self.won_at => Err(replaced()),
            _ => Err(not_leading(response)),
        }
    }

    /// Names the driver, and its job, to those that stand by.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn introduce(&mut self, card: &DriverCard) -> Result<(), JournalError> {
        let card = serde_json::to_vec(card).map_err(std::io::Error::from)?;
        let leader = self.keys.leader();
        self.write(vec![EtcdOperation::change(&leader, card)])
    }

    fn head(&mut self) -> Result<StoredHead, JournalError> {
        if let Some(head) = self.head {
            return Ok(head);
        }
        let key = Base64Bytes::from(self.keys.head().as_str());
        let range =
            self.gateway.range(&RangeRequest { key, ..RangeRequest::default() }, PATIENCE)?;
        let head = match range.kvs.first() {
            Some(found) => {
                StoredHead { head: Head::decode(&found.value.0)?, at: found.mod_revision }
            }
            None => StoredHead { head: Head::empty(), at: Number(0) },
        };
        self.head = Some(head);
        Ok(head)
    }

    /// Reads all parts of one kind between two numbers, both included, joined and unsealed.
    fn read(&mut self, kind: &str, first: u64, last: u64) -> Result<Vec<Vec<u8>>, JournalError> {
        let end = Base64Bytes::from(end_of(&self.keys.numbered(kind, last)).as_str());
        let mut from = Base64Bytes::from(self.keys.numbered(kind, first).as_str());
        let mut whole = Vec::new();
        let mut parts = JoinedParts::new(kind, first);
        loop {
            let range = self.gateway.range(
                &RangeRequest {
                    key: from.clone(),
                    range_end: Some(end.clone()),
                    limit: Some(Number(PAGE_PARTS)),
                    revision: None,
                },
                PATIENCE,
            )?;
            let Some(latest) = range.kvs.last() else { break };
            // The next key in order: the last one with a zero byte appended.
            from.0.clone_from(&latest.key.0);
            from.0.push(0);
            for part in &range.kvs {
                whole.extend(parts.add(&self.keys, part)?);
            }
            if !range.more {
                break;
            }
        }
        parts.finish(last)?;
        Ok(whole)
    }

    /// Ends the job: no successor continues it, and `last_words` say how it ended. The leader key is deleted in
    /// the same transaction, so that no write that is still under way succeeds afterwards.
    pub(super) fn finish(&mut self, last_words: Vec<u8>) -> Result<(), JournalError> {
        self.head = None;
        let mut operations = vec![
            EtcdOperation::delete(&self.keys.head()),
            EtcdOperation::delete(&self.keys.leader()),
            EtcdOperation::put(&self.keys.over(), last_words),
        ];
        for kind in [RECORD, SNAPSHOT] {
            let (first, end) = (self.keys.numbered(kind, 0), self.keys.numbered(kind, u64::MAX));
            operations.push(EtcdOperation::delete_from(&first, &end));
        }
        self.write(operations)
    }

    /// Writes all parts but not the head. They are not valid until the head names them.
    fn write_parts(&mut self, parts: Vec<(String, Vec<u8>)>) -> Result<(), JournalError> {
        let mut pending: Vec<EtcdOperation> = Vec::new();
        let mut bytes = 0;
        for (key, value) in parts {
            if pending.len() == BATCH_PARTS || bytes + value.len() > PART_BYTES {
                self.write(std::mem::take(&mut pending))?;
                bytes = 0;
            }
            bytes += value.len();
            pending.push(EtcdOperation::put(&key, value));
        }
        if pending.is_empty() { Ok(()) } else { self.write(pending) }
    }

    fn parts_of(&self, kind: &str, number: u64, bytes: &[u8], parts: &mut Vec<(String, Vec<u8>)>) {
        let sealed = seal::seal(number, bytes);
        let prefix = self.keys.numbered(kind, number);
        let last = sealed.len().div_ceil(PART_BYTES) - 1;
        for (part, chunk) in sealed.chunks(PART_BYTES).enumerate() {
            // The last part is marked as the last, since parts of a longer, unfinished write may be left behind
            // it.
            let more = u8::from(part < last);
            parts.push((format!("{prefix}{part:05}"), [&[more], chunk].concat()));
        }
    }
}

impl Journal for EtcdJournal {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        self.head = None;
        let head = self.head()?.head;
        let mut loaded = LoadedJournal::default();
        if head.snapshot > 0 {
            let bytes = self.read(SNAPSHOT, head.snapshot, head.snapshot)?.pop();
            loaded.snapshot = bytes.map(|bytes| JournalSnapshot { upto: head.snapshot, bytes });
        }
        if head.first <= head.last {
            loaded.records = self.read(RECORD, head.first, head.last)?;
        }
        Ok(loaded)
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        let known = self.head()?;
        let head = known.head;
        if batch.first > head.last + 1 {
            self.write(Vec::new())?;
            let what = format!("it ends at record {}, not at {}", head.last, batch.first - 1);
            return Err(JournalError::Corrupt(what));
        }
        let mut parts = Vec::new();
        let numbered = (batch.first..).zip(&batch.records);
        for (number, record) in numbered.filter(|(number, _)| *number > head.last) {
            self.parts_of(RECORD, number, record, &mut parts);
        }
        let mut next = Head { last: head.last.max(batch.last()), ..head };
        let snapshot = batch.snapshot.as_ref().filter(|snapshot| snapshot.upto > head.snapshot);
        if let Some(JournalSnapshot { upto, bytes }) = snapshot {
            self.parts_of(SNAPSHOT, *upto, bytes, &mut parts);
            next = Head { first: upto + 1, last: next.last.max(*upto), snapshot: *upto };
        }
        // The head is read again after an error.
        self.head = None;
        self.write_parts(parts)?;
        // If there is nothing new to store, the empty write checks that this driver is still the leader.
        let mut operations = Vec::new();
        if next != head {
            operations.push(EtcdOperation::put(&self.keys.head(), next.encode()));
            if snapshot.is_some() {
                for (kind, first) in [(RECORD, next.first), (SNAPSHOT, next.snapshot)] {
                    let (from, to) = (self.keys.numbered(kind, 0), self.keys.numbered(kind, first));
                    operations.push(EtcdOperation::delete_from(&from, &to));
                }
            }
        }
        self.head = Some(self.write_after(known, next, operations)?);
        self.seen.note(next);
        Ok(())
    }
}

/// The error of a driver whose leader key is not the one that it made: the response has read the key first.
pub(super) fn not_leading(response: TxnResponse) -> JournalError {
    match response.into_key_values().next().flatten() {
        Some(leader) => JournalError::Fenced(read_card(&leader.value).address),
        None => JournalError::NotLeading(
            "its leader key is gone from etcd, and nobody holds it now".to_owned(),
        ),
    }
}

/// The error of a driver that finds another journal than its own, although it leads still.
fn replaced() -> JournalError {
    JournalError::Corrupt(
        "it is not the one that this driver has written last; was etcd's data put back?".to_owned(),
    )
}

/// Joins the parts of consecutive numbers, in the order in which a range gives them.
struct JoinedParts<'a> {
    kind: &'a str,
    number: u64,
    part: usize,
    joined: Vec<u8>,
}

impl<'a> JoinedParts<'a> {
    const fn new(kind: &'a str, first: u64) -> Self {
        Self { kind, number: first, part: 0, joined: Vec::new() }
    }

    /// Takes the next part; returns the record or snapshot that it completes.
    fn add(&mut self, keys: &Keys, part: &KeyValue) -> Result<Option<Vec<u8>>, JournalError> {
        let expected = format!("{}{:05}", keys.numbered(self.kind, self.number), self.part);
        if part.key.0 != expected.as_bytes() {
            // Keys after the last part of a number are left over from a write that was never finished.
            if self.part == 0 && part.key.0 < expected.into_bytes() {
                return Ok(None);
            }
            return Err(self.damaged());
        }
        let (more, chunk) = part.value.0.split_first().ok_or_else(|| self.damaged())?;
        self.joined.extend_from_slice(chunk);
        if *more == 1 {
            self.part += 1;
            return Ok(None);
        }
        let whole = seal::open(self.number, &self.joined).ok_or_else(|| self.damaged())?.to_vec();
        self.joined.clear();
        self.number += 1;
        self.part = 0;
        Ok(Some(whole))
    }

    fn finish(self, last: u64) -> Result<(), JournalError> {
        if self.number == last + 1 && self.part == 0 { Ok(()) } else { Err(self.damaged()) }
    }

    fn damaged(&self) -> JournalError {
        let (kind, number) = (self.kind, self.number);
        JournalError::Corrupt(format!("{kind} {number} in etcd is not what was written"))
    }
}
