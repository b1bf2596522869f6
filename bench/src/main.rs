//! Benchmarks: `cargo run --release -p bench -- recovery --json`. The last line of stdout is the result.

mod abort;
mod checkpoint;
mod collective;
mod ddp_step;
mod detect;
mod disk;
mod divergence;
mod driver_cost;
mod driver_kill;
mod faults;
mod monotonic;
mod page;
mod process;
mod rebalance;
mod record;
mod recovery;
mod rendezvous;
mod soak;
mod start;
mod statistics;
mod steps;
mod torture;
mod worker;

use clap::{Parser, Subcommand};

use collective::Collective;

/// Elastic Node's benchmarks, with real processes.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct BenchArguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The sum of float32 over processes of this machine, by size.
    Allreduce(collective::SizedOptions),
    /// Broadcast of a rank's float32, by size.
    Broadcast(collective::SizedOptions),
    /// Every rank's float32 to all, by size.
    Allgather(collective::SizedOptions),
    /// The sum of float32 over eight logical shards, to all, by size; `allreduce` beside it shows what it costs.
    Shards(collective::SizedOptions),
    /// A step of training with eight logical shards beside one without: its time, and the bytes that it sends.
    ShardedSteps(collective::ShardedStepsOptions),
    /// What a save costs the steps beside it, when it is durable, and how long a resume takes; ours and peers in turns.
    Checkpoint(checkpoint::CheckpointOptions),
    /// The forming of a new generation's group.
    Form(collective::CollectiveOptions),
    /// kill -9 of a rank in the middle of a large all-reduce: when and how the others learn it.
    Abort(abort::AbortOptions),
    /// A rank of these.
    #[command(hide = true)]
    CollectiveRank(collective::CollectiveRankOptions),
    /// A rank of `abort`.
    #[command(hide = true)]
    AbortRank(abort::AbortRankOptions),
    /// A step of torch's DistributedDataParallel on CPUs, ours beside gloo in the same processes.
    DdpStep(ddp_step::DdpStepOptions),
    /// kill -9 of a worker with much memory: when its agent, the driver and a blocked peer know.
    Detect(detect::DetectOptions),
    /// The training program of `detect`.
    #[command(hide = true)]
    DetectWorker(detect::DetectWorkerOptions),
    /// What the digests of a commit's arrays cost the training thread, by the size of the state.
    Divergence(divergence::DivergenceOptions),
    /// The training program of `divergence`.
    #[command(hide = true)]
    DivergenceWorker(divergence::DivergenceProgramOptions),
    /// The driver's cost of a start, the loss of a host and its return, by the number of hosts; no processes.
    DriverCost(driver_cost::DriverCostOptions),
    /// kill -9 of the driver at random moments while digits trains, and its return: what the job notices of it.
    DriverKill(driver_kill::DriverKillOptions),
    /// From any single fault to the next step that is committed: kills, stops, cuts, disks that hang.
    Faults(faults::FaultsOptions),
    /// What the job's page costs the driver with many workers: without a viewer, with one that reads, with one that does not.
    Page(page::PageOptions),
    /// A worker slowed to half: throughput with `--on-straggler rebalance` beside `tell`, and the same weights.
    Rebalance(rebalance::RebalanceOptions),
    /// The training program of `rebalance`.
    #[command(hide = true)]
    RebalanceWorker(rebalance::RebalanceWorkerOptions),
    /// kill -9 of one of four workers: the time to the next step that all have committed.
    Recovery(recovery::RecoveryOptions),
    /// Many agents become one group, over QUIC on the loopback: time, bytes and memory.
    Rendezvous(rendezvous::RendezvousOptions),
    /// A job of real processes under random kills, stops, notices, cuts and full disks: each sample once, the same bits
    /// on all ranks, and nothing that grows.
    Soak(soak::SoakOptions),
    /// The training program of `soak`.
    #[command(hide = true)]
    SoakWorker(soak::SoakProgramOptions),
    /// From the command to the first line of a trivial Python script, and the agent's memory.
    Start(start::StartOptions),
    /// What a step pays for being known: its place among the collectives, and how long it takes.
    Steps(steps::StepsOptions),
    /// Kills, joins, a driver's death and kills of everything: the weights of an undisturbed worker, each sample once.
    Torture(torture::TortureOptions),
    /// The training program of the benchmarks.
    #[command(hide = true)]
    Worker(worker::WorkerOptions),
}

fn main() -> anyhow::Result<()> {
    match BenchArguments::parse().bench {
        Bench::Allreduce(options) => collective::run(Collective::Allreduce, &options),
        Bench::Broadcast(options) => collective::run(Collective::Broadcast, &options),
        Bench::Allgather(options) => collective::run(Collective::Allgather, &options),
        Bench::Shards(options) => collective::run(Collective::Shards, &options),
        Bench::ShardedSteps(options) => collective::run_sharded_steps(&options),
        Bench::Checkpoint(options) => checkpoint::run(&options),
        Bench::Form(options) => collective::run_form(&options),
        Bench::Abort(options) => abort::run(&options),
        Bench::CollectiveRank(options) => collective::run_rank(&options),
        Bench::AbortRank(options) => abort::run_rank(&options),
        Bench::DdpStep(options) => ddp_step::run(&options),
        Bench::Detect(options) => detect::run(&options),
        Bench::DetectWorker(options) => detect::run_worker(&options),
        Bench::Divergence(options) => divergence::run(&options),
        Bench::DivergenceWorker(options) => divergence::run_program(&options),
        Bench::DriverCost(options) => driver_cost::run(&options),
        Bench::DriverKill(options) => driver_kill::run(&options),
        Bench::Faults(options) => faults::run(&options),
        Bench::Page(options) => page::run(&options),
        Bench::Rebalance(options) => rebalance::run(&options),
        Bench::RebalanceWorker(options) => rebalance::run_worker(&options),
        Bench::Recovery(options) => recovery::run(&options),
        Bench::Rendezvous(options) => rendezvous::run(&options),
        Bench::Soak(options) => soak::run(&options),
        Bench::SoakWorker(options) => soak::run_program(&options),
        Bench::Start(options) => start::run(&options),
        Bench::Steps(options) => steps::run(&options),
        Bench::Torture(options) => torture::run(&options),
        Bench::Worker(options) => worker::run(&options),
    }
}
