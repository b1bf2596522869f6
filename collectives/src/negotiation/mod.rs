//! Negotiation: ranks agree on calls by name before they run, as Horovod does. Calls may come in any order; all
//! that must be the same on all ranks is checked. The bindings of other languages offer Horovod's API through this
//! module.
//!
//! Each call costs one round: an all-gather of 24 bytes from each rank. A call runs, on every rank, in the round in
//! which the last rank has announced it. That may be a round of an earlier call, which other ranks have not made. Whoever
//! waits for the call is told at once then, and not in the call's own turn. A rank with incomplete calls goes on with
//! rounds, in which it announces the calls that were submitted meanwhile. With nothing to announce it waits a little
//! before each round, unless it is stuck and others are not. If all ranks are stuck for a while, and none of their
//! calls is complete, the calls fail instead of waiting for ever.

mod absent;
mod core;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;

use self::core::{NegotiationCore, RankWord, RoundVerdict};
use crate::communicator::{Communicator, CommunicatorExt};
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;

/// Back-off of a rank that has nothing to announce, in milliseconds: the increase for each further round, and the
/// maximum.
const PACE_MS: u64 = 1;
const PACE_MAX_MS: u64 = 10;

/// Most calls of a rank that are submitted and not settled; a caller waits for room before it submits more.
pub const CALLS_MAX: usize = 4096;

/// Longest text of one rank in an error message, in bytes.
const TEXT_BYTES: usize = 240;

/// The function of a call, run once all ranks have made the call.
pub type CallWork = Box<dyn FnOnce(&mut dyn Communicator) -> Result<(), CollectiveError> + Send>;

/// A submitted call.
pub struct NegotiatedCall {
    /// The kind of call, such as `allreduce`; names are unique within a kind.
    pub kind: String,
    /// The name; a call without one is identified by its number among the nameless calls of its kind.
    pub name: Option<String>,
    /// All that must be the same on all ranks, as text for people.
    pub what: String,
    /// The reduction, if the call does nothing else: ranks that have joined take part in it with zeros.
    pub reduces: Option<(ReduceOp, Vec<(DataType, usize)>)>,
    /// The function that carries out the call.
    pub work: CallWork,
}

/// The ticket of a submitted call, or of a join.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct CallTicket(u64);

/// Called with the result of a call that was settled in the rounds of another one.
pub type ResultObserver = Box<dyn FnOnce(Result<Settled, CollectiveError>) + Send>;

/// The outcome of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Settled {
    /// The call ran on every rank.
    Done,
    /// All ranks have joined.
    Joined {
        /// The rank that joined last.
        last: u32,
    },
    /// The call ran on no rank, for this reason.
    Refused(String),
}

/// The reason why a call was not submitted.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum SubmitError {
    /// A call of the same name is not done.
    #[error("{0} is in progress: wait for it, or give this call another name")]
    Duplicate(String),
}

/// The negotiation of one group. The training thread submits calls and waits; the thread of launched operations
/// runs rounds.
#[derive(Debug)]
pub struct Negotiation {
    inner: Mutex<NegotiationState>,
    changed: Condvar,
}

struct PendingCall {
    ticket: CallTicket,
    label: String,
    call: NegotiatedCall,
}

struct NegotiationState {
    core: NegotiationCore,
    /// Calls submitted, and not announced.
    queue: VecDeque<PendingCall>,
    /// Calls announced, and not complete, by key.
    pending: BTreeMap<u64, PendingCall>,
    /// Tickets that are not settled, and who is told the result if the rounds of another ticket settle it.
    open: BTreeMap<CallTicket, Option<ResultObserver>>,
    /// Results, each until its own run takes it.
    settled: BTreeMap<CallTicket, Result<Settled, CollectiveError>>,
    /// The ticket whose run makes the rounds.
    running: Option<CallTicket>,
    /// The open tickets for which a thread waits.
    awaited: BTreeSet<CallTicket>,
    /// Number of the threads that wait for room.
    without_room: usize,
    joining: Option<CallTicket>,
    is_closing: bool,
    tickets: u64,
    nameless: BTreeMap<String, u64>,
}

impl std::fmt::Debug for NegotiationState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Inner").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Negotiation {
    /// A negotiation among `world_size` ranks.
    pub fn new(world_size: u32) -> Negotiation {
        let inner = NegotiationState {
            core: NegotiationCore::new(world_size),
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            open: BTreeMap::new(),
            settled: BTreeMap::new(),
            running: None,
            awaited: BTreeSet::new(),
            without_room: 0,
            joining: None,
            is_closing: false,
            tickets: 0,
            nameless: BTreeMap::new(),
        };
        Negotiation { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, NegotiationState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether fewer than [`CALLS_MAX`] calls are open.
    pub fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Waits until there is room, but not longer than `patience`. A rank that waits for room is stuck.
    pub fn wait_for_room(&self, patience: Duration) {
        let mut inner = self.lock();
        inner.without_room += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(inner, patience, |inner| !inner.has_room());
        waited.unwrap_or_else(PoisonError::into_inner).0.without_room -= 1;
    }

    /// Submits a call; launch [`Negotiation::run`] with its ticket.
    ///
    /// # Errors
    /// `SubmitError::Duplicate`: a call of that name is not done.
    pub fn submit(&self, call: NegotiatedCall) -> Result<CallTicket, SubmitError> {
        let mut inner = self.lock();
        let label = match &call.name {
            Some(name) => format!("{}.{name}", call.kind),
            None => {
                let number = inner.nameless.entry(call.kind.clone()).or_default();
                *number += 1;
                format!("{}.noname.{number}", call.kind)
            }
        };
        let others = inner.queue.iter().chain(inner.pending.values());
        if others.into_iter().any(|other| other.label == label) {
            return Err(SubmitError::Duplicate(label));
        }
        let ticket = inner.next_ticket();
        inner.queue.push_back(PendingCall { ticket, label, call });
        self.changed.notify_all();
        Ok(ticket)
    }

    /// Announces that this rank has no more data. Like [`Negotiation::submit`], it returns a ticket to run.
    pub fn join(&self) -> CallTicket {
        let mut inner = self.lock();
        let ticket = inner.next_ticket();
        inner.joining = Some(ticket);
        self.changed.notify_all();
        ticket
    }

    /// Records that a thread waits for this ticket, and submits nothing before it is settled. Other threads may. Nothing is
    /// recorded of a ticket that is settled: the thread goes on.
    pub fn wait_begins(&self, ticket: CallTicket) {
        let mut inner = self.lock();
        if inner.open.contains_key(&ticket) {
            inner.awaited.insert(ticket);
            self.changed.notify_all();
        }
    }

    /// Has `observer` told the result if the rounds of another ticket settle this one; at once if they have. The result of
    /// a ticket that its own rounds settle comes from [`Negotiation::run`] alone.
    pub fn observe(&self, ticket: CallTicket, observer: ResultObserver) {
        let mut inner = self.lock();
        if let Some(slot) = inner.open.get_mut(&ticket) {
            *slot = Some(observer);
        } else if let Some(result) = inner.settled.get(&ticket).cloned()
            && inner.running != Some(ticket)
        {
            drop(inner);
            observer(result);
        }
    }

    /// Declares that no further call will be submitted.
    pub fn close(&self) {
        self.lock().is_closing = true;
        self.changed.notify_all();
    }

    /// Runs rounds until a ticket is settled; none if the rounds of another one have settled it.
    ///
    /// # Errors
    /// Any [`CollectiveError`]; after one, no call of the group completes.
    pub fn run(
        &self,
        ticket: CallTicket,
        group: &mut dyn Communicator,
    ) -> Result<Settled, CollectiveError> {
        self.lock().running = Some(ticket);
        let mut silent_rounds = 0;
        loop {
            {
                let mut inner = self.lock();
                if let Some(settled) = inner.settled.remove(&ticket) {
                    inner.running = None;
                    return settled;
                }
            }
            let word = self.next_word(silent_rounds);
            silent_rounds =
                if matches!(word, RankWord::Nothing { .. }) { silent_rounds + 1 } else { 0 };
            if let Err(error) = self.run_round(word, group) {
                // The other ranks' rounds fail likewise, each by itself. The names of the dropped calls are free
                // again.
                let mut inner = self.lock();
                let ended = (std::mem::take(&mut inner.queue), std::mem::take(&mut inner.pending));
                inner.open.remove(&ticket);
                inner.awaited.remove(&ticket);
                inner.running = None;
                self.changed.notify_all();
                drop(inner);
                drop(ended);
                return Err(error);
            }
        }
    }

    fn run_round(
        &self,
        word: RankWord,
        group: &mut dyn Communicator,
    ) -> Result<(), CollectiveError> {
        let words = exchange(word, group)?;
        let verdicts = self.lock().core.handle_round(&words);
        verdicts.iter().try_for_each(|verdict| self.carry_out(verdict, group))
    }

    /// The next word of this rank.
    fn next_word(&self, silent_rounds: u64) -> RankWord {
        let pace = Duration::from_millis((PACE_MS * silent_rounds).min(PACE_MAX_MS));
        let mut inner = self.lock();
        let is_silent = |inner: &mut NegotiationState| {
            let may_wait = !inner.is_stuck() || inner.core.stuck_rounds() > 0;
            inner.queue.is_empty() && may_wait && inner.joining.is_none()
        };
        if is_silent(&mut inner) {
            let waited = self.changed.wait_timeout_while(inner, pace, is_silent);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(next) = inner.queue.pop_front() {
            let takes_absent =
                next.call.reduces.as_ref().is_some_and(|(op, _)| absent::is_neutral(*op));
            let (key, digest) = (digest(&[&next.label]), next.call.digest());
            inner.pending.insert(key, next);
            return RankWord::Call { key, digest, takes_absent };
        }
        if inner.joining.is_some() {
            RankWord::Joined
        } else {
            RankWord::Nothing { is_stuck: inner.is_stuck() }
        }
    }

    fn carry_out(
        &self,
        verdict: &RoundVerdict,
        group: &mut dyn Communicator,
    ) -> Result<(), CollectiveError> {
        match verdict {
            RoundVerdict::Run { key, lead, absent } => {
                let pending = self.lock().pending.remove(key);
                if !absent.is_empty() {
                    let own = pending.as_ref().and_then(|pending| pending.call.reduces.as_ref());
                    let reduction = absent::tell(own, *lead, group)?;
                    if pending.is_none() {
                        absent::reduce_zeros(&reduction, group)?;
                    }
                }
                if let Some(PendingCall { ticket, call, .. }) = pending {
                    let result = (call.work)(group).map(|()| Settled::Done);
                    self.settle(ticket, result);
                }
            }
            RoundVerdict::Differs { key } => {
                let own = self.lock().pending.get(key).map(|pending| pending.call.what.clone());
                let texts = gather_texts(&own.unwrap_or_default(), group)?;
                let label = self.lock().pending.get(key).map(|pending| pending.label.clone());
                let why =
                    format!("ranks differ in {}: {}", label.unwrap_or_default(), by_rank(&texts));
                let refused = self.lock().pending.remove(key);
                self.refuse(refused, &why);
            }
            RoundVerdict::NeedsAll { key, absent } => {
                let why = format!(
                    "ranks {absent:?} have joined, and can take part in sums and averages only"
                );
                let refused = self.lock().pending.remove(key);
                self.refuse(refused, &why);
            }
            RoundVerdict::AllJoined { last } => {
                let mut inner = self.lock();
                // Some ranks have made calls that others have not: all restart the numbers of their nameless calls.
                inner.nameless.clear();
                let joining = inner.joining.take();
                drop(inner);
                if let Some(ticket) = joining {
                    self.settle(ticket, Ok(Settled::Joined { last: *last }));
                }
            }
            RoundVerdict::Stuck => {
                let own = self.lock().waits_for();
                let texts = gather_texts(&own, group)?;
                let why = format!("ranks wait for each other's calls: {}", by_rank(&texts));
                let (refused, joining) = self.lock().give_up();
                self.refuse(refused, &why);
                if let Some(ticket) = joining {
                    self.settle(ticket, Ok(Settled::Refused(why)));
                }
            }
        }
        Ok(())
    }

    /// Refuses calls that are no longer pending.
    fn refuse(&self, calls: impl IntoIterator<Item = PendingCall>, why: &str) {
        for PendingCall { ticket, call, .. } in calls {
            // Without the lock, since its drop may wait for a thread that wants the lock. Before its caller is told, which
            // may use the arrays then.
            drop(call);
            self.settle(ticket, Ok(Settled::Refused(why.to_owned())));
        }
    }

    fn settle(&self, ticket: CallTicket, result: Result<Settled, CollectiveError>) {
        let mut inner = self.lock();
        inner.awaited.remove(&ticket);
        let observer = inner.open.remove(&ticket).flatten();
        let is_own = inner.running == Some(ticket);
        let told = observer.filter(|_| !is_own).map(|observer| (observer, result.clone()));
        inner.settled.insert(ticket, result);
        self.changed.notify_all();
        drop(inner);
        if let Some((observer, result)) = told {
            observer(result);
        }
    }
}

impl NegotiationState {
    fn next_ticket(&mut self) -> CallTicket {
        self.tickets += 1;
        let ticket = CallTicket(self.tickets);
        self.open.insert(ticket, None);
        ticket
    }

    fn has_room(&self) -> bool {
        self.open.len() < CALLS_MAX
    }

    fn is_stuck(&self) -> bool {
        self.is_closing || self.without_room > 0 || !self.awaited.is_empty()
    }

    /// The calls that this rank waits for, as text for people.
    fn waits_for(&self) -> String {
        let mut labels: Vec<&str> =
            self.pending.values().map(|pending| pending.label.as_str()).collect();
        labels.extend(self.joining.map(|_| "join"));
        labels.join(", ")
    }

    /// Takes the announced calls and the join, which are to be refused since no rank goes on.
    fn give_up(&mut self) -> (Vec<PendingCall>, Option<CallTicket>) {
        // The ranks' numbers of nameless calls may differ now: all ranks restart them together.
        self.nameless.clear();
        (std::mem::take(&mut self.pending).into_values().collect(), self.joining.take())
    }
}

impl NegotiatedCall {
    fn digest(&self) -> u64 {
        let layout = self.reduces.as_ref().map(|(op, layout)| format!("{op} {layout:?}"));
        digest(&[&self.kind, &self.what, &layout.unwrap_or_default()])
    }
}

/// FNV-1a hash of 64 bits: the same on every machine and in every build.
fn digest(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The wire form of a word: tag, key, digest.
type Coded = [u64; 3];

const NOTHING: u64 = 0;
const STUCK: u64 = 1;
const JOINED: u64 = 2;
const CALL: u64 = 3;
const CALL_WITH_ABSENT: u64 = 4;

/// Exchanges the words of one round: sends this rank's word, and returns all ranks' words, by rank.
fn exchange(
    word: RankWord,
    group: &mut dyn Communicator,
) -> Result<Vec<RankWord>, CollectiveError> {
    let own: Coded = match word {
        RankWord::Nothing { is_stuck: false } => [NOTHING, 0, 0],
        RankWord::Nothing { is_stuck: true } => [STUCK, 0, 0],
        RankWord::Joined => [JOINED, 0, 0],
        RankWord::Call { key, digest, takes_absent: false } => [CALL, key, digest],
        RankWord::Call { key, digest, takes_absent: true } => [CALL_WITH_ABSENT, key, digest],
    };
    let mut all = vec![0_u64; own.len() * group.world_size() as usize];
    group.all_gather(&own, &mut all)?;
    let (coded, _) = all.as_chunks::<3>();
    Ok(coded.iter().map(word_of).collect())
}

fn word_of([tag, key, digest]: &Coded) -> RankWord {
    let (key, digest) = (*key, *digest);
    match *tag {
        CALL => RankWord::Call { key, digest, takes_absent: false },
        CALL_WITH_ABSENT => RankWord::Call { key, digest, takes_absent: true },
        JOINED => RankWord::Joined,
        tag => RankWord::Nothing { is_stuck: tag == STUCK },
    }
}

fn gather_texts(own: &str, group: &mut dyn Communicator) -> Result<Vec<String>, CollectiveError> {
    let mut fixed = [0_u8; TEXT_BYTES];
    let shown = own.len().min(TEXT_BYTES);
    fixed[..shown].copy_from_slice(&own.as_bytes()[..shown]);
    let mut all = vec![0_u8; TEXT_BYTES * group.world_size() as usize];
    group.all_gather(&fixed, &mut all)?;
    let texts = all.chunks(TEXT_BYTES).map(|text| String::from_utf8_lossy(text));
    Ok(texts.map(|text| text.trim_end_matches('\0').to_owned()).collect())
}

fn by_rank(texts: &[String]) -> String {
    let lines: Vec<String> = (0_u32..)
        .zip(texts)
        .map(|(rank, text)| format!("rank {rank}: {}", if text.is_empty() { "none" } else { text }))
        .collect();
    lines.join("; ")
}
