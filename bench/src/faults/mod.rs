//! `bench faults`: time for which training stands still after one fault.
//!
//! Two hosts in network namespaces train with two workers each. A fault strikes, and is healed once training goes on,
//! or after the time of observation if training did not stop. The figure is the longest time without a step that all
//! members of a generation committed, from the fault on. A fault that leaves the members alone, such as a hung disk,
//! has a second figure: a worker is killed while it lasts. Peers (`--vs`) undergo the faults that apply to them, on
//! one machine without namespaces. Needs root; faults of a driver with a standby need etcd.

mod fault;
mod gap;
mod job;
mod peer;
mod reader;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::fault::InjectedFault;
use self::job::FaultsJob;
use self::peer::PeerFault;
use crate::recovery::contestant::RecoveryPeer;
use crate::soak::network::Network;
use crate::statistics::{median, percentile};

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct FaultsOptions {
    /// The faults; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<InjectedFault>,
    /// How often each strikes.
    #[arg(long, default_value_t = 10)]
    strikes: usize,
    /// Others that are put through the faults that they can have.
    #[arg(long, value_enum, value_delimiter = ',')]
    vs: Vec<RecoveryPeer>,
    /// Their faults; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    vs_only: Vec<PeerFault>,
    /// How often each fault strikes each of them.
    #[arg(long, default_value_t = 2)]
    peer_strikes: usize,
    /// Least time of a step in milliseconds.
    #[arg(long, default_value_t = 10)]
    step_ms: u64,
    /// After so many seconds without a step a fault counts as not survived.
    #[arg(long, default_value_t = 120)]
    patience: u64,
    /// The interpreter that has the peers.
    #[arg(long, env = "ELASTIC_BENCH_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The figures of a fault, in milliseconds.
#[derive(Debug, Serialize)]
struct FaultFigures {
    strikes: usize,
    /// Strikes after which no step was committed in time; they count in no other figure.
    not_survived: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ms: Option<f64>,
}

impl FaultFigures {
    fn of(samples: &[Option<f64>]) -> Self {
        let survived: Vec<f64> = samples.iter().copied().flatten().collect();
        Self {
            strikes: samples.len(),
            not_survived: samples.len() - survived.len(),
            median_ms: median(&survived),
            p99_ms: percentile(&survived, 0.99),
        }
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct FaultsReport {
    /// Longest standstill after the fault alone.
    faults: BTreeMap<String, FaultFigures>,
    /// Longest standstill after a worker's death while the fault lasts.
    with_a_death: BTreeMap<String, FaultFigures>,
    /// Those of each peer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    peers: BTreeMap<&'static str, BTreeMap<String, FaultFigures>>,
}

/// Measures and prints.
pub(crate) fn run(options: &FaultsOptions) -> anyhow::Result<()> {
    ensure!(options.strikes > 0, "there must be at least 1 strike");
    for peer in &options.vs {
        if let Some(missing) = peer.missing(&options.python) {
            bail!(missing);
        }
    }
    let (mut alone, mut with_a_death) = (BTreeMap::new(), BTreeMap::new());
    let network = Network::enter(job::HOSTS).context("namespaces are needed, and root for them")?;
    for fault in those(&options.only) {
        let measured = measure(options, &network, *fault, false);
        note(options, &mut alone, fault.name(), "", measured)?;
        if fault.leaves_members_alone() {
            let measured = measure(options, &network, *fault, true);
            note(options, &mut with_a_death, fault.name(), ", and a worker dies", measured)?;
        }
    }
    let mut peers = BTreeMap::new();
    for peer in &options.vs {
        let mut of_peer = BTreeMap::new();
        for fault in those(&options.vs_only) {
            let measured = peer::measure(options, *peer, *fault);
            note(options, &mut of_peer, fault.name(), &format!(" ({})", peer.name()), measured)?;
        }
        peers.insert(peer.name(), of_peer);
    }
    let report = FaultsReport { faults: alone, with_a_death, peers };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// These faults, or all where none is named.
fn those<T: ValueEnum>(named: &[T]) -> &[T] {
    if named.is_empty() { T::value_variants() } else { named }
}

/// Keeps the figures of a fault, or says why there are none. The figures of the others count all the same.
fn note(
    options: &FaultsOptions,
    of: &mut BTreeMap<String, FaultFigures>,
    name: String,
    more: &str,
    measured: anyhow::Result<Vec<Option<f64>>>,
) -> anyhow::Result<()> {
    let mut stderr = std::io::stderr();
    match measured {
        Ok(samples) => {
            let figures = FaultFigures::of(&samples);
            if !options.json {
                writeln!(stderr, "{name}{more}: {}", serde_json::to_string(&figures)?)?;
            }
            of.insert(name, figures);
        }
        Err(error) => writeln!(stderr, "left out: {name}{more}: {error:?}")?,
    }
    Ok(())
}

/// Runs a job, and strikes it so many times.
fn measure(
    options: &FaultsOptions,
    network: &Network,
    fault: InjectedFault,
    with_a_death: bool,
) -> anyhow::Result<Vec<Option<f64>>> {
    let mut job = FaultsJob::start(network, fault, options.step_ms)?;
    let patience = Duration::from_secs(options.patience);
    let mut samples = Vec::with_capacity(options.strikes);
    for _ in 0..options.strikes {
        let members = job.wait_for_all()?;
        let mut struck_ns = fault.strike(&mut job, network, &members)?;
        if with_a_death {
            // The fault is felt by then: leases end, deadlines pass.
            gap::observe(&mut job, struck_ns, gap::WATCHED, patience)?;
            struck_ns = job.kill_one_of(&members, fault)?;
        }
        let sample = gap::observe(&mut job, struck_ns, gap::WATCHED, patience)?;
        fault.heal(&mut job, network, &members)?;
        samples.push(sample);
        if sample.is_none() {
            // A job that did not survive is not struck again.
            break;
        }
    }
    Ok(samples)
}
