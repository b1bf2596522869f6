//! `cargo xtask`: what is more than one cargo call. `cargo xtask test` is everything that has to pass.

mod debian;
mod direction;
mod python;
mod steps;

use clap::{Parser, Subcommand};

/// Elastic Node's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Task {
    /// Everything that has to pass: format, lints, documentation, tests, dependencies.
    Test,
    /// The tests of the Python package alone.
    Python,
    /// What is quick: format, lints, the direction of dependencies.
    Check,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Test => steps::test(),
        Task::Python => steps::python(),
        Task::Check => steps::check(),
    }
}
