//! Tests of training by a batch plan: the same bits in a world of any size, even if it changes (C-2).

use elastic_collectives::ReduceOp;
use elastic_protocol::messages::{Ballot, SyncPlan};

use super::super::{BatchPlan, Error, Membership, State, Worker, run_loop};
use super::cluster::Cluster;
use super::program::{SAMPLES, Strings, Training};
use super::{FROM_0, nothing};

/// Samples of a step: the shards do not divide it, nor does it divide the samples.
const GLOBAL_BATCH: u64 = 22;

fn plan() -> BatchPlan {
    BatchPlan::new(GLOBAL_BATCH).shards(8).seed(3)
}

/// Trains two epochs. A process dies in its step of this number. The learnt weight depends on the order of each
/// addition, on each shard's random stream, and on the weights of uneven shards.
fn train(
    dies_in: Option<u64>,
) -> impl FnMut(&Worker, &mut State<Training>) -> Result<(), Error> + Send + 'static {
    let mut steps = 0;
    move |worker, state| {
        let mut weight = state.resets.first().map_or(0.5, |bits| f32::from_bits(*bits as u32));
        while state.epoch < 2 {
            for step in worker.shards(&SAMPLES, &plan(), state.epoch)? {
                let counts = step.all_reduce(ReduceOp::Sum, |shard| {
                    let mut counts = vec![0_u32; SAMPLES];
                    shard.iter().for_each(|sample| counts[sample] += 1);
                    Ok(counts)
                })?;
                let slope = step.all_reduce(ReduceOp::Mean, |shard| {
                    let noise = (shard.seed() >> 40) as f32 / 1e7;
                    let of = |sample: usize| (sample as f32 * 0.37 + noise) * weight.sin();
                    let sum: f32 = shard.iter().map(of).sum();
                    Ok(vec![sum / shard.len().max(1) as f32 * shard.weight()])
                })?;
                steps += 1;
                assert!(dies_in != Some(steps), "told to die");
                weight -= 0.01 * slope[0];
                state.counts.iter_mut().zip(&counts).for_each(|(sum, more)| *sum += more);
                state.resets = vec![u64::from(weight.to_bits())];
                state.commit(worker)?;
            }
            state.epoch += 1;
        }
        state.done = true;
        Ok(())
    }
}

/// The weight after a training by one process, without a driver.
fn undisturbed() -> u64 {
    let mut function = train(None);
    let mut learnt = 0;
    let state = State::new(Training::default());
    run_loop(state, &mut Membership::alone(), |worker, state| {
        function(worker, state)?;
        assert_eq!(state.counts, vec![2; SAMPLES], "each sample once an epoch");
        learnt = state.resets[0];
        Ok(())
    })
    .expect("alone, nothing can be lost");
    learnt
}

#[test]
fn c_2_worlds_of_any_size_train_the_same_bits_without_and_with_a_lost_worker() {
    let due = undisturbed();
    let results = Strings::default();
    for size in [2, 3, 5, 7] {
        let mut cluster = Cluster::new();
        let members: Vec<u32> = (0..size).collect();
        let victim = size - 1;
        for number in &members {
            let mut function = train((*number == victim).then_some(4));
            let results = results.clone();
            cluster.start(*number, nothing, move |worker, state| {
                function(worker, state)?;
                *results.result.lock().expect("nobody panics with it") = Some((**state).clone());
                Ok(())
            });
        }
        cluster.begin(&members, FROM_0, 0);
        cluster.bury(victim, "told to die");
        let survivors = &members[..members.len() - 1];
        let arrivals = cluster.arrivals(survivors);
        let step = arrivals.iter().map(|(commit, _)| commit.step.0).max().expect("survivors");
        let root = arrivals.iter().position(|(commit, _)| commit.step.0 == step);
        let root = root.expect("one of them holds it") as u32;
        cluster.begin(survivors, SyncPlan::FromRoot { root }, step);
        cluster.wait(|cluster| cluster.all_voted(survivors, &Ballot::Success));
        let result = results.result.lock().expect("nobody panics with it").take();
        let result = result.expect("somebody finished");
        assert_eq!(result.counts, vec![2; SAMPLES], "each sample once an epoch");
        assert_eq!(result.resets, [due], "the bits of a world of {size}");
    }
}

#[test]
fn c_2_a_plan_that_cannot_be_carried_out_fails_the_training_function_with_the_reason() {
    let refused = |plan: BatchPlan| {
        let state = State::new(Training::default());
        let outcome = run_loop(state, &mut Membership::alone(), |worker, state| {
            for _step in worker.shards(&SAMPLES, &BatchPlan::new(16).shards(4), 0)? {
                state.commit(worker)?;
            }
            worker.shards(&SAMPLES, &plan, 1).map(drop)
        });
        outcome.map_err(|error| error.chain())
    };
    assert_eq!(refused(BatchPlan::new(16).shards(4)), Ok(()));
    let other = refused(BatchPlan::new(16).shards(8)).expect_err("another plan");
    assert!(other.contains("was trained with 4 shards of a global batch of 16"), "{other}");
    let none = refused(BatchPlan::new(16)).expect_err("no shards");
    assert!(none.contains("--shards"), "{none}");
    assert_eq!(refused(BatchPlan::new(16).shards(8).named("another pass")), Ok(()));
}
