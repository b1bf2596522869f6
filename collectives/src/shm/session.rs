//! One operation over a segment: the steps at which all ranks meet, and what may be touched between them.
//!
//! Ranks go through steps together: a rank *arrives* at step s by publishing s in its slot, and goes on
//! once all have. Before it arrives at s + 1 it writes, into its own buffers of the parity of s + 1, what
//! that step publishes, and reads what step s published from everyone's buffers of the other parity. So
//! nobody writes what another reads: the last readers of the parity of s + 1 were done before they
//! arrived at s. [`Session::arrive`] borrows the session mutably, so nothing read outlives its step.
//!
//! Who has to wait looks again a few times, gives its processor away, and then sleeps: see [`super::meet`].
//! A sleeper cannot watch its connections, so it sleeps for a few milliseconds at most and looks at them in
//! between; the first to see a peer gone sets the poison word and rings, and all others learn it from
//! there (G-12).

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::layout::Area;
use super::memory::Segment;
use super::patience::Patience;
use super::sync::{AtomicU64, Ordering};
use super::{brief, meet, poison};
use crate::clock;
use crate::error::CollectiveError;
use crate::tcp::Engine;
use crate::wire::{Bye, ByeCause, FrameHeader, Operation, WireError};

/// How long a sleeper goes without a look at its connections and its abort word: this for each rank, since
/// one that sees an end tells all others, but not less than [`NAP_LEAST`] and not more than [`NAP_MOST`].
const NAP_OF_A_RANK: Duration = Duration::from_micros(500);
const NAP_LEAST: Duration = Duration::from_millis(1);
const NAP_MOST: Duration = Duration::from_millis(8);
/// What a rank keeps from one operation to the next.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) segment: Arc<Segment>,
    /// The last step at which this rank has arrived.
    step: u32,
    patience: Patience,
    nap: Duration,
}

impl Lane {
    pub(super) fn new(segment: Segment) -> Lane {
        let world = segment.layout().world();
        let patience = Patience::new(world);
        let nap = NAP_OF_A_RANK.saturating_mul(world).clamp(NAP_LEAST, NAP_MOST);
        Lane { segment: Arc::new(segment), step: 0, patience, nap }
    }

    /// Wakes who sleeps, so that it looks around.
    pub(super) fn ring(&self) {
        meet::ring(&*self.segment);
    }

    /// Tells all ranks of the segment that this one gives up; only the first word counts.
    pub(super) fn poison(&self, by: u32, cause: ByeCause) {
        let word = poison::encode(by, cause);
        let poison = &self.segment.control().poison.0;
        // Where another rank was first, its word explains more than this one's.
        let _ = poison.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
        self.ring();
    }

    fn has_arrived(&self, rank: u32, step: u32) -> bool {
        meet::has_arrived(&*self.segment, rank, step)
    }
}

/// The bytes that each rank must announce.
pub(super) type Announced<'a> = &'a dyn Fn(u32) -> u64;

/// One operation in progress.
pub(super) struct Session<'a> {
    engine: &'a mut Engine,
    lane: &'a mut Lane,
    ours: FrameHeader,
    announced: Announced<'a>,
    /// Whether all ranks are known to be in this operation.
    entered: bool,
    deadline: Option<Instant>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        engine: &'a mut Engine,
        lane: &'a mut Lane,
        operation: Operation,
        announced: Announced<'a>,
    ) -> Session<'a> {
        let (generation, sequence) = (engine.generation, engine.sequence);
        let ours = FrameHeader { generation, sequence, operation };
        Session { engine, lane, ours, announced, entered: false, deadline: None }
    }

    pub(super) fn own(&self) -> u32 {
        self.engine.rank
    }

    pub(super) fn world(&self) -> u32 {
        self.lane.segment.layout().world()
    }

    /// All ranks but this one, the next one first, so that not all read the same memory at once.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (own, world) = (self.own(), self.world());
        (1..world).map(move |distance| (own + distance) % world)
    }

    /// Puts `bytes` at `offset` of what this rank publishes with its next step.
    #[expect(unsafe_code, reason = "writes shared memory")]
    pub(super) fn offer(&mut self, area: Area, offset: usize, bytes: &[u8]) {
        let parity = meet::parity(self.lane.step.wrapping_add(1));
        // SAFETY: only this rank writes its buffers, and nobody reads those of the next step's parity
        // before that step: readers of the step before the current one arrived at the current one since.
        unsafe { self.lane.segment.write(self.engine.rank, area, parity, offset, bytes) }
    }

    /// What `rank` published with the current step.
    #[expect(unsafe_code, reason = "reads shared memory")]
    pub(super) fn published(&self, rank: u32, area: Area, within: Range<usize>) -> &[u8] {
        let parity = meet::parity(self.lane.step);
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

    /// Arrives at the operation's first step, which publishes the operation too, and finds out whether all
    /// ranks mean the same one.
    pub(super) fn enter(&mut self) -> Result<(), CollectiveError> {
        self.engine.check_abort()?;
        let (own, step) = (self.own(), self.lane.step.wrapping_add(1));
        self.brief(own, step).store(self.due(own), Ordering::Relaxed);
        self.arrive()?;
        let mismatch = self.mismatch(step);
        self.entered = true;
        mismatch.map_or(Ok(()), Err)
    }

    /// [`Session::enter`] where this step is the operation's first one, and else [`Session::arrive`].
    pub(super) fn enter_or_arrive(&mut self) -> Result<(), CollectiveError> {
        if self.entered { self.arrive() } else { self.enter() }
    }

    /// Publishes what was offered, and waits until all ranks have.
    pub(super) fn arrive(&mut self) -> Result<(), CollectiveError> {
        let step = self.lane.step.wrapping_add(1);
        meet::arrive(&*self.lane.segment, self.own(), step);
        if self.wait_awake(step) {
            self.lane.ring();
        } else {
            self.wait_asleep(step)?;
        }
        self.lane.step = step;
        Ok(())
    }

    /// Whether all arrived while this rank was awake.
    fn wait_awake(&mut self, step: u32) -> bool {
        let Lane { segment, patience, .. } = &mut *self.lane;
        let mut seen = 0;
        patience.wait(|| meet::all_arrived(&**segment, &mut seen, step))
    }

    fn wait_asleep(&mut self, step: u32) -> Result<(), CollectiveError> {
        let now = clock::now();
        let deadline = *self.deadline.get_or_insert_with(|| now + self.engine.operation_deadline);
        let (segment, nap) = (Arc::clone(&self.lane.segment), self.lane.nap);
        let result =
            meet::sleep(&*segment, nap, |first| self.look(step, first, deadline).transpose());
        result.map_err(|error| self.mismatch(step).unwrap_or(error))
    }

    /// A sleeper's look: done, nothing, or why there is nothing to wait for any more.
    fn look(
        &mut self,
        step: u32,
        first: bool,
        deadline: Instant,
    ) -> Result<Option<()>, CollectiveError> {
        if meet::all_arrived(&*self.lane.segment, &mut 0, step) {
            return Ok(Some(()));
        }
        self.engine.check_abort()?;
        self.check_poison(step)?;
        // Whoever waits for less than a nap is spared the system calls.
        if !first {
            self.look_around(step, deadline)?;
        }
        Ok(None)
    }

    fn look_around(&mut self, step: u32, deadline: Instant) -> Result<(), CollectiveError> {
        let (lane, operation) = (&*self.lane, self.ours.operation.kind);
        self.engine.watch(self.ours.operation, |rank| !lane.has_arrived(rank, step))?;
        // Ranks that are here already may be in another operation: not all have to come to see that.
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

    /// What it means that rank `by` set the poison word.
    fn given_up(&self, step: u32, by: u32, cause: ByeCause) -> CollectiveError {
        let bye = Bye { generation: self.ours.generation, sequence: self.ours.sequence, cause };
        let awaited = self.awaited(step);
        self.engine.farewell(by, self.ours.operation.kind, bye, awaited)
    }

    fn brief(&self, rank: u32, step: u32) -> &AtomicU64 {
        &self.lane.segment.line(rank, meet::parity(step)).brief
    }

    /// The word that `rank` must show.
    fn due(&self, rank: u32) -> u64 {
        brief::encode(self.expected(rank).operation)
    }

    /// The header that the operation has at `rank`.
    fn expected(&self, rank: u32) -> FrameHeader {
        let operation = Operation { bytes: (self.announced)(rank), ..self.ours.operation };
        FrameHeader { operation, ..self.ours }
    }

    /// The first of the ranks that entered with `step` whose operation is not the one due.
    fn mismatch(&self, step: u32) -> Option<CollectiveError> {
        if self.entered {
            return None;
        }
        for rank in (0..self.world()).filter(|rank| *rank != self.own()) {
            if !self.lane.has_arrived(rank, step) {
                continue;
            }
            let shown = self.brief(rank, step).load(Ordering::Relaxed);
            if shown != self.due(rank) {
                return Some(self.differs(rank, shown));
            }
        }
        None
    }

    fn differs(&self, rank: u32, shown: u64) -> CollectiveError {
        match brief::decode(shown) {
            Some(operation) => {
                let theirs = FrameHeader { operation, ..self.ours };
                CollectiveError::mismatch(rank, self.expected(rank), theirs)
            }
            None => {
                let source = WireError::Field { field: "operation", value: shown };
                CollectiveError::Protocol { rank, source }
            }
        }
    }

    /// Refuses what `rank` sends to this one where it is not `due` bytes.
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
            let operation = Operation { bytes, ..self.ours.operation };
            FrameHeader { operation, ..self.ours }
        };
        Err(CollectiveError::mismatch(rank, header(due), header(announced)))
    }
}
