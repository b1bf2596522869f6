//! `Worker`: a rank's place in the current generation, as the training function sees it. Made by the run
//! loop for each generation.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use elastic_protocol::messages::{InvalidReport, Placement, ReportedValues};
use elastic_protocol::{Stamp, Step};
use tracing::warn;

use super::batches::{Dataset, Sampler};
use super::checkpoint::SaveOrder;
use super::control::{ThreadMessage, TrainingControl};
use super::drawn::{ComparedCommit, DrawnPasses};
use super::error::Result;
use super::group::Group;
use super::life::{GenerationEnd, GenerationLife};
use super::shards::{BatchPlan, ShardedSteps};
use super::walked::{PassUnderWay, PassesUnderWay, WalkedPasses};
use crate::state::core::{TrainingCommand, TrainingEvent};
use crate::state::sampler::{DataPass, SampleLedger, TooManyPasses};

/// Ranks and sizes of one worker in one generation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct WorkerRanks {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
    pub(super) cross_rank: u32,
    pub(super) cross_size: u32,
    /// The job's logical shards, if the driver was told them.
    pub(super) shards: Option<u32>,
}

impl WorkerRanks {
    pub(super) const ALONE: Self = Self {
        rank: 0,
        size: 1,
        local_rank: 0,
        local_size: 1,
        cross_rank: 0,
        cross_size: 1,
        shards: None,
    };

    pub(super) fn new(placement: &Placement) -> Option<Self> {
        let table = &placement.assignment;
        let own = table.member(placement.rank)?;
        Some(Self {
            rank: placement.rank,
            size: table.world_size(),
            local_rank: own.local_rank,
            local_size: table.local_size(&own.worker.host),
            cross_rank: own.cross_rank,
            cross_size: table.cross_size(own.local_rank),
            shards: placement.shards.total(),
        })
    }
}

/// Warnings about passes that the user was given in this generation, each once.
#[derive(Debug, Default)]
struct ToldOfPasses {
    /// A finished pass is forgotten.
    forgotten: Cell<bool>,
    /// A pass begins anew whose place was forgotten.
    displaced: Cell<bool>,
    /// A pass is drawn from after the end of the generation.
    ended: Cell<bool>,
}

/// A rank's place in the current generation: its numbers, its collectives, its share of the data.
///
/// A new one is made for each generation; the training function gets it as an argument. Collectives block,
/// and end within milliseconds when the generation does. All ranks call the same ones in the same order.
///
/// Its collectives are those of [`Group`], the group of all ranks.
pub struct Worker {
    pub(super) place: WorkerRanks,
    group: Group,
    life: Rc<GenerationLife>,
    ledger: Rc<RefCell<SampleLedger>>,
    /// A copy of the ledger from the end of the generation on, where live state is kept: what is drawn then does not count.
    ledger_after_end: OnceCell<Rc<RefCell<SampleLedger>>>,
    /// The passes through data that were walked to their end in this generation.
    walked: RefCell<WalkedPasses>,
    under_way: RefCell<PassesUnderWay>,
    /// Warnings about passes that were given.
    told: ToldOfPasses,
    /// The passes that were drawn from since the last commit.
    passes: RefCell<DrawnPasses>,
    boundary: Cell<u64>,
    committed: Cell<bool>,
    /// Steps begun and checks made since the last commit.
    drawn: Cell<u64>,
    checked: Cell<u64>,
    /// Of them, those that were measured.
    measured: Cell<u64>,
}

impl Worker {
    pub(super) fn new(
        place: WorkerRanks,
        life: Rc<GenerationLife>,
        group: Group,
        ledger: Rc<RefCell<SampleLedger>>,
    ) -> Self {
        Self {
            place,
            group,
            life,
            ledger,
            ledger_after_end: OnceCell::new(),
            walked: RefCell::default(),
            under_way: RefCell::default(),
            told: ToldOfPasses::default(),
            passes: RefCell::default(),
            boundary: Cell::new(0),
            committed: Cell::new(false),
            drawn: Cell::new(0),
            checked: Cell::new(0),
            measured: Cell::new(0),
        }
    }

    /// This worker's number in the generation, from 0.
    pub const fn rank(&self) -> u32 {
        self.place.rank
    }

    /// The number of workers in the generation.
    pub const fn size(&self) -> u32 {
        self.place.size
    }

    /// This worker's number among the workers of its host.
    pub const fn local_rank(&self) -> u32 {
        self.place.local_rank
    }

    /// The number of workers of this host.
    pub const fn local_size(&self) -> u32 {
        self.place.local_size
    }

    /// The number of this host among the hosts that have a worker with this local rank.
    pub const fn cross_rank(&self) -> u32 {
        self.place.cross_rank
    }

    /// The number of hosts that have a worker with this local rank.
    pub const fn cross_size(&self) -> u32 {
        self.place.cross_size
    }

    /// The number of the generation; 0 without a driver. It only grows, and may skip numbers.
    pub fn generation(&self) -> u64 {
        self.life.stamp().generation.0
    }

    /// Shows a short text beside this worker in `elastic-node status` and `demo`: at most its
    /// first 256 bytes. The latest text is shown. It costs no message.
    pub fn note(&self, text: impl AsRef<str>) {
        if let Some(control) = self.life.control() {
            control.shared().set_note(text.as_ref());
        }
    }

    /// Reports a number by name, such as the loss, for `elastic-node status`, the job's page and its metrics. The
    /// last value of each name is shown. A call costs no message: values travel with the worker's progress, at most
    /// ten times a second. A worker has at most 16 names, of at most 64 bytes each.
    ///
    /// ```text
    /// worker.report("loss", loss)?;
    /// ```
    ///
    /// # Errors
    /// [`InvalidReport`] names a value that is not finite, or a name that cannot be taken; `?` ends the training
    /// function with it, and dropping it goes on with the value before.
    pub fn report(&self, name: &str, value: impl Into<f64>) -> Result<(), InvalidReport> {
        match self.life.control() {
            Some(control) => control.shared().report(name, value.into()),
            // A world of one: nobody is told, but a mistake shows as it would elsewhere.
            None => ReportedValues::default().set(name, value.into()),
        }
    }

    /// Gives this rank's share of a data set, batch by batch. Each sample goes to one rank once an epoch, over
    /// any changes of the world. The progress is part of the commit.
    ///
    /// `batch_size` is per worker. All ranks give a data set of the same length, and the same batch size, epoch number and seed: the
    /// driver compares them at each commit, and ends the job where they differ. Ranks that go through data of their own name their
    /// passes apart.
    ///
    /// Each rank is given its share, whoever else walks through the pass: one that only rank 0 goes through gives it a part of the
    /// samples, and nobody the rest. So validate on all ranks, and add up by `all_reduce`; or, to validate on one rank, go through the data
    /// set itself, without a sampler, while the others wait in a `broadcast` of the result or train on.
    ///
    /// A pass is known by its epoch number, name, seed and the data set's length, and gives its samples once. Walked through again it
    /// has none, which a warning says once: give the next pass another epoch number, such as the count of validations or of steps, or a
    /// name of its own (`.named(format!("validation {count}"))`). Passes under other epoch numbers do not disturb each other, side by
    /// side or one within another. So a training that begins again from epoch 0, over the same data, needs numbers that go on, or a name.
    ///
    /// A commit holds 1024 unfinished passes. Beyond that, the pass that would begin takes the place of one that was broken off,
    /// under the name's other epoch numbers, or panics; one that lost its place so and is walked again begins anew, with a
    /// warning. Of finished ones a commit holds 16,384, and 1024 of one name, where epochs that follow on each other count as
    /// one. So number evaluations over the same data by their count, from a base above all epochs (`1_000_000 + count`), or name
    /// them. Beyond that, single ones of high numbers are forgotten before long runs and low numbers, and a warning says so.
    ///
    /// A batch counts as done at the next commit once it was drawn, trained or not. What draws ahead loses samples after a loss:
    /// `peekable()`, `collect()`, a thread that loads the next batches. Draw a batch when the one before is trained; or draw some
    /// ahead, and commit only where all that were drawn are trained.
    ///
    /// ```text
    /// for batch in worker.sampler(&DATA, 32, state.epoch) { … }
    /// ```
    pub fn sampler<'a, D: Dataset + ?Sized>(
        &'a self,
        data: &'a D,
        batch_size: usize,
        epoch: u64,
    ) -> Sampler<'a, D> {
        Sampler::new(self, data, batch_size, epoch)
    }

    /// Goes through a data set by a batch plan: a step's global batch is fixed, and so are its logical shards. Ranks
    /// carry shards, so the trained state has the same bits in a world of any size, whether it divides the number of
    /// shards or not. See [`ShardedStep::all_reduce`](super::ShardedStep::all_reduce). The progress is part of the
    /// commit. As with [`sampler`](Self::sampler), a step counts as done at the next commit once it was drawn, all ranks give the
    /// same plan and epoch number, and a second pass under the same epoch number has no steps: give it another one, or its plan
    /// another name.
    ///
    /// ```text
    /// for step in worker.shards(&DATA, &plan, state.epoch)? { … }
    /// ```
    ///
    /// # Errors
    /// [`BatchPlan`](super::Error::BatchPlan) if the plan cannot be carried out: in a world larger than the number of shards,
    /// against the driver's `--shards`, or by a state that was trained with another plan. [`Passes`](super::Error::Passes) if
    /// 1024 other passes are unfinished, and none of them can give way: a commit holds no more.
    pub fn shards<'a, D: Dataset + ?Sized>(
        &'a self,
        data: &'a D,
        plan: &BatchPlan,
        epoch: u64,
    ) -> Result<ShardedSteps<'a, D>> {
        ShardedSteps::new(self, data, plan, epoch)
    }

    /// The job's logical shards, if the driver was told them (`--shards`).
    pub const fn job_shards(&self) -> Option<u32> {
        self.place.shards
    }

    /// The number of shards that the driver has dealt to each rank; empty if they are dealt evenly.
    pub fn job_shard_counts(&self) -> &[u32] {
        self.group.shard_counts()
    }

    /// Notes that this rank carries so many logical shards in each step. For programs that deal shards out without
    /// [`shards`](Self::shards) and [`Group::shard_deal`].
    pub fn carry_shards(&self, shards: u32) {
        self.group.carry_shards(shards);
    }

    /// A boundary without a commit: a planned change of the world may take effect here, and keeps live state.
    /// Every rank calls it at the same step. Call it, as `commit`, when a batch is done: the batch that the
    /// sampler gave last then counts as done.
    ///
    /// # Errors
    /// [`Interrupted`](super::Error::Interrupted) and [`Aborted`](super::Error::Aborted): return them with `?`. What is drawn
    /// after them does not count, and is given again.
    pub fn check_host_updates(&self) -> Result<()> {
        self.life.alive()?;
        self.checked.set(self.checked.get() + 1);
        self.end_steps(false);
        self.pass_boundary(false)
    }

    pub(super) fn control(&self) -> Option<&Rc<TrainingControl>> {
        self.life.control()
    }

    pub(super) fn stamp(&self) -> Stamp {
        self.life.stamp()
    }

    /// Waits until the generation has begun: all members stand, and the driver knows it. The training function may be entered
    /// before that, and each call waits for it by itself.
    ///
    /// # Errors
    /// [`Aborted`](super::Error::Aborted) when the generation has ended: return it with `?`.
    pub fn wait_for_begin(&self) -> Result<()> {
        self.life.alive()
    }

    /// Whether the generation has begun here, as far as was waited for it.
    pub(super) fn has_begun(&self) -> bool {
        self.life.has_begun()
    }

    /// Fails if the generation has ended here.
    pub(super) fn alive(&self) -> Result<()> {
        self.life.alive()
    }

    /// The order to save the commit with this step number, if there is one.
    pub(super) fn checkpoint_due(&self, step: Step) -> Option<(Rc<TrainingControl>, SaveOrder)> {
        let control = self.life.control()?;
        let order = control.shared().checkpoints().reach(self.life.stamp(), step)?;
        Some((Rc::clone(control), order))
    }

    /// The parts of the present commit that are compared. `None` without a driver, or without another rank with whose replica it is
    /// compared.
    pub(super) fn compared(&self) -> Option<ComparedCommit> {
        let passes = self.passes.borrow_mut().take();
        let control = self.life.control().filter(|_| self.size() > 1)?;
        Some(ComparedCommit { control: Rc::clone(control), is_named: self.rank() == 0, passes })
    }

    /// Notes that the training thread has waited for data, for so long: goodput has that time in a bucket of its own.
    /// A wait that is noted in a [`section`](Self::section) does not count, as the time of a section is no part of a
    /// step. A section called `data` notes its time by itself.
    pub fn note_data_wait(&self, waited: Duration) {
        if let Some(control) = self.life.control() {
            control.shared().note_data(waited);
        }
    }

    /// The time on the clock that measures steps; zero without a driver.
    pub(super) fn step_clock(&self) -> Duration {
        self.life.control().map_or(Duration::ZERO, |control| control.shared().step_clock())
    }

    /// Notes that a commit's copy was made since then, on that clock.
    pub(super) fn note_commit_since(&self, began: Duration) {
        if let Some(control) = self.life.control() {
            control.shared().note_commit_since(began);
        }
    }

    /// Notes that a commit was made, with this step number.
    pub(super) fn committed(&self, step: Step) -> Result<()> {
        self.end_steps(true);
        self.drawn.set(0);
        self.checked.set(0);
        self.measured.set(0);
        if let Some(control) = self.life.control() {
            control.shared().set_step(step);
            control.shared().note_kept();
            if !self.committed.replace(true) {
                control.tell(ThreadMessage::FirstCommit);
            }
        }
        self.pass_boundary(true)
    }

    /// Measures the steps that end here.
    fn end_steps(&self, is_commit: bool) {
        let Some(control) = self.life.control() else { return };
        let done = self.drawn.get().max(self.checked.get());
        let steps = done.saturating_sub(self.measured.get());
        if control.shared().end_steps(steps, is_commit) {
            self.measured.set(done);
        }
    }

    fn pass_boundary(&self, committed: bool) -> Result<()> {
        let Some(control) = self.life.control() else { return Ok(()) };
        let boundary = self.boundary.get() + 1;
        self.boundary.set(boundary);
        if !control.shared().reach(boundary) {
            return Ok(());
        }
        control.tell(ThreadMessage::Boundary { stamp: self.life.stamp(), boundary });
        Err(match control.wait() {
            Ok(TrainingCommand::Pass) => {
                control.shared().go_on();
                return Ok(());
            }
            Ok(TrainingCommand::Stop) => {
                let ledger = self.ledger.borrow().clone();
                let _ = self.ledger_after_end.set(Rc::new(RefCell::new(ledger)));
                self.life.ended(GenerationEnd::Interrupted { committed })
            }
            Ok(TrainingCommand::End) => {
                let reason = self.life.abort_reason();
                let reason = reason.unwrap_or_else(|| "the generation has ended".to_owned());
                self.life.ended(GenerationEnd::Aborted { reason })
            }
            Ok(command) => {
                self.life.ended(GenerationEnd::ActorsGone);
                control.unexpected(&command)
            }
            Err(error) => {
                self.life.ended(GenerationEnd::ActorsGone);
                error
            }
        })
    }

    /// Notes that a sampler gives a batch out, with which so many samples of the pass are done. The batch has `batch_size` samples on
    /// each rank, unless the course's plan decides it.
    pub(super) fn draw(&self, pass: &PassUnderWay, batch_size: Option<u64>, consumed: u64) {
        let PassUnderWay { course, epoch } = pass;
        if self.ledger_after_end.get().is_some() && !self.told.ended.replace(true) {
            self.tell(format!(
                "a batch of the pass {:?} is drawn after the generation has ended: it does not count, and is given again; return the \
                 error of `commit` and `check_host_updates` with `?`",
                course.name
            ));
        }
        self.drawn.set(self.drawn.get() + 1);
        self.passes.borrow_mut().draw(course, *epoch, batch_size);
        let forgotten = self.ledger().borrow_mut().advance(course, *epoch, consumed);
        if let Some((DataPass { name, .. }, epoch)) = forgotten
            && !self.told.forgotten.replace(true)
        {
            self.tell(format!(
                "epoch {epoch} of the pass {name:?} is done and forgotten, and so is one more for each that ends: a commit holds {} \
                 finished passes, and {} of one name, where epochs that follow on each other count as one; a program that comes back \
                 to one after a reset trains it again, unless its state says which are done; number evaluations by their count",
                SampleLedger::FINISHED_MAX,
                SampleLedger::RUNS_MAX
            ));
        }
    }

    /// Warns the user. The driver's log has it, too, since a program need not show its own.
    fn tell(&self, text: String) {
        warn!(rank = self.rank(), "{text}");
        if let Some(control) = self.life.control() {
            control.event(TrainingEvent::Warned { text });
        }
    }

    /// Notes that a pass begins, or goes on, and warns of what may be a mistake. It is under way until the result is dropped.
    pub(super) fn begin_pass(
        &self,
        course: DataPass,
        epoch: u64,
    ) -> Result<Rc<PassUnderWay>, TooManyPasses> {
        self.tell_other_data(&course, epoch);
        if self.begins_empty(&course, epoch) {
            let DataPass { name, length, .. } = &course;
            self.tell(format!(
                "epoch {epoch} of the pass {name:?} through {length} samples is done, and another pass over it has no samples: give the \
                 next pass another epoch number, or a name of its own by `named`"
            ));
        }
        let mut walked = self.walked.borrow_mut();
        let is_new = self.ledger().borrow().place(&course, epoch).is_none();
        if is_new && walked.is_displaced(&course, epoch) && !self.told.displaced.replace(true) {
            let DataPass { name, length, .. } = &course;
            self.tell(format!(
                "epoch {epoch} of the pass {name:?} through {length} samples begins anew: {} passes were begun after it and not walked to \
                 their end, and a commit holds the places of no more; draw from fewer passes in turn, or walk each to its end",
                SampleLedger::UNFINISHED_MAX
            ));
        }
        let mut under_way = self.under_way.borrow_mut();
        let is_walked = |course: &DataPass, epoch| under_way.has(course, epoch);
        if let Some((course, epoch)) =
            self.ledger().borrow_mut().begin(&course, epoch, is_walked)?
        {
            walked.displace(&course, epoch);
        }
        Ok(under_way.begin(course, epoch))
    }

    /// Whether a pass that was walked to its end in this generation begins again, which is to be told.
    pub(super) fn begins_empty(&self, course: &DataPass, epoch: u64) -> bool {
        let is_done =
            course.length > 0 && self.ledger().borrow().consumed(course, epoch) >= course.length;
        is_done && self.walked.borrow_mut().begins_again(course, epoch)
    }

    /// Notes that a pass has no more samples.
    pub(super) fn end_pass(&self, pass: &PassUnderWay) {
        self.walked.borrow_mut().end(&pass.course, pass.epoch);
    }

    /// The number of samples of a pass that are done. `gave_last`: the pass has given all samples here, so that it is done also
    /// if the ledger has forgotten it. An unfinished pass that is under way is never forgotten: the ledger lacks it only after it went
    /// back to a commit before the pass began.
    pub(super) fn place_of(&self, pass: &PassUnderWay, gave_last: bool) -> u64 {
        let lacking = if gave_last { pass.course.length } else { 0 };
        self.ledger().borrow().place(&pass.course, pass.epoch).unwrap_or(lacking)
    }

    /// Warns of a pass that begins although one of its name is unfinished through another number of samples: the ledger
    /// came from another rank, whose data set is another one than this rank's.
    fn tell_other_data(&self, course: &DataPass, epoch: u64) {
        if let Some((finished, of)) = self.ledger().borrow().other_length(course, epoch) {
            let (name, samples, rank) = (&course.name, course.length, self.rank());
            warn!(
                name,
                epoch,
                rank,
                "a pass through {samples} samples begins, and one of the same name and seed is at {finished} of {of}: if this \
                 rank's data set is another than the other ranks', they train apart; passes through different data sets are \
                 told apart by `named`"
            );
        }
    }

    /// The ledger that this generation's passes go by.
    pub(super) fn ledger(&self) -> &Rc<RefCell<SampleLedger>> {
        self.ledger_after_end.get().unwrap_or(&self.ledger)
    }

    /// The number of steps completed since the last commit. The last batch that was given out is not counted:
    /// it was still in work.
    pub(super) fn steps_beyond_commit(&self) -> u64 {
        self.drawn.get().saturating_sub(1).max(self.checked.get())
    }

    /// The end of the generation here, if it has ended; the first cause that was seen decides. `None`: the training
    /// function's own result counts.
    pub(super) fn end(&self) -> Option<GenerationEnd> {
        self.life.end()
    }

    /// Leaves the group, in good order if no error occurred.
    pub(super) fn close(&self) {
        self.group.close();
    }
}

impl Deref for Worker {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}
