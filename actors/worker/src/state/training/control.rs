//! The port between the training thread and the actor thread: a few atomics for the events of every step,
//! channels for the rest. No lock is held while either thread waits. Used by `membership` and by the actor.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use elastic_checkpoint::{FileSystem, store_of};
use elastic_collectives::{LinkRates, OperationWatch};
use elastic_protocol::messages::{
    CollectivePosition, InvalidReport, LinkPace, MovedBytes, ReportedValues, TrainingSection,
    WorkerToDriver,
};
use elastic_protocol::{Deadlines, HostName, Stamp, Step};

use crate::state::core::{
    CheckpointOutcome, TrainingCommand, TrainingEvent, TrainingProgress, prefix,
};

use super::checkpoint::CheckpointDesk;
use super::digests::DigestDesk;
use super::error::{Error, Result};
use super::membership::GroupDeadlines;
use super::steps::StepSamples;
use super::undone::UndoneClock;

/// The state shared by both threads.
///
/// The boundary protocol is Dekker's: the training thread stores the boundary, then loads the flag; the actor
/// stores the flag, then loads the boundary. In the single order of sequentially consistent operations one of
/// the two sees the other's store. So the actor sees the boundary of a thread that did not see the flag, and
/// `Paused` never reports less than the thread has passed.
#[derive(Debug)]
pub struct ControlShared {
    boundary: AtomicU64,
    pause: AtomicBool,
    step: AtomicU64,
    form_ms: AtomicU64,
    path_ms: AtomicU64,
    store: StorePort,
    checkpoints: CheckpointDesk,
    operations: OperationWatch,
    links: LinkRates,
    /// The lock is held for a copy of some bytes only; so are those of the fields below.
    note: Mutex<String>,
    /// The bytes that the training thread moves in bulk.
    moved: Mutex<Option<MovedBytes>>,
    /// The numbers that the program has reported.
    reported: Mutex<ReportedValues>,
    /// The innermost section that the training thread is in.
    section: Mutex<Option<TrainingSection>>,
    /// Durations of the last steps.
    steps: Mutex<StepSamples>,
    /// Since when nothing was committed.
    undone: Mutex<UndoneClock>,
    digests: DigestDesk,
}

/// Finds the store that a directory of checkpoints stands in.
pub type StoreOf = fn(&Path) -> &'static dyn FileSystem;

/// The store of checkpoints, as the training thread reaches it.
#[derive(Clone, Copy, Debug)]
pub struct StorePort {
    /// The store that a directory stands in.
    pub of: StoreOf,
    /// Waits before the store is asked once more.
    pub pause: fn(Duration),
}

impl Default for ControlShared {
    fn default() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the members wait for the store with it")]
        let pause = std::thread::sleep;
        Self::with_store(StorePort { of: store_of, pause })
    }
}

impl ControlShared {
    /// The state shared by both threads, of a worker whose checkpoints are in another store than the system's files.
    pub fn with_store(store: StorePort) -> Self {
        let shared = Self {
            boundary: AtomicU64::new(0),
            pause: AtomicBool::new(false),
            step: AtomicU64::new(0),
            form_ms: AtomicU64::new(0),
            path_ms: AtomicU64::new(0),
            store,
            checkpoints: CheckpointDesk::new(store.of),
            operations: OperationWatch::default(),
            links: LinkRates::default(),
            note: Mutex::new(String::new()),
            moved: Mutex::default(),
            reported: Mutex::default(),
            section: Mutex::new(None),
            steps: Mutex::default(),
            undone: Mutex::default(),
            digests: DigestDesk::default(),
        };
        shared.set_deadlines(&Deadlines::default());
        shared
    }

    /// The store of checkpoints.
    pub(super) const fn store(&self) -> StorePort {
        self.store
    }

    /// Training thread: notes that this boundary is reached. Returns whether the thread must ask before it
    /// passes the boundary.
    pub(super) fn reach(&self, boundary: u64) -> bool {
        self.boundary.store(boundary, Ordering::SeqCst);
        self.pause.load(Ordering::SeqCst)
    }

    /// Actor, while the training thread is at rest: resets the boundary counter for a new generation.
    pub fn begin_generation(&self) {
        self.boundary.store(0, Ordering::SeqCst);
        self.checkpoints.begin_generation();
        self.operations.begin_generation();
        self.links.begin_generation();
        self.turn_to_section(None);
        self.steps().begin_generation();
    }

    fn steps(&self) -> MutexGuard<'_, StepSamples> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Training thread: a commit, or a check for host updates, ends `steps` steps. Returns whether they are measured; else
    /// they count with those that follow.
    pub(super) fn end_steps(&self, steps: u64, is_commit: bool) -> bool {
        self.steps().end_steps(self.operations.waited(), steps, is_commit)
    }

    /// Training thread: it goes on after a wait for the driver, which is no part of a step.
    pub(super) fn go_on(&self) {
        self.steps().go_on(self.operations.waited());
    }

    fn undone(&self) -> MutexGuard<'_, UndoneClock> {
        self.undone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Training thread: the state is committed, or the training function begins with it.
    pub(super) fn note_kept(&self) {
        self.undone().keep(self.step_clock());
    }

    /// Actor: the generation is aborted.
    pub fn note_end(&self) {
        self.undone().end(self.step_clock());
    }

    /// Training thread: the training since its last commit that the abort undoes, in milliseconds.
    pub(super) fn undone_ms(&self) -> u64 {
        // Milliseconds of one job's training fit into 64 bits.
        self.undone().undone(self.step_clock()).as_millis() as u64
    }

    /// The time on the clock that measures steps.
    pub(super) fn step_clock(&self) -> Duration {
        self.operations.waited().at
    }

    /// Training thread: it has waited for data, for so long.
    pub(super) fn note_data(&self, waited: Duration) {
        self.steps().note_data(waited);
    }

    /// Training thread: it has made a commit's copy since then, on the clock of `step_clock`.
    pub(super) fn note_commit_since(&self, since: Duration) {
        let took = self.step_clock().saturating_sub(since);
        self.steps().note_commit(took);
    }

    /// Training thread: this rank carries so many logical shards in each step of this generation.
    pub(super) fn carry_shards(&self, shards: u32) {
        self.steps().carry_shards(shards);
    }

    /// Orders to save checkpoints, and who carries them out.
    pub const fn checkpoints(&self) -> &CheckpointDesk {
        &self.checkpoints
    }

    /// Digests of the commits.
    pub(super) const fn digests(&self) -> &DigestDesk {
        &self.digests
    }

    /// Position of the training thread among its collectives.
    pub(super) const fn operations(&self) -> &OperationWatch {
        &self.operations
    }

    /// Rates at which data comes in from other hosts. The groups of all generations note them.
    pub const fn links(&self) -> &LinkRates {
        &self.links
    }

    /// The links with the lowest rates.
    fn link_paces(&self) -> Vec<LinkPace> {
        let pace = |reading: elastic_collectives::LinkReading| {
            let from = HostName::new(&reading.from).ok()?;
            Some(LinkPace { from, rate: reading.rate, load: reading.load })
        };
        self.links.readings().into_iter().filter_map(pace).take(LinkPace::LINKS_MAX).collect()
    }

    /// Actor: sets the pause flag, and returns the boundary that the training thread has reached.
    pub fn pause(&self) -> u64 {
        self.pause.store(true, Ordering::SeqCst);
        self.boundary.load(Ordering::SeqCst)
    }

    /// Whether the training thread must ask at its next boundary.
    #[cfg(test)]
    pub(in crate::state) fn must_ask(&self) -> bool {
        self.pause.load(Ordering::SeqCst)
    }

    /// Actor: clears the pause flag.
    pub fn unpause(&self) {
        self.pause.store(false, Ordering::SeqCst);
    }

    /// Actor: takes the deadlines that the driver has sent.
    pub fn set_deadlines(&self, deadlines: &Deadlines) {
        // This deadline ends before the driver's own. The driver only knows which workers are not ready; this
        // worker knows which peers it did not reach.
        let form_ms = u64::try_from((deadlines.form * 3 / 4).as_millis()).unwrap_or(u64::MAX);
        self.form_ms.store(form_ms, Ordering::Relaxed);
        let path_ms = u64::try_from(deadlines.data_path().as_millis()).unwrap_or(u64::MAX);
        self.path_ms.store(path_ms, Ordering::Relaxed);
    }

    /// Actor: the progress of training, with the digests since the last call.
    pub fn take_progress(&self) -> TrainingProgress {
        TrainingProgress { digests: self.digests.take(), ..self.progress() }
    }

    /// The progress of training.
    pub(super) fn progress(&self) -> TrainingProgress {
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let section = self.section.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let position = CollectivePosition { section, ..self.operations.position() };
        let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let step = Step(self.step.load(Ordering::Relaxed));
        let steps = self.steps().times();
        let moved = *self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = moved.or_else(|| self.checkpoints.saving());
        let links = self.link_paces();
        TrainingProgress { step, note, reported, position, steps, links, digests: None, moved }
    }

    /// Sets the bytes that the training thread moves in bulk; none: it moves none.
    pub(super) fn set_moved(&self, moved: Option<MovedBytes>) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = moved;
    }

    pub(super) fn group_deadlines(&self) -> GroupDeadlines {
        let of = |ms: &AtomicU64| Duration::from_millis(ms.load(Ordering::Relaxed));
        GroupDeadlines { form: of(&self.form_ms), path: of(&self.path_ms) }
    }

    pub(super) fn set_step(&self, step: Step) {
        self.step.store(step.0, Ordering::Relaxed);
    }

    /// Sets the note, cut to the length that fits into a progress message.
    pub(super) fn set_note(&self, text: &str) {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        note.clear();
        note.push_str(prefix(text, WorkerToDriver::NOTE_BYTES_MAX));
    }

    /// Sets a reported number, which goes with the next progress message.
    pub(super) fn report(&self, name: &str, value: f64) -> std::result::Result<(), InvalidReport> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).set(name, value)
    }

    /// Notes the section that the training thread is in. Returns the one before.
    pub(super) fn turn_to_section(
        &self,
        section: Option<TrainingSection>,
    ) -> Option<TrainingSection> {
        let mut current = self.section.lock().unwrap_or_else(PoisonError::into_inner);
        // Waiting for data is part of a step.
        let is_aside = |it: &TrainingSection| it.name != TrainingSection::DATA;
        match (current.as_ref().is_some_and(is_aside), section.as_ref().is_some_and(is_aside)) {
            (false, true) => self.steps().begin_section(self.operations.waited()),
            (true, false) => self.steps().end_section(self.operations.waited()),
            _ => {}
        }
        std::mem::replace(&mut current, section)
    }
}

/// Messages of the training thread to the actor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ThreadMessage {
    /// An event for `StateCore::handle_training`.
    Event(TrainingEvent),
    /// A question for `StateCore::handle_boundary`. The thread waits for the verdict as a command.
    Boundary {
        /// The generation.
        stamp: Stamp,
        /// The boundary that the thread has reached.
        boundary: u64,
    },
    /// Result of an order to save a checkpoint.
    Checkpoint(CheckpointOutcome),
    /// The first commit of a generation was made. It is reported before the next progress sample is due.
    FirstCommit,
}

/// Hands a message to the actor, from any thread.
pub(super) type Tell = std::sync::Arc<dyn Fn(ThreadMessage) + Send + Sync>;

/// The training thread's end of the port.
pub struct TrainingControl {
    tell: Tell,
    commands: mpsc::Receiver<TrainingCommand>,
    shared: std::sync::Arc<ControlShared>,
    why_gone: Box<dyn Fn() -> String>,
    checking: Option<(Duration, Check)>,
}

/// A check that is called periodically while the training thread waits.
type Check = Box<dyn Fn() -> Result<()>>;

impl TrainingControl {
    /// The most commands that can be under way to the training thread. The core sends a command only to a
    /// thread that waits, or will wait for it at its first call, and `GenerationEnd` may follow it.
    pub const COMMANDS_MAX: usize = 4;

    /// The training thread's end over the given channels. `tell` hands a message to the actor and never blocks.
    /// `why_gone` returns the cause of the actor's end, once the channel of its commands is closed.
    pub fn new(
        tell: impl Fn(ThreadMessage) + Send + Sync + 'static,
        commands: mpsc::Receiver<TrainingCommand>,
        shared: std::sync::Arc<ControlShared>,
        why_gone: impl Fn() -> String + 'static,
    ) -> Self {
        Self {
            tell: std::sync::Arc::new(tell),
            commands,
            shared,
            why_gone: Box::new(why_gone),
            checking: None,
        }
    }

    /// Calls `check` with this period while the training thread waits; an error of `check` ends the wait.
    /// Needed by a binding whose language handles signals on this thread.
    #[must_use]
    pub fn checking(mut self, period: Duration, check: impl Fn() -> Result<()> + 'static) -> Self {
        self.checking = Some((period, Box::new(check)));
        self
    }

    pub(super) fn tell(&self, message: ThreadMessage) {
        (self.tell)(message);
    }

    /// Hands messages to the actor from another thread, such as the progress thread.
    pub(super) fn teller(&self) -> Tell {
        std::sync::Arc::clone(&self.tell)
    }

    pub(super) fn event(&self, event: TrainingEvent) {
        self.tell(ThreadMessage::Event(event));
    }

    /// Waits for the next command. Ends when the actor does, so it cannot hang.
    pub(super) fn wait(&self) -> Result<TrainingCommand> {
        let Some((period, check)) = &self.checking else {
            return self.commands.recv().map_err(|_| self.gone());
        };
        loop {
            match self.commands.recv_timeout(*period) {
                Ok(command) => return Ok(command),
                Err(mpsc::RecvTimeoutError::Timeout) => check()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    pub(super) fn gone(&self) -> Error {
        Error::ActorsGone { reason: (self.why_gone)() }
    }

    pub(super) fn unexpected(&self, command: &TrainingCommand) -> Error {
        let reason = format!("it gave the training thread a command out of turn: {command:?}");
        Error::ActorsGone { reason }
    }

    pub(super) fn shared(&self) -> &ControlShared {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "two threads are what is tested")]
    fn a_boundary_passed_unseen_is_never_undercounted() {
        for _ in 0..2_000 {
            let shared = Arc::new(ControlShared::default());
            let training = Arc::clone(&shared);
            let thread = std::thread::spawn(move || {
                (1..=20).find(|boundary| training.reach(*boundary)).map_or(20, |asked| asked - 1)
            });
            let counted = shared.pause();
            let passed = thread.join().expect("it does not panic");
            assert!(counted >= passed, "told {counted}, passed {passed}");
        }
    }

    #[test]
    fn a_note_is_cut_at_a_character() {
        let shared = ControlShared::default();
        shared.set_note(&"€".repeat(100));
        assert_eq!(shared.progress().note.len(), 255);
    }

    #[test]
    fn what_was_reported_last_is_in_the_progress_and_what_was_refused_is_not() {
        let shared = ControlShared::default();
        shared.report("loss", 2.0).expect("allowed");
        shared.report("loss", 0.5).expect("allowed");
        assert!(shared.report("loss", f64::NAN).is_err());
        assert!(shared.report("", 1.0).is_err());
        shared.begin_generation();
        assert_eq!(shared.progress().reported.to_string(), "loss 0.5");
    }

    #[test]
    fn a_group_gives_up_before_the_driver_does() {
        let shared = ControlShared::default();
        let deadlines = Deadlines { form: Duration::from_secs(8), ..Deadlines::default() };
        shared.set_deadlines(&deadlines);
        let GroupDeadlines { form, path } = shared.group_deadlines();
        assert_eq!(form, Duration::from_secs(6), "three quarters");
        assert_eq!(path.as_millis(), deadlines.data_path().as_millis());
    }

    #[test]
    fn progress_names_the_last_step() {
        let shared = ControlShared::default();
        shared.set_step(Step(7));
        assert_eq!(shared.progress().step, Step(7));
    }

    #[test]
    fn what_happens_in_a_section_is_no_part_of_a_step() {
        let shared = ControlShared::default();
        let section = |name: &str| Some(TrainingSection { name: name.to_owned(), within_ms: None });
        shared.end_steps(1, true);
        for (name, data_us) in [("eval", 0), (TrainingSection::DATA, 5_000_000)] {
            shared.turn_to_section(section(name));
            shared.note_data(Duration::from_secs(5));
            shared.turn_to_section(None);
            shared.end_steps(1, true);
            let steps = shared.progress().steps.expect("a step was measured");
            assert_eq!(steps.data_us, data_us, "{name}");
        }
    }

    #[test]
    fn a_section_that_has_ended_leaves_its_step_measured() {
        let shared = ControlShared::default();
        let section = |name: &str| Some(TrainingSection { name: name.to_owned(), within_ms: None });
        shared.end_steps(1, true);
        for name in ["eval", TrainingSection::DATA] {
            assert_eq!(shared.turn_to_section(section(name)), None);
            assert_eq!(shared.turn_to_section(None), section(name));
        }
        shared.turn_to_section(section("eval"));
        shared.turn_to_section(section("checkpoint"));
        shared.turn_to_section(None);
        shared.end_steps(1, true);
        assert!(shared.progress().steps.is_some());
    }
}
