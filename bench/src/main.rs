//! Benchmarks: `cargo run --release -p bench -- recovery --json`. The last line of stdout is the result.

mod abort;
mod collective;
mod driver_cost;
mod driver_kill;
mod monotonic;
mod process;
mod record;
mod recovery;
mod rendezvous;
mod start;
mod statistics;
mod worker;

use clap::{Parser, Subcommand};

use collective::Collective;

/// Elastic Node's benchmarks, with real processes.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The sum of float32 over processes of this machine, by size.
    Allreduce(collective::SizedOptions),
    /// One rank's float32 to all, by size.
    Broadcast(collective::SizedOptions),
    /// Every rank's float32 to all, by size.
    Allgather(collective::SizedOptions),
    /// The forming of a new generation's group.
    Form(collective::Options),
    /// kill -9 of a rank in the middle of a large all-reduce: when and how the others learn it.
    Abort(abort::Options),
    /// A rank of these.
    #[command(hide = true)]
    CollectiveRank(collective::RankOptions),
    /// A rank of `abort`.
    #[command(hide = true)]
    AbortRank(abort::RankOptions),
    /// What a start, the loss of a host and its return cost the driver, by the number of hosts; no processes.
    DriverCost(driver_cost::Options),
    /// kill -9 of the driver at random moments while digits trains, and its return: what the job notices of it.
    DriverKill(driver_kill::Options),
    /// kill -9 of one of four workers: the time to the next step that all have committed.
    Recovery(recovery::Options),
    /// Many agents become one group, over QUIC on the loopback: time, bytes and memory.
    Rendezvous(rendezvous::Options),
    /// From the command to the first line of a trivial Python script, and the agent's memory.
    Start(start::Options),
    /// The training program of the benchmarks.
    #[command(hide = true)]
    Worker(worker::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Allreduce(options) => collective::run(Collective::Allreduce, &options),
        Bench::Broadcast(options) => collective::run(Collective::Broadcast, &options),
        Bench::Allgather(options) => collective::run(Collective::Allgather, &options),
        Bench::Form(options) => collective::run_form(&options),
        Bench::Abort(options) => abort::run(&options),
        Bench::CollectiveRank(options) => collective::run_rank(&options),
        Bench::AbortRank(options) => abort::run_rank(&options),
        Bench::DriverCost(options) => driver_cost::run(&options),
        Bench::DriverKill(options) => driver_kill::run(&options),
        Bench::Recovery(options) => recovery::run(&options),
        Bench::Rendezvous(options) => rendezvous::run(&options),
        Bench::Start(options) => start::run(&options),
        Bench::Worker(options) => worker::run(&options),
    }
}
