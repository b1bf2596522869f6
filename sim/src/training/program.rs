//! The training function of the simulated training threads, which tells the oracle each step of its life. Run by the product's
//! run loop; made by `nodes`.

use std::panic::resume_unwind;
use std::sync::Arc;

use elastic_collectives::ReduceOp;
use elastic_protocol::{GenerationId, Stamp, Term};
use elastic_worker::state::training::{BatchPlan, Error, Result, State, Worker};

use super::attempts::try_all;
use super::job::{DataAccess, TrainingJob};
use super::memory::MemoryHandle;
use super::model::{TrainedState, contribution, gradient};
use super::nodes::TERM;
use super::seat::{StepFate, ThreadSeat};
use super::turnstile::ThreadHalt;
use super::witness::{FunctionEnd, mark};
use crate::dataset::mix;

/// The message of a training function that fails by the plan.
pub(super) const FAILS: &str = "told to fail";
/// That of one that panics.
pub(super) const PANICS: &str = "told to panic";

/// That of one that calls `unwrap` on an error.
const UNWRAPS: &str = "called unwrap on an error that tells of the end of the generation";

/// The training function of one process.
pub(super) struct TrainingFunction {
    pub(super) job: TrainingJob,
    pub(super) seat: Arc<ThreadSeat>,
    pub(super) memories: Vec<MemoryHandle>,
}

/// The first end of the generation that the function was told of, and whether at a commit.
#[derive(Default)]
struct SeenEnd(Option<FunctionEnd>, bool);

impl TrainingFunction {
    /// One call of the function.
    pub(super) fn call(&self, worker: &Worker, state: &mut State<TrainedState>) -> Result<()> {
        let (seat, node) = (&self.seat, self.seat.number);
        self.enter(worker, state);
        let mut seen = SeenEnd::default();
        let result = self.epochs(worker, state, &mut seen);
        let is_aborted = seat.abort.aborted(TERM.0, worker.generation()).is_some();
        let end = match (seen.0, is_aborted, &result) {
            (Some(end), ..) => end,
            (None, true, _) => FunctionEnd::RolledBack,
            (None, false, Ok(())) => FunctionEnd::Finished,
            (None, false, Err(_)) => FunctionEnd::Failing,
        };
        // The present content counts as the commit if training has finished, or was interrupted at a check, where nothing is
        // committed.
        if end == FunctionEnd::Finished || (end == FunctionEnd::Kept && !seen.1) {
            let content = self.mark(state);
            let mut witness = seat.witness();
            witness.check_state(node, state);
            witness.committed(node, content, false);
        } else if self.job.scribbles && end != FunctionEnd::Failing {
            // Thrown away, with all that is not committed.
            state.consumed += 1;
            state.scratch.push(1.0);
            self.memories.iter().for_each(|memory| memory.write(0));
        }
        seat.witness().function_ends(node, end);
        // After an interrupt at a check, where nothing is committed, a panic fails the worker.
        let goes_back = end == FunctionEnd::RolledBack || (end == FunctionEnd::Kept && seen.1);
        match result {
            Err(error) if error.is_reset() && self.job.swallows => Ok(()),
            Err(error) if error.is_reset() && self.job.unwraps && goes_back => {
                resume_unwind(Box::new(UNWRAPS.to_owned()));
            }
            result => result,
        }
    }

    fn mark(&self, state: &TrainedState) -> u64 {
        let device: Vec<Vec<u8>> = self.memories.iter().map(MemoryHandle::content).collect();
        mark(state, &device)
    }

    /// Callbacks have counted in `resets`, by one each: the content is compared as it was before them.
    fn enter(&self, worker: &Worker, state: &State<TrainedState>) {
        let mut before = (**state).clone();
        let called = self.seat.witness().callbacks(self.seat.number);
        before.resets = before.resets.wrapping_sub(u64::from(called));
        let content = self.mark(&before);
        // A world of one without a driver has no term.
        let term = if self.seat.turnstile.is_some() { TERM } else { Term::default() };
        let stamp = Stamp { term, generation: GenerationId(worker.generation()) };
        let node = self.seat.number;
        self.seat.witness().entered(node, stamp, (state.step().0, content), &before);
    }

    fn epochs(
        &self,
        worker: &Worker,
        state: &mut State<TrainedState>,
        seen: &mut SeenEnd,
    ) -> Result<()> {
        while state.epoch < self.job.epochs {
            match self.job.access {
                DataAccess::Sampler { batch } => self.batches(worker, state, seen, batch)?,
                DataAccess::Shards { global_batch, shards, by_driver } => {
                    let plan = BatchPlan::new(global_batch).named(self.job.pass());
                    let plan = if by_driver { plan } else { plan.shards(shards) };
                    let plan = match self.job.order {
                        Some(seed) => plan.seed(seed),
                        None => plan.in_order(),
                    };
                    self.shards(worker, state, seen, &plan)?;
                }
            }
            state.epoch += 1;
            state.consumed = 0;
        }
        Ok(())
    }

    fn batches(
        &self,
        worker: &Worker,
        state: &mut State<TrainedState>,
        seen: &mut SeenEnd,
        batch: usize,
    ) -> Result<()> {
        let (job, epoch) = (&self.job, state.epoch);
        let sampler = worker.sampler(&job.samples, batch, epoch).named(job.pass());
        let sampler = match job.order {
            Some(seed) => sampler.seed(seed),
            None => sampler.in_order(),
        };
        let mut batches = sampler.into_iter();
        loop {
            let expected = batches.size_hint();
            let left = job.samples as u64 - state.consumed;
            let due = left.div_ceil(batch as u64 * u64::from(worker.size())) as usize;
            let Some(batch) = batches.next() else { break };
            self.require(expected == (due, Some(due)), "the number of batches that are left");
            self.step_begins(worker, state, seen)?;
            let mut trained = vec![0_u32; job.samples];
            let mut sum = [0_u64];
            for sample in batch.iter() {
                trained[sample] += 1;
                sum[0] = sum[0].wrapping_add(contribution(job, epoch, sample as u64));
            }
            let (own, all) = (batch.len(), batch.global_len());
            let weight = own as f64 * f64::from(worker.size()) / all.max(1) as f64;
            let is_same = batch.indices().len() == own && batch.is_empty() == (own == 0);
            self.require(is_same, "a batch's length");
            self.require((f64::from(batch.weight()) - weight).abs() < 1e-6, "a batch's weight");
            self.note(seen, worker.all_reduce(&mut trained, ReduceOp::Sum))?;
            self.note(seen, worker.all_reduce(&mut sum, ReduceOp::Sum))?;
            self.require(trained.iter().sum::<u32>() as usize == all, "a step's samples");
            state.counts.iter_mut().zip(&trained).for_each(|(count, more)| *count += more);
            state.sum = state.sum.wrapping_add(sum[0]);
            state.consumed += all as u64;
            self.step_ends(worker, state, seen)?;
        }
        Ok(())
    }

    fn shards(
        &self,
        worker: &Worker,
        state: &mut State<TrainedState>,
        seen: &mut SeenEnd,
        plan: &BatchPlan,
    ) -> Result<()> {
        let (job, epoch) = (&self.job, state.epoch);
        for step in worker.shards(&job.samples, plan, epoch)? {
            self.step_begins(worker, state, seen)?;
            let weights = state.weights.first().copied().unwrap_or_default();
            let mut trained = vec![0_u32; job.samples];
            let reduced = step.all_reduce(ReduceOp::Sum, |shard| {
                self.require(shard.len() == shard.indices().len(), "a shard's length");
                shard.iter().for_each(|sample| trained[sample] += 1);
                let samples = shard.iter().map(|sample| sample as u64);
                Ok(gradient(job, epoch, samples, (weights, shard.seed())))
            });
            let reduced = self.note(seen, reduced)?;
            self.note(seen, worker.all_reduce(&mut trained, ReduceOp::Sum))?;
            self.require(
                trained.iter().sum::<u32>() as usize == step.global_len(),
                "a step's samples",
            );
            state.counts.iter_mut().zip(&trained).for_each(|(count, more)| *count += more);
            state.descend(&reduced);
            state.consumed += step.global_len() as u64;
            self.step_ends(worker, state, seen)?;
        }
        Ok(())
    }

    fn require(&self, holds: bool, what: &str) {
        if !holds {
            self.seat.witness().violated(format!("process {}: {what} is wrong", self.seat.number));
        }
    }

    /// Notes the end of the generation that a call tells.
    fn note<T>(&self, seen: &mut SeenEnd, result: Result<T>) -> Result<T> {
        if let Err(Error::Aborted { .. }) = &result {
            seen.0.get_or_insert(FunctionEnd::RolledBack);
        }
        result
    }

    /// A batch was given out: the plan may have something in store.
    fn step_begins(
        &self,
        worker: &Worker,
        state: &mut State<TrainedState>,
        seen: &mut SeenEnd,
    ) -> Result<()> {
        let (seat, node) = (&self.seat, self.seat.number);
        seat.witness().drew(node);
        let bits = mix(mix(self.job.seed, state.steps), state.consumed);
        if bits.is_multiple_of(4) {
            let name = if bits.is_multiple_of(8) { "data" } else { "evaluation" };
            let _section = worker.section(name, None);
            seat.halt_at(ThreadHalt::Between);
        }
        if self.job.tries_all && (bits >> 8).is_multiple_of(5) {
            let tried = try_all(worker, |holds, what| self.require(holds, what));
            self.note(seen, tried)?;
        }
        let fate = seat.orders().fate.take();
        match fate {
            Some(StepFate::Fail) => return Err(Error::user(FAILS)),
            Some(StepFate::Panic) => {
                let is_aborted = seat.abort.aborted(TERM.0, worker.generation()).is_some();
                let end = if is_aborted { FunctionEnd::RolledBack } else { FunctionEnd::Failing };
                seat.witness().function_ends(node, end);
                resume_unwind(Box::new(PANICS.to_owned()));
            }
            Some(StepFate::Corrupt) => {
                if seat.witness().flips(node) {
                    state.corrupt();
                }
            }
            Some(StepFate::GiveUp) if worker.size() > 1 => {
                let other = (worker.rank() + 1) % worker.size();
                let pending = self.note(seen, worker.send_async(vec![1_u8], other))?;
                seat.witness().blames(node, None);
                pending.abort("gives up");
                let sent = pending.wait();
                seen.0.get_or_insert(FunctionEnd::RolledBack);
                sent?;
            }
            Some(StepFate::LoseCopy) => seat.orders().copy_fails = !self.memories.is_empty(),
            Some(StepFate::GiveUp) | None => {}
        }
        Ok(())
    }

    /// The batch is trained.
    fn step_ends(
        &self,
        worker: &Worker,
        state: &mut State<TrainedState>,
        seen: &mut SeenEnd,
    ) -> Result<()> {
        let (job, seat, node) = (&self.job, &self.seat, self.seat.number);
        state.steps += 1;
        if job.has_own_values {
            state.own = vec![worker.rank() as f32, state.steps as f32, 1.5];
        }
        state.dress(job);
        let bits = mix(state.sum, state.steps);
        self.memories.iter().for_each(|memory| memory.write(bits));
        let text = format!("{} of {}", state.consumed, state.epoch);
        worker.note(&text);
        seat.witness().facts(node).note = text;
        worker.report("loss", state.steps as f64)?;
        seat.witness().facts(node).reported = Some(state.steps as f64);
        if worker.report("loss", f64::NAN).is_ok() {
            self.require(false, "a value that is no number");
        }
        seat.halt_at(ThreadHalt::Between);
        let is_aborted = || seat.abort.aborted(TERM.0, worker.generation()).is_some();
        if job.check_every > 0 && state.steps.is_multiple_of(job.check_every) {
            let was_aborted = is_aborted();
            if !was_aborted && seen.0.is_none() {
                seat.witness().checks(node);
            }
            let checked = worker.check_host_updates();
            self.require(!was_aborted || checked.is_err(), "a check of an ended generation");
            self.boundary(seen, checked, false)?;
        }
        if state.steps.is_multiple_of(job.commit_every) {
            let was_aborted = is_aborted();
            let content = self.mark(state);
            seat.witness().check_state(node, state);
            // The witness is told first, since it judges the thread's messages at the boundary by this commit.
            let held = seat.witness().facts(node).held;
            if !was_aborted && seen.0.is_none() {
                seat.witness().committed(node, content, worker.rank() == 0);
            }
            let committed = state.commit(worker);
            self.require(!was_aborted || committed.is_err(), "a commit of an ended generation");
            if matches!(&committed, Err(error) if !error.is_reset()) {
                seat.witness().facts(node).held = held;
            }
            self.boundary(seen, committed, true)?;
        }
        Ok(())
    }

    fn boundary(&self, seen: &mut SeenEnd, passed: Result<()>, is_commit: bool) -> Result<()> {
        if let Err(Error::Interrupted { .. }) = &passed {
            *seen = SeenEnd(Some(FunctionEnd::Kept), is_commit);
        }
        self.note(seen, passed)
    }
}
