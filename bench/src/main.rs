//! Benchmarks: `cargo run --release -p bench -- recovery --json`. The last line of stdout is the result.

mod allreduce;
mod cluster;
mod monotonic;
mod record;
mod recovery;
mod statistics;
mod worker;

use clap::{Parser, Subcommand};

/// Elastic Node's benchmarks, with real processes.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The sum of float32 over processes of this machine, by size, through shared memory and over TCP.
    Allreduce(allreduce::Options),
    /// A rank of `allreduce`.
    #[command(hide = true)]
    AllreduceRank,
    /// kill -9 of one of four workers, in process: the time to the next step that all survivors committed.
    Recovery(recovery::Options),
    /// The training program of the benchmarks.
    #[command(hide = true)]
    Worker(worker::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Allreduce(options) => allreduce::run(&options),
        Bench::AllreduceRank => allreduce::run_rank(),
        Bench::Recovery(options) => recovery::run(&options),
        Bench::Worker(options) => worker::run(&options),
    }
}
