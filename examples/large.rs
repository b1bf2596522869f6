//! A model of any size, for measurements: its gradients go over the collectives at each step. It fits its parameters
//! to a target that each worker sees through noise of its own, so that only their mean finds it. `bench/gpu.sh` trains
//! it over NCCL.

#![expect(clippy::print_stdout, reason = "a program with a result")]

use elastic_node::ReduceOp;
use serde::{Deserialize, Serialize};

/// Number of steps in a training.
const STEPS: u64 = 60;
/// Number of steps from one commit to the next.
const COMMIT_EVERY: u64 = 5;
const RATE: f32 = 0.2;

#[derive(Deserialize, Serialize)]
struct Training {
    step: u64,
    #[serde(with = "elastic_node::bulk")]
    parameters: Vec<f32>,
}

fn target(index: usize) -> f32 {
    (index % 1_000) as f32 / 1_000.0
}

/// A worker's noisy view of the target in one step. The noise depends on the arguments only.
fn noise(index: usize, step: u64, rank: u32) -> f32 {
    let mixed =
        (index as u64 ^ step << 32 ^ u64::from(rank) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args().nth(1).map_or(Ok(1 << 24), |count| count.parse())?;
    let state = elastic_node::state(Training { step: 0, parameters: vec![0.0; count] });
    elastic_node::run(state, |worker, state| {
        while state.step < STEPS {
            let (step, rank) = (state.step, worker.rank());
            let mut gradient: Vec<f32> = state
                .parameters
                .iter()
                .enumerate()
                .map(|(index, value)| value - target(index) + 0.1 * noise(index, step, rank))
                .collect();
            worker.all_reduce(&mut gradient, ReduceOp::Mean)?;
            for (value, slope) in state.parameters.iter_mut().zip(&gradient) {
                *value -= RATE * slope;
            }
            state.step += 1;
            let distance = state.parameters.iter().enumerate();
            let distance = distance.map(|(index, value)| (value - target(index)).abs());
            worker.note(format!("step {} · off by {:.4}", state.step, mean(distance)));
            if state.step.is_multiple_of(COMMIT_EVERY) {
                state.commit(worker)?;
            } else {
                worker.check_host_updates()?;
            }
        }
        let distance = state.parameters.iter().enumerate();
        let off = mean(distance.map(|(index, value)| (value - target(index)).abs()));
        assert!(off < 0.05, "it has not converged: off by {off}");
        if worker.rank() == 0 {
            println!("{} parameters, off by {off:.4} on average", state.parameters.len());
        }
        Ok(())
    })?;
    Ok(())
}

fn mean(values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = values.len().max(1) as f32;
    values.map(f64::from).sum::<f64>() as f32 / count
}
