//! The simulated program by shards: the product deals them to the ranks, folds them, and gives each its samples and its random
//! stream. The sums are of floating-point numbers, so the oracle sees any other order of addition. Part of the simulated
//! training program.

use std::rc::Rc;

use elastic_protocol::messages::JobShards;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_worker::state::sampler::{
    LedgerPlan, ReduceOp, ShardDeal, ShardFold, fold_partial, share_of_global,
};

use super::super::World;
use crate::dataset::SampleSet;

/// A process's knowledge of its shards.
#[derive(Debug, Default)]
pub(in crate::cores) struct ShardedProgram {
    /// The number of shards, as the driver tells it with a generation.
    pub(super) told: Option<u32>,
    /// The number of shards of each rank, as the driver tells it; empty if they are dealt evenly.
    counts: Vec<u32>,
    /// The deal that was asked for last, by the numbers of shards and of ranks: each step asks for it several times.
    dealt: Option<((u32, u32), Rc<ShardDeal>)>,
    /// The first world size of the process.
    first_world: Option<u32>,
    /// Steps that the process has begun.
    begun: u64,
    /// The partial results of this rank in the collective under way.
    pub(in crate::cores) partial: Vec<f64>,
}

impl ShardedProgram {
    /// The product's deal of these shards to a world.
    fn deal(&mut self, shards: u32, world: u32) -> Rc<ShardDeal> {
        match &self.dealt {
            Some((of, deal)) if *of == (shards, world) => Rc::clone(deal),
            _ => {
                let deal = Rc::new(ShardDeal::of_job(shards, world, &self.counts));
                self.dealt = Some(((shards, world), Rc::clone(&deal)));
                deal
            }
        }
    }
}

impl World {
    /// Takes the number of shards of a generation, and checks C-2: it is that of the job, under any driver.
    pub(super) fn take_shards(&mut self, process: u32, shards: &JobShards) {
        let (due, told) = (self.scenario.driver.shards, shards.total());
        let program = self.program(process);
        program.shards.told = told;
        program.shards.counts = shards.counts().to_vec();
        if program.rank == 0 && is_planted(Bug::RankDealsByItself) {
            program.shards.counts.clear();
        }
        program.shards.dealt = None;
        let world = program.world_size;
        program.shards.first_world.get_or_insert(world);
        if told != due {
            let id = self.processes[process as usize].id.clone();
            self.fail_safety(format!(
                "C-2: {id} is told of {told:?} shards, and the job has {due:?}"
            ));
        }
    }

    /// Computes the gradients of this rank's shards, and folds them as far as it can by itself.
    pub(super) fn compute_shards(&mut self, process: u32, plan: LedgerPlan) {
        let LedgerPlan { shards, global_batch } = plan;
        let program = self.program(process);
        let (model, rank) = (program.live, program.rank);
        let (mut world, mut place) = (program.world_size, model.consumed);
        let begun = program.shards.begun;
        program.shards.begun += 1;
        if is_planted(Bug::ShardsOfFormerWorld) {
            world = program.shards.first_world.unwrap_or(world);
        }
        if is_planted(Bug::StreamOfAnotherStep) {
            place = begun * global_batch;
        }
        let deal = self.program(process).shards.deal(shards, world);
        let mut fold = ShardFold::new(&deal, rank, ReduceOp::Sum);
        let length = self.data.length();
        for shard in deal.of(rank) {
            let share = share_of_global(model.consumed, length, global_batch, shards, shard);
            let samples = share.map_or((0, 0), |share| (share.local.start, share.local.end));
            let stream = self.data.stream(model.epoch, place, shard);
            let weights = f64::from_bits(model.weights);
            let gradient = self.data.gradient(model.epoch, samples, weights, stream);
            if let Err(error) = fold.add(vec![gradient]) {
                return self.fail_safety(format!("C-2: {error}"));
            }
        }
        let partial = fold.partial().flatten().copied().collect();
        self.program(process).shards.partial = partial;
    }

    /// The shards that a process carries in a step, and the most that an even deal would give it; none where the time of a step
    /// does not depend on them.
    pub(in crate::cores) fn carried_by(&mut self, process: u32) -> Option<(u32, u32)> {
        let shards = self.scenario.driver.shards.filter(|_| self.options.draws >= 9)?;
        let program = self.program(process);
        let world = program.world_size.max(1);
        let deal = program.shards.deal(shards, world);
        Some((deal.of(program.rank).len() as u32, shards.div_ceil(world)))
    }

    /// Folds the partial results of a world, given in the order in which the ranks have entered. Returns the bits of the sum.
    pub(in crate::cores) fn fold_shards(
        &mut self,
        process: u32,
        shards: u32,
        mut entered: Vec<(u32, Vec<f64>)>,
    ) -> u64 {
        if is_planted(Bug::ShardsFoldedByArrival) {
            return entered.into_iter().flat_map(|(_, partial)| partial).sum::<f64>().to_bits();
        }
        entered.sort_by_key(|(rank, _)| *rank);
        let deal = self.program(process).shards.deal(shards, entered.len() as u32);
        let partial: Vec<f64> = entered.into_iter().flat_map(|(_, partial)| partial).collect();
        let Some(sum) = fold_partial(&deal, &partial, ReduceOp::Sum) else {
            let (given, world) = (partial.len(), deal.world());
            self.fail_safety(format!(
                "C-2: {given} partial results of {shards} shards in a world of {world}"
            ));
            return 0;
        };
        sum.to_bits()
    }

    /// The weights after a step.
    pub(super) fn stepped(&self, weights: u64, value: u64) -> u64 {
        match self.scenario.plan() {
            Some(_) => SampleSet::stepped(f64::from_bits(weights), f64::from_bits(value)).to_bits(),
            None => weights.wrapping_add(value),
        }
    }
}
