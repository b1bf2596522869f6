//! One rank of `bench allreduce`: says where it listens, reads its plan, measures.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use elastic_collectives::{
    AbortHandle, Communicator, CommunicatorExt as _, GroupSpec, HostFabric, ReduceOp, TcpFabric,
};

use super::{Path, Plan, Timed};
use crate::monotonic::now_ns;

/// Calls before the measurement: caches, pages and the scheduler settle.
const WARM_UP: usize = 5;
/// Bounds of the number of measured calls.
const CALLS: std::ops::RangeInclusive<u64> = 11..=20_000;
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs one rank.
pub(crate) fn run() -> anyhow::Result<()> {
    let tcp = TcpFabric::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    writeln!(std::io::stdout(), "{}", tcp.local_address())?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let plan: Plan = serde_json::from_str(&line)?;
    let abort = AbortHandle::new()?;
    let mut fabric = HostFabric::new(tcp);
    let mut groups = Vec::new();
    for (generation, path) in (0..).zip(&plan.paths) {
        let hosts = match path {
            Path::Shm => vec![0; plan.peers.len()],
            Path::Tcp => Vec::new(),
        };
        let group = GroupSpec {
            term: 0,
            generation,
            rank: plan.rank,
            peers: plan.peers.clone(),
            hosts,
            key: plan.key,
            form_deadline: DEADLINE,
            operation_deadline: DEADLINE,
        };
        groups.push((*path, fabric.form(&group, &abort)?));
    }
    for bytes in &plan.sizes {
        for (path, group) in &mut groups {
            let times_ns = measure(&mut **group, *bytes, plan.time_ms)?;
            if plan.rank == 0 {
                let timed = Timed { bytes: *bytes, path: *path, times_ns };
                writeln!(std::io::stdout(), "{}", serde_json::to_string(&timed)?)?;
            }
        }
    }
    Ok(())
}

fn measure(group: &mut dyn Communicator, bytes: usize, time_ms: u64) -> anyhow::Result<Vec<u64>> {
    let elements = bytes / size_of::<f32>();
    let own = (group.rank() + 1) as f32;
    let mut data = vec![own; elements];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    let world = group.world_size();
    let due = (world * (world + 1) / 2) as f32;
    ensure!(data.iter().all(|value| *value == due), "the sum of {bytes} bytes is wrong");
    // Zeros stay zeros, so that no number of calls overflows.
    data.fill(0.0);
    let started = now_ns()?;
    for _ in 0..WARM_UP {
        group.all_reduce(&mut data, ReduceOp::Sum)?;
    }
    let each = (now_ns()? - started) / WARM_UP as u64;
    let mut calls = [(time_ms * 1_000_000 / each.max(1)).clamp(*CALLS.start(), *CALLS.end())];
    group.broadcast(&mut calls, 0)?;
    let calls = usize::try_from(calls[0]).context("a number of calls")?;
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let before = now_ns()?;
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        times.push(now_ns()? - before);
    }
    Ok(times)
}
