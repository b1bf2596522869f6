//! `SegmentOperation`: one operation over a segment, with the steps at which all ranks meet, and the accesses allowed
//! between them.
//!
//! Ranks go through steps together: a rank *arrives* at step s by publishing s in its slot, and goes on once all
//! have. Before it arrives at s + 1 it writes the data of that step into its own buffers of that step's parity. It
//! reads the data of step s from all ranks' buffers of the other parity. So no rank writes what another reads: the
//! last readers of the parity of s + 1 were done before they arrived at s. [`SegmentOperation::arrive`] borrows the
//! session mutably, so nothing read outlives its step.
//!
//! A rank that has to wait polls a few times, yields its processor, and then sleeps: see [`protocol`]. A sleeper
//! cannot watch its connections, so it sleeps for a few milliseconds at most and checks them in between; an abort of its
//! own process rings. The first rank to see a peer gone sets the poison word and rings, and all others learn it from there (G-12).

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use elastic_robust_lock::{LockMark, PeerLocks};
use elastic_shm_protocol as protocol;

use super::brief::BriefWords;
use super::layout::{Area, RankLine};
use super::memory::SharedSegment;
use super::patience::SpinPatience;
use super::stores::Stores;
use super::watchful::WatchfulBoard;
use super::{brief, poison};
use crate::abort::{AbortHandle, Sleepers};
use crate::clock;
use crate::error::{CollectiveError, PeerLoss};
use crate::tcp::Engine;
use crate::wire::{Bye, ByeCause, FrameError, FrameHeader, OperationSignature};

/// Nap of a sleeper between two checks of its connections and its abort word: this for each rank, since one that
/// sees an end tells all others, but not less than [`NAP_LEAST`] and not more than [`NAP_MOST`].
const NAP_OF_A_RANK: Duration = Duration::from_micros(500);
const NAP_LEAST: Duration = Duration::from_millis(1);
const NAP_MOST: Duration = Duration::from_millis(8);
/// A rank's state that lasts from one operation to the next.
#[derive(Debug)]
pub(super) struct SegmentSeat {
    pub(super) segment: Arc<SharedSegment>,
    /// The last step at which this rank has arrived.
    step: u32,
    patience: SpinPatience,
    nap: Duration,
    /// The locks of this host's workers, where this rank has one.
    locks: Option<PeerLocks>,
}

impl SegmentSeat {
    pub(super) fn new(segment: SharedSegment) -> SegmentSeat {
        let world = segment.layout().world();
        let patience = SpinPatience::new(world);
        let nap = NAP_OF_A_RANK.saturating_mul(world).clamp(NAP_LEAST, NAP_MOST);
        SegmentSeat { segment: Arc::new(segment), step: 0, patience, nap, locks: None }
    }

    /// Has an abort of this process end the sleep of rank `own` at once, and not after a nap. The death of another rank of this
    /// host does so, too, where both have a robust lock of one agent.
    pub(super) fn woken_by(&mut self, abort: &AbortHandle, own: u32) {
        let segment: Weak<SharedSegment> = Arc::downgrade(&self.segment);
        abort.wakes(segment);
        self.locks = abort.peer_locks().cloned();
        if let Some(locks) = &self.locks {
            self.lock_mark(own).store(locks.own().0, Ordering::Release);
        }
    }

    fn lock_mark(&self, rank: u32) -> &AtomicU32 {
        &self.segment.line(rank, 0).lock
    }

    /// A rank that has not arrived at `step`, and never will: its process has died.
    fn died_before(&self, step: u32) -> Option<u32> {
        let locks = self.locks.as_ref()?;
        (0..self.segment.layout().world()).find(|rank| {
            let mark = self.lock_mark(*rank).load(Ordering::Acquire);
            !self.has_arrived(*rank, step) && locks.has_died(LockMark(mark))
        })
    }

    /// Wakes all sleepers, so that they check the shared words.
    pub(super) fn ring(&self) {
        protocol::ring(&*self.segment);
    }

    /// Tells all ranks of the segment that the generation has ended here; only the first word counts.
    pub(super) fn poison(&self, by: u32, cause: ByeCause) {
        let word = poison::encode(by, cause);
        let poison = &self.segment.control().poison.0;
        // An earlier word of another rank explains more than this one's.
        let _ = poison.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
        self.ring();
    }

    fn has_arrived(&self, rank: u32, step: u32) -> bool {
        protocol::has_arrived(&*self.segment, rank, step)
    }
}

impl Sleepers for SharedSegment {
    /// The other ranks look, too, find nothing, and sleep on.
    fn wake(&self) {
        protocol::ring(self);
    }
}

/// The bytes that each rank must announce, by rank.
pub(super) type Announced<'a> = &'a dyn Fn(u32) -> u64;

/// One operation in progress.
pub(super) struct SegmentOperation<'a> {
    engine: &'a mut Engine,
    lane: &'a mut SegmentSeat,
    ours: FrameHeader,
    announced: Announced<'a>,
    /// Whether all ranks are known to be in this operation.
    entered: bool,
    deadline: Option<Instant>,
}

impl<'a> SegmentOperation<'a> {
    pub(super) fn new(
        engine: &'a mut Engine,
        lane: &'a mut SegmentSeat,
        operation: OperationSignature,
        announced: Announced<'a>,
    ) -> SegmentOperation<'a> {
        let (generation, sequence) = (engine.generation, engine.sequence);
        let ours = FrameHeader { generation, sequence, operation };
        SegmentOperation { engine, lane, ours, announced, entered: false, deadline: None }
    }

    pub(super) fn own(&self) -> u32 {
        self.engine.rank
    }

    pub(super) fn world(&self) -> u32 {
        self.lane.segment.layout().world()
    }

    /// A rank's contribution to one step, in bytes.
    pub(super) fn piece(&self) -> usize {
        self.lane.segment.layout().piece()
    }

    /// The stores that all ranks write with.
    pub(super) fn stores(&self) -> Stores {
        self.lane.segment.stores()
    }

    /// All ranks but this one, the next one first, so that not all read the same memory at once.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (own, world) = (self.own(), self.world());
        (1..world).map(move |distance| (own + distance) % world)
    }

    /// Writes `bytes` at `offset` of the buffer that this rank publishes with its next step.
    #[expect(unsafe_code, reason = "writes shared memory")]
    pub(super) fn offer(&mut self, area: Area, offset: usize, bytes: &[u8]) {
        let parity = protocol::parity(self.lane.step.wrapping_add(1));
        // SAFETY: only this rank writes its buffers. No rank reads those of the next step's parity before that
        // step: readers of the step before the current one have since arrived at the current one.
        unsafe { self.lane.segment.write(self.engine.rank, area, parity, offset, bytes) }
    }

    /// The data that `rank` published with the current step.
    #[expect(unsafe_code, reason = "reads shared memory")]
    pub(super) fn published(&self, rank: u32, area: Area, within: Range<usize>) -> &[u8] {
        let parity = protocol::parity(self.lane.step);
        // SAFETY: all ranks have arrived at the current step, so its writers are done; they write this
        // parity again only once this rank has arrived at the next step, which ends the borrow.
        unsafe { self.lane.segment.read(rank, area, parity, within) }
    }

    fn check_poison(&self, step: u32) -> Result<(), CollectiveError> {
        let poison = self.lane.segment.control().poison.0.load(Ordering::Acquire);
        match poison::decode(poison) {
            Some((by, cause)) => Err(self.given_up(step, by, cause)),
            None => Ok(()),
        }
    }

    /// Arrives at the operation's first step, which also publishes the operation, and checks that all ranks are in
    /// the same one.
    pub(super) fn enter(&mut self) -> Result<(), CollectiveError> {
        self.engine.check_abort()?;
        let (own, step) = (self.own(), self.lane.step.wrapping_add(1));
        self.due(own).store(self.line(own, step));
        self.arrive()?;
        let mismatch = self.mismatch(step);
        self.entered = true;
        mismatch.map_or(Ok(()), Err)
    }

    /// [`SegmentOperation::enter`] where this step is the operation's first one, and else [`SegmentOperation::arrive`].
    pub(super) fn enter_or_arrive(&mut self) -> Result<(), CollectiveError> {
        if self.entered { self.arrive() } else { self.enter() }
    }

    /// Publishes the offered data, and waits until all ranks have arrived.
    pub(super) fn arrive(&mut self) -> Result<(), CollectiveError> {
        let step = self.lane.step.wrapping_add(1);
        protocol::arrive(&*self.lane.segment, self.own(), step);
        if self.wait_awake(step) {
            self.lane.ring();
        } else {
            self.wait_asleep(step)?;
        }
        self.lane.step = step;
        Ok(())
    }

    /// Whether all ranks arrived while this rank was awake.
    fn wait_awake(&mut self, step: u32) -> bool {
        let SegmentSeat { segment, patience, .. } = &mut *self.lane;
        let mut seen = 0;
        patience.wait(|| protocol::all_arrived(&**segment, &mut seen, step))
    }

    fn wait_asleep(&mut self, step: u32) -> Result<(), CollectiveError> {
        let now = clock::now();
        let deadline = *self.deadline.get_or_insert_with(|| now + self.engine.operation_deadline);
        let board = WatchfulBoard::new(Arc::clone(&self.lane.segment), self.lane.locks.clone());
        let nap = self.lane.nap;
        let result = protocol::sleep(&board, nap, |first| {
            board.note_deaths();
            self.look(step, first, deadline).transpose()
        });
        result.map_err(|error| self.mismatch(step).unwrap_or(error))
    }

    /// A sleeper's check: `Some` once all have arrived, `None` to go on sleeping, or the error that ends the wait.
    fn look(
        &mut self,
        step: u32,
        first: bool,
        deadline: Instant,
    ) -> Result<Option<()>, CollectiveError> {
        if protocol::all_arrived(&*self.lane.segment, &mut 0, step) {
            return Ok(Some(()));
        }
        self.engine.attend()?;
        self.check_poison(step)?;
        if let Some(rank) = self.lane.died_before(step) {
            return Err(CollectiveError::PeerLost { rank, source: PeerLoss::Died });
        }
        // A wait shorter than a nap does not need the system calls.
        if !first {
            self.look_around(step, deadline)?;
        }
        Ok(None)
    }

    fn look_around(&mut self, step: u32, deadline: Instant) -> Result<(), CollectiveError> {
        let (lane, operation) = (&*self.lane, self.ours.operation.kind);
        self.engine.watch(self.ours.operation, |rank| !lane.has_arrived(rank, step))?;
        // Ranks that have arrived may be in another operation: that shows before all have arrived.
        if let Some(error) = self.mismatch(step) {
            return Err(error);
        }
        if clock::now() < deadline {
            return Ok(());
        }
        let waiting_for = self.awaited(step);
        if waiting_for.is_empty() {
            return Ok(());
        }
        Err(self.engine.deadline_passed(operation, waiting_for, self.entered))
    }

    fn awaited(&self, step: u32) -> Vec<u32> {
        (0..self.world())
            .filter(|rank| *rank != self.own() && !self.lane.has_arrived(*rank, step))
            .collect()
    }

    /// The error that follows from the poison word set by rank `by`.
    fn given_up(&self, step: u32, by: u32, cause: ByeCause) -> CollectiveError {
        let bye = Bye { generation: self.ours.generation, sequence: self.ours.sequence, cause };
        let awaited = self.awaited(step);
        self.engine.farewell(by, self.ours.operation.kind, bye, awaited)
    }

    fn line(&self, rank: u32, step: u32) -> &RankLine {
        self.lane.segment.line(rank, protocol::parity(step))
    }

    /// The words that `rank` must publish.
    fn due(&self, rank: u32) -> BriefWords {
        brief::encode(self.expected(rank).operation)
    }

    /// The header of the operation at `rank`.
    fn expected(&self, rank: u32) -> FrameHeader {
        let operation = OperationSignature { bytes: (self.announced)(rank), ..self.ours.operation };
        FrameHeader { operation, ..self.ours }
    }

    /// The mismatch error of the first rank that entered with `step` and another operation than the one due.
    fn mismatch(&self, step: u32) -> Option<CollectiveError> {
        if self.entered {
            return None;
        }
        for rank in (0..self.world()).filter(|rank| *rank != self.own()) {
            if !self.lane.has_arrived(rank, step) {
                continue;
            }
            let shown = BriefWords::load(self.line(rank, step));
            if shown != self.due(rank) {
                return Some(self.differs(rank, shown));
            }
        }
        None
    }

    fn differs(&self, rank: u32, shown: BriefWords) -> CollectiveError {
        match brief::decode(shown) {
            Some(operation) => {
                let theirs = FrameHeader { operation, ..self.ours };
                CollectiveError::mismatch(rank, self.expected(rank), theirs)
            }
            None => {
                let source = FrameError::Field { field: "operation", value: shown.brief };
                CollectiveError::Protocol { rank, source }
            }
        }
    }

    /// Refuses the length of the data that `rank` sends to this one if it is not `due` bytes.
    pub(super) fn expect_length(
        &self,
        rank: u32,
        due: u64,
        announced: u64,
    ) -> Result<(), CollectiveError> {
        if announced == due {
            return Ok(());
        }
        let header = |bytes: u64| {
            let operation = OperationSignature { bytes, ..self.ours.operation };
            FrameHeader { operation, ..self.ours }
        };
        Err(CollectiveError::mismatch(rank, header(due), header(announced)))
    }
}
