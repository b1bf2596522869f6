//! The simulated cluster: the shipped code in a world whose network, clocks, processes and discovery come from one
//! seed. It meets every fault we can think of, while an oracle checks its rules.
//!
//! One seed is one run, bit for bit. Its job (`scenario`) and its faults (`plan`) are drawn first. Then `cores` (the
//! state machines alone) or `actors` (the real actors) runs them to a [`RunReport`]. Safety is checked after every event
//! while faults go on. Then the faults stop and a core of hosts is whole again. The job must go on within bounded
//! time, or the seed fails and names the nodes that are waited for.

mod actors;
mod agenda;
mod clock;
mod cores;
mod dataset;
pub mod decisions;
pub mod disk;
mod fnv;
pub mod fuzz;
pub mod options;
mod oracle;
mod plan;
mod recorded_job;
pub mod regression;
pub mod report;
mod scenario;
pub mod shape;
pub mod shrink;
mod state_dir;
pub mod states;
mod store;
mod tape;
pub mod trace;
mod training;

#[cfg(feature = "planted-bugs")]
pub use elastic_protocol::planted::{Bug, plant};
pub use fuzz::GuidedSearch;
pub use options::{DRAWS, JobKind, RunOptions, SimulationMode};
pub use plan::FaultPlan;
pub use recorded_job::{UnsimulatedMoment, recorded_shape};
pub use regression::{Regression, RegressionError};
pub use report::{RunFailure, RunReport, RunVerdict};
pub use shape::Shape;
pub use tape::SIMULATED_MESSAGES;
pub use trace::Recording;

/// Runs a seed.
pub fn run(options: &RunOptions, recording: Recording) -> RunReport {
    match options.mode {
        SimulationMode::Cores => cores::World::new(options, recording).run(),
        SimulationMode::Actors => actors::run(options, recording),
        SimulationMode::Training => training::TrainingWorld::new(options, recording).run(),
        SimulationMode::Store => store::StoreWorld::new(options, recording).run(),
    }
}

/// Runs a seed twice. A difference becomes the verdict, with the first stretch of events where the runs differ.
pub fn run_twice(options: &RunOptions) -> RunReport {
    let mut first = run(options, Recording::default());
    let second = run(options, Recording::default());
    if (first.hash, first.events) != (second.hash, second.events) {
        let same = first
            .checkpoints
            .iter()
            .zip(&second.checkpoints)
            .take_while(|(first, second)| first == second)
            .count() as u64;
        let from = same * trace::CHECKPOINT;
        first.failure = Some(RunFailure {
            verdict: RunVerdict::Nondeterministic,
            reason: format!(
                "two runs differ first between events {from} and {}",
                from + trace::CHECKPOINT
            ),
        });
    }
    first
}
