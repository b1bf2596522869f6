//! One operation over a segment: the steps at which all ranks meet, and what may be touched between them.
//!
//! Ranks go through steps together: a rank *arrives* at step s by publishing s in its slot, and goes on
//! once all have. Before it arrives at s + 1 it writes, into its own buffers of the parity of s + 1, what
//! that step publishes, and reads what step s published from everyone's buffers of the other parity. So
//! nobody writes what another reads: the last readers of the parity of s + 1 were done before they
//! arrived at s. [`Session::arrive`] borrows the session mutably, so nothing read outlives its step.
//!
//! Who has to wait looks again a few times, gives its processor away, and then sleeps on the bell. The
//! last to arrive rings it if anyone sleeps. A sleeper cannot watch its connections, so it sleeps for
//! a few milliseconds at most and looks at them in between; the first to see a peer gone sets the poison
//! word and rings, and all others learn it from there (G-12).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::futex;
use super::layout::{Area, HEADER_WORDS};
use super::memory::Segment;
use super::poison;
use crate::clock;
use crate::error::CollectiveError;
use crate::tcp::Engine;
use crate::wire::{Bye, ByeCause, FRAME_LENGTH, Frame, FrameHeader, Operation};

/// How long a sleeper goes without a look at its connections and its abort word: this for each rank, since
/// one that sees an end tells all others, but not less than [`NAP_LEAST`] and not more than [`NAP_MOST`].
const NAP_OF_A_RANK: Duration = Duration::from_micros(500);
const NAP_LEAST: Duration = Duration::from_millis(1);
const NAP_MOST: Duration = Duration::from_millis(8);
/// Where each rank can have a processor of its own, it looks at the condition for a microsecond or two before
/// it gives the processor away: two of them may be on one all the same, and then only that helps.
const PATIENCE: Patience = Patience { spins: 100, yields: 32 };
/// Where ranks outnumber processors, hardly any look helps, but to let another rank run may.
const PATIENCE_OVERSUBSCRIBED: Patience = Patience { spins: 20, yields: 16 };

/// What a rank does before it sleeps.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Looks at the condition, one after the other.
    spins: u32,
    /// Looks at the condition after giving the processor away.
    yields: u32,
}

/// What a rank keeps from one operation to the next.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) segment: Segment,
    /// The last step at which this rank has arrived.
    step: u32,
    patience: Patience,
    nap: Duration,
}

impl Lane {
    pub(super) fn new(segment: Segment) -> Lane {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
        let world = segment.layout().world();
        let enough = world as usize <= processors;
        let patience = if enough { PATIENCE } else { PATIENCE_OVERSUBSCRIBED };
        let nap = NAP_OF_A_RANK.saturating_mul(world).clamp(NAP_LEAST, NAP_MOST);
        Lane { segment, step: 0, patience, nap }
    }

    /// Wakes who sleeps, so that it looks around.
    pub(super) fn ring(&self) {
        let control = self.segment.control();
        if control.sleepers.0.load(Ordering::SeqCst) > 0 {
            control.bell.0.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&control.bell.0);
        }
    }

    /// Tells all ranks of the segment that this one gives up; only the first word counts.
    pub(super) fn poison(&self, by: u32, cause: ByeCause) {
        let word = poison::encode(by, cause);
        let poison = &self.segment.control().poison.0;
        // Where another rank was first, its word explains more than this one's.
        let _ = poison.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
        self.ring();
    }

    fn has_arrived(&self, rank: u32, step: u32) -> bool {
        let theirs = self.segment.slot(rank).step.load(Ordering::SeqCst);
        // Steps wrap; a peer is at most one step away.
        theirs.wrapping_sub(step) as i32 >= 0
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
        let parity = self.lane.step.wrapping_add(1) as usize & 1;
        // SAFETY: only this rank writes its buffers, and nobody reads those of the next step's parity
        // before that step: readers of the step before the current one arrived at the current one since.
        unsafe { self.lane.segment.write(self.engine.rank, area, parity, offset, bytes) }
    }

    /// What `rank` published with the current step.
    #[expect(unsafe_code, reason = "reads shared memory")]
    pub(super) fn published(&self, rank: u32, area: Area, within: Range<usize>) -> &[u8] {
        let parity = self.lane.step as usize & 1;
        // SAFETY: all ranks have arrived at the current step, so its writers are done; they write this
        // parity again only once this rank has arrived at the next step, which ends the borrow.
        unsafe { self.lane.segment.read(rank, area, parity, within) }
    }

    /// Arrives at the operation's first step, which publishes its header too, and finds out whether all
    /// ranks mean the same operation.
    pub(super) fn enter(&mut self) -> Result<(), CollectiveError> {
        self.engine.check_abort()?;
        let step = self.lane.step.wrapping_add(1);
        let own = self.own();
        let words = words(self.expected(own));
        for (word, value) in self.header(own, step).iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
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
        // Sequentially consistent, as are the sleepers' count and the look at the steps: either this rank
        // sees who sleeps, or who is about to sleep sees this rank.
        self.lane.segment.slot(self.own()).step.store(step, Ordering::SeqCst);
        if self.all_arrived(step) {
            self.lane.ring();
        } else {
            self.wait(step)?;
        }
        self.lane.step = step;
        Ok(())
    }

    fn all_arrived(&self, step: u32) -> bool {
        self.others().all(|rank| self.lane.has_arrived(rank, step))
    }

    fn wait(&mut self, step: u32) -> Result<(), CollectiveError> {
        for _ in 0..self.lane.patience.spins {
            std::hint::spin_loop();
            if self.all_arrived(step) {
                return Ok(());
            }
        }
        for _ in 0..self.lane.patience.yields {
            std::thread::yield_now();
            if self.all_arrived(step) {
                return Ok(());
            }
        }
        let now = clock::now();
        let deadline = *self.deadline.get_or_insert_with(|| now + self.engine.operation_deadline);
        self.lane.segment.control().sleepers.0.fetch_add(1, Ordering::SeqCst);
        let result = self.sleep(step, deadline);
        self.lane.segment.control().sleepers.0.fetch_sub(1, Ordering::SeqCst);
        result.map_err(|error| self.mismatch(step).unwrap_or(error))
    }

    fn sleep(&mut self, step: u32, deadline: Instant) -> Result<(), CollectiveError> {
        let mut first = true;
        loop {
            let bell = self.lane.segment.control().bell.0.load(Ordering::SeqCst);
            if self.all_arrived(step) {
                return Ok(());
            }
            self.engine.check_abort()?;
            let poison = self.lane.segment.control().poison.0.load(Ordering::SeqCst);
            if let Some((by, cause)) = poison::decode(poison) {
                return Err(self.given_up(step, by, cause));
            }
            let now = clock::now();
            // Whoever waits for less than a nap is spared the system calls.
            if !std::mem::take(&mut first) {
                self.look_around(step, now, deadline)?;
            }
            let timeout = self.lane.nap.min(deadline.saturating_duration_since(now));
            futex::wait(&self.lane.segment.control().bell.0, bell, timeout);
        }
    }

    fn look_around(
        &mut self,
        step: u32,
        now: Instant,
        deadline: Instant,
    ) -> Result<(), CollectiveError> {
        let (lane, operation) = (&*self.lane, self.ours.operation.kind);
        self.engine.watch(operation, |rank| !lane.has_arrived(rank, step))?;
        // Ranks that are here already may be in another operation: not all have to come to see that.
        if let Some(error) = self.mismatch(step) {
            return Err(error);
        }
        if now < deadline {
            return Ok(());
        }
        let waiting_for = self.awaited(step);
        if waiting_for.is_empty() {
            return Ok(());
        }
        let sequence = self.ours.sequence;
        Err(CollectiveError::DeadlinePassed { operation, sequence, waiting_for })
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

    fn header(&self, rank: u32, step: u32) -> &[AtomicU64; HEADER_WORDS] {
        &self.lane.segment.slot(rank).headers[step as usize & 1]
    }

    /// The header that `rank` must show.
    fn expected(&self, rank: u32) -> FrameHeader {
        let operation = Operation { bytes: (self.announced)(rank), ..self.ours.operation };
        FrameHeader { operation, ..self.ours }
    }

    /// The first of the ranks that entered with `step` whose header is not the one due.
    fn mismatch(&self, step: u32) -> Option<CollectiveError> {
        if self.entered {
            return None;
        }
        let mut due = words(self.ours);
        for rank in (0..self.world()).filter(|rank| *rank != self.own()) {
            if !self.lane.has_arrived(rank, step) {
                continue;
            }
            due[HEADER_WORDS - 1] = (self.announced)(rank).to_le();
            let shown = self.header(rank, step);
            let shown: [u64; HEADER_WORDS] =
                std::array::from_fn(|index| shown[index].load(Ordering::Relaxed));
            if shown != due {
                return Some(self.differs(rank, shown));
            }
        }
        None
    }

    fn differs(&self, rank: u32, shown: [u64; HEADER_WORDS]) -> CollectiveError {
        let mut bytes = [0; FRAME_LENGTH];
        bytes.copy_from_slice(bytemuck::cast_slice(&shown));
        match Frame::decode(&bytes) {
            Ok(Frame::Operation(theirs)) => self.mismatched(rank, self.expected(rank), theirs),
            Ok(Frame::Bye(bye)) => {
                self.engine.farewell(rank, self.ours.operation.kind, bye, vec![rank])
            }
            Err(source) => CollectiveError::Protocol { rank, source },
        }
    }

    fn mismatched(&self, rank: u32, ours: FrameHeader, theirs: FrameHeader) -> CollectiveError {
        CollectiveError::Mismatch {
            operation: ours.operation.kind,
            sequence: ours.sequence,
            rank,
            ours: Box::new(ours),
            theirs: Box::new(theirs),
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
        Err(self.mismatched(rank, header(due), header(announced)))
    }
}

/// A header as the words of a slot.
fn words(header: FrameHeader) -> [u64; HEADER_WORDS] {
    bytemuck::pod_read_unaligned(&Frame::Operation(header).encode())
}
