//! The simulated cluster: the code that ships, in a world whose network, clocks, processes and discovery come
//! from one seed, under every fault we can think of, with an oracle that looks on.
//!
//! One seed is one run, bit for bit. Its job (`scenario`) and its faults (`plan`) are drawn first; then
//! `cores` (the state machines alone) or `actors` (the real actors) runs them to a [`Report`]. Safety is
//! checked after every event while faults go on; then they stop, a core of hosts is whole again, and the job
//! must go on within bounded time, or the seed fails with the name of whoever is waited for.

mod actors;
mod agenda;
mod clock;
mod cores;
mod dataset;
pub mod disk;
pub mod options;
mod oracle;
mod plan;
pub mod regression;
pub mod report;
mod scenario;
pub mod shrink;
mod state_dir;
pub mod trace;

#[cfg(feature = "planted-bugs")]
pub use elastic_runtime::planted::{Bug, plant};
pub use options::{Job, Mode, Options};
pub use plan::Plan;
pub use regression::{Regression, RegressionError};
pub use report::{Failure, Report, Verdict};
pub use trace::Recording;

/// Runs a seed.
pub fn run(options: &Options, recording: Recording) -> Report {
    match options.mode {
        Mode::Cores => cores::World::new(options, recording).run(),
        Mode::Actors => actors::run(options, recording),
    }
}

/// Runs a seed twice; a difference is its verdict, with the first stretch of events where they differ.
pub fn run_twice(options: &Options) -> Report {
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
        first.failure = Some(Failure {
            verdict: Verdict::Nondeterministic,
            reason: format!(
                "two runs differ first between events {from} and {}",
                from + trace::CHECKPOINT
            ),
        });
    }
    first
}
