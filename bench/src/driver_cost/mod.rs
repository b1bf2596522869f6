//! `bench driver-cost`: the driver's cost of a reset, by the number of hosts.
//!
//! It runs the driver's core and the registry's, fed with encoded messages of a cluster that obeys every order, and
//! encodes every output as its actor does. CPU time of the thread is counted while they work. The cluster's own work
//! is not counted, nor is the transport's work on a frame. Three things happen to the job: it starts with all hosts
//! at once; a host is lost and the others go on; the host comes back and takes part. Beside that, with a journal, all
//! workers report a commit.

mod cluster;
mod workers;

use std::io::Write as _;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::Serialize;

use self::cluster::{CostCluster, InputCost};
use crate::statistics::median;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct DriverCostOptions {
    /// Numbers of hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000, 10_000])]
    hosts: Vec<u32>,
    /// Slots of each host.
    #[arg(long, default_value_t = 4)]
    slots: u32,
    /// How many times a host is lost and comes back; the medians are given.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct DriverCostReport {
    slots: u32,
    rounds: usize,
    sizes: Vec<CostBySize>,
}

/// Figures for one number of hosts.
#[derive(Debug, Serialize)]
struct CostBySize {
    hosts: u32,
    workers: u32,
    start: ResetCost,
    loss: ResetCost,
    comeback: ResetCost,
    commit: DriverCommitCost,
}

/// The cost of a commit reported by all workers, with the journal kept.
#[derive(Clone, Copy, Debug, Serialize)]
struct DriverCommitCost {
    cpu_ms: f64,
    /// Bytes given to the journal in all rounds.
    journal_bytes: u64,
}

/// The cost of a reset, from its cause until all train.
#[derive(Clone, Copy, Debug, Serialize)]
struct ResetCost {
    cpu_ms: f64,
    messages_in: u64,
    messages_out: u64,
    bytes_out: u64,
    /// Of these, tables and changes of tables.
    table_bytes: u64,
    /// The bytes if each member were sent the full table.
    full_table_bytes: u64,
}

pub(crate) fn run(options: &DriverCostOptions) -> anyhow::Result<()> {
    ensure!(options.rounds > 0, "at least one round is needed");
    let mut out = std::io::stdout().lock();
    if !options.json {
        writeln!(
            out,
            "{:>7} {:>8}  {:<9} {:>10} {:>10} {:>9} {:>11} {:>13}",
            "hosts",
            "workers",
            "reset",
            "CPU ms",
            "µs/worker",
            "MB out",
            "MB of table",
            "if all full"
        )?;
    }
    let mut sizes = Vec::new();
    for hosts in &options.hosts {
        let size = measure(*hosts, options).with_context(|| format!("with {hosts} hosts"))?;
        if !options.json {
            for (name, reset) in
                [("start", size.start), ("loss", size.loss), ("comeback", size.comeback)]
            {
                writeln!(
                    out,
                    "{:>7} {:>8}  {name:<9} {:>10.2} {:>10.2} {:>9.2} {:>11.2} {:>13.2}",
                    size.hosts,
                    size.workers,
                    reset.cpu_ms,
                    reset.cpu_ms * 1e3 / f64::from(size.workers),
                    reset.bytes_out as f64 / 1e6,
                    reset.table_bytes as f64 / 1e6,
                    reset.full_table_bytes as f64 / 1e6,
                )?;
            }
        }
        if !options.json {
            writeln!(
                out,
                "{:>7} {:>8}  {:<9} {:>10.2} {:>10.2}   journal: {} bytes",
                size.hosts,
                size.workers,
                "commit",
                size.commit.cpu_ms,
                size.commit.cpu_ms * 1e3 / f64::from(size.workers),
                size.commit.journal_bytes,
            )?;
        }
        sizes.push(size);
    }
    let report = DriverCostReport { slots: options.slots, rounds: options.rounds, sizes };
    if options.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    }
    Ok(())
}

fn measure(hosts: u32, options: &DriverCostOptions) -> anyhow::Result<CostBySize> {
    let workers = hosts.checked_mul(options.slots).context("too many workers")?;
    ensure!(hosts > 1 && options.slots > 0, "a host must be there when another one is lost");
    let mut cluster = CostCluster::new(hosts, options.slots, false)?;
    let start = cluster.start(workers)?;
    let mut losses = Vec::new();
    let mut comebacks = Vec::new();
    for round in 0..options.rounds {
        // A host from the middle of the list, a different one each time.
        let host = (hosts / 2 + u32::try_from(round)? * 7) % hosts;
        losses.push(cluster.lose(host, workers - options.slots)?);
        comebacks.push(cluster.come_back(host, workers)?);
    }
    Ok(CostBySize {
        hosts,
        workers,
        start: reset(&[start])?,
        loss: reset(&losses)?,
        comeback: reset(&comebacks)?,
        commit: measure_commit(hosts, workers, options)?,
    })
}

fn measure_commit(
    hosts: u32,
    workers: u32,
    options: &DriverCostOptions,
) -> anyhow::Result<DriverCommitCost> {
    let mut cluster = CostCluster::new(hosts, options.slots, true)?;
    let start = cluster.start(workers)?;
    ensure!(start.journal_bytes > 0, "the journal is not written at all");
    let commits: Vec<InputCost> =
        (1..=options.rounds as u64).map(|step| cluster.commit(step)).collect::<Result<_, _>>()?;
    let cpu_ms: Vec<f64> = commits.iter().map(|cost| cost.cpu_ns as f64 / 1e6).collect();
    Ok(DriverCommitCost {
        cpu_ms: median(&cpu_ms).context("there was none")?,
        journal_bytes: commits.iter().map(|cost| cost.journal_bytes).sum(),
    })
}

fn reset(costs: &[InputCost]) -> anyhow::Result<ResetCost> {
    let cpu_ms: Vec<f64> = costs.iter().map(|cost| cost.cpu_ns as f64 / 1e6).collect();
    let last = costs.last().context("there was none")?;
    Ok(ResetCost {
        cpu_ms: median(&cpu_ms).context("there was none")?,
        messages_in: last.messages_in,
        messages_out: last.messages_out,
        bytes_out: last.bytes_out,
        table_bytes: last.table_bytes,
        full_table_bytes: last.full_table_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_sends_what_has_changed_and_not_the_table() {
        let options = DriverCostOptions { hosts: vec![20], slots: 2, rounds: 2, json: true };
        let size = measure(20, &options).expect("it trains again each time");
        assert_eq!(size.workers, 40);
        assert_eq!(size.start.table_bytes, size.start.full_table_bytes, "nobody has one before");
        assert!(size.loss.table_bytes * 4 < size.loss.full_table_bytes);
        // Two of the forty are new and get it whole.
        assert!(size.comeback.table_bytes * 3 < size.comeback.full_table_bytes);
        assert_eq!(size.commit.journal_bytes, 0, "the steady state writes nothing");
    }
}
