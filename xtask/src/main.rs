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

#[derive(Clone, Debug, Subcommand)]
enum Task {
    /// Everything that has to pass: format, lints, documentation, tests, dependencies.
    Test,
    /// The tests that need Python alone: of the package, and of unmodified torch scripts.
    Python {
        /// The torch to test with, such as 2.8; by default the newest that is pinned.
        #[arg(long)]
        torch: Option<String>,
    },
    /// What is quick: format, lints, the direction of dependencies.
    Check,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Test => steps::test(),
        Task::Python { torch } => steps::python(torch.as_deref()),
        Task::Check => steps::check(),
    }
}
