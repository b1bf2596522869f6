//! Our rank under `bench`: reports its listening address, reads its plan, and carries out commands. Started by
//! `contestant`.

use std::io::{BufRead as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use elastic_collectives::{
    AbortHandle, Communicator, CommunicatorExt as _, DataPlane, GroupSpec, HostFabric, ReduceOp,
    ShardDeal, ShardFold, TcpFabric,
};
use serde::{Deserialize, Serialize};

use crate::monotonic::now_ns;

/// Calls before the measurement: caches, pages and the scheduler settle.
pub(super) const WARM_UP: usize = 2;
/// Logical shards of `bench shards`.
pub(super) const SHARDS: u32 = 8;
/// Samples of a step's global batch.
const SAMPLES: usize = 64;
const DEADLINE: Duration = Duration::from_secs(60);
/// A constant: all ranks are children of one process, on this machine, for a few seconds.
const KEY: [u8; 32] = [42; 32];

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct CollectiveRankOptions {
    /// Its listening address.
    address: IpAddr,
}

/// A rank's plan; the first line on its stdin.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct SizePlan {
    pub(super) rank: u32,
    pub(super) peers: Vec<SocketAddr>,
    pub(super) hosts: Vec<u32>,
    pub(super) encrypts: bool,
    pub(super) streams: u32,
    pub(super) data_plane: DataPlane,
}

/// A rank's group, and what it takes to form the next one.
struct MeasuredRank {
    plan: SizePlan,
    abort: AbortHandle,
    fabric: HostFabric,
    generation: u64,
    group: Box<dyn Communicator>,
}

impl MeasuredRank {
    fn join(plan: SizePlan, mut fabric: HostFabric) -> anyhow::Result<MeasuredRank> {
        let abort = AbortHandle::new()?;
        let group = fabric.form(&spec(&plan, 0), &abort)?;
        Ok(MeasuredRank { plan, abort, fabric, generation: 0, group })
    }

    /// The next generation's group, of the same ranks.
    fn form(&mut self) -> anyhow::Result<()> {
        self.generation += 1;
        self.group.close();
        self.group = self.fabric.form(&spec(&self.plan, self.generation), &self.abort)?;
        Ok(())
    }
}

fn spec(plan: &SizePlan, generation: u64) -> GroupSpec {
    GroupSpec {
        term: 0,
        generation,
        rank: plan.rank,
        peers: plan.peers.clone(),
        hosts: plan.hosts.clone(),
        host_names: Vec::new(),
        key: KEY,
        data_plane: plan.data_plane,
        encrypts: plan.encrypts,
        streams: plan.streams,
        form_deadline: DEADLINE,
        operation_deadline: DEADLINE,
        path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
    }
}

/// Runs one rank until its stdin ends.
pub(crate) fn run(options: &CollectiveRankOptions) -> anyhow::Result<()> {
    let tcp = TcpFabric::bind(SocketAddr::from((options.address, 0)))?;
    writeln!(std::io::stdout(), "{}", tcp.local_address())?;
    let mut lines = std::io::stdin().lock().lines();
    let plan = lines.next().context("a plan comes first")??;
    let mut rank = MeasuredRank::join(serde_json::from_str(&plan)?, HostFabric::new(tcp))?;
    for command in lines {
        let command = command?;
        let mut words = command.split(' ');
        let mut next = || words.next().context("a command is COLLECTIVE BYTES CALLS");
        let (collective, bytes, calls) = (next()?, next()?.parse()?, next()?.parse()?);
        let times = measure(&mut rank, collective, bytes, calls)?;
        if rank.plan.rank == 0 {
            let times: Vec<String> = times.iter().map(u64::to_string).collect();
            writeln!(std::io::stdout(), "{}", times.join(" "))?;
        }
    }
    Ok(())
}

fn measure(
    rank: &mut MeasuredRank,
    collective: &str,
    bytes: usize,
    calls: usize,
) -> anyhow::Result<Vec<u64>> {
    let world = rank.group.world_size();
    let mut data = vec![0.0f32; bytes / size_of::<f32>()];
    match collective {
        "allreduce" => {
            data.fill((rank.plan.rank + 1) as f32);
            rank.group.all_reduce(&mut data, ReduceOp::Sum)?;
            let due = (world * (world + 1) / 2) as f32;
            ensure!(data.iter().all(|value| *value == due), "the sum of {bytes} bytes is wrong");
            // Zeros stay zeros, so that no number of calls overflows.
            data.fill(0.0);
            time(calls, 1, || Ok(rank.group.all_reduce(&mut data, ReduceOp::Sum)?))
        }
        "allgather" => {
            let mut gathered = vec![0.0f32; data.len() * world as usize];
            time(calls, 1, || Ok(rank.group.all_gather(&data, &mut gathered)?))
        }
        "broadcast" => time(calls, u64::from(world), || {
            // Each rank is the root once, so that none runs ahead of the others.
            (0..world).try_for_each(|root| Ok(rank.group.broadcast(&mut data, root)?))
        }),
        "shards" => {
            let deal = ShardDeal::even(SHARDS, world);
            let shards = vec![data.as_slice(); deal.of(rank.plan.rank).len()];
            let mut sum = vec![0.0f32; data.len()];
            // The rank's own combining of its shards is measured, too.
            time(calls, 1, || {
                Ok(rank.group.all_reduce_shards(&shards, &deal, &mut sum, ReduceOp::Sum)?)
            })
        }
        "form" => time(calls, 1, || rank.form()),
        "step" => {
            let bound = |rank: u32| SAMPLES * rank as usize / world as usize;
            let own = bound(rank.plan.rank + 1) - bound(rank.plan.rank);
            let mut gradient = data.clone();
            time(calls, 1, || {
                learn(&mut gradient, own);
                rank.group.all_reduce(&mut gradient, ReduceOp::Mean)?;
                apply(&mut data, &gradient);
                Ok(())
            })
        }
        "sharded-step" => {
            let deal = ShardDeal::even(SHARDS, world);
            let mut gradient = data.clone();
            time(calls, 1, || {
                let mut fold = ShardFold::new(&deal, rank.plan.rank, ReduceOp::Mean);
                for _shard in deal.of(rank.plan.rank) {
                    let mut of_shard = vec![0.0_f32; data.len()];
                    learn(&mut of_shard, SAMPLES / SHARDS as usize);
                    fold.add(of_shard)?;
                }
                fold.all_reduce(&mut *rank.group, &deal, &mut gradient)?;
                apply(&mut data, &gradient);
                Ok(())
            })
        }
        other => anyhow::bail!("there is no {other}"),
    }
}

/// Stands for the gradient of so many samples: each takes a pass over it.
fn learn(gradient: &mut [f32], samples: usize) {
    gradient.fill(0.0);
    for sample in 0..samples {
        let slope = std::hint::black_box(sample as f32 * 1e-6);
        gradient.iter_mut().for_each(|value| *value += slope * (1.0 - *value));
    }
}

fn apply(weights: &mut [f32], gradient: &[f32]) {
    weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.1 * slope);
}

/// Nanoseconds of each call, over `divisor`.
fn time(
    calls: usize,
    divisor: u64,
    mut call: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<u64>> {
    (0..WARM_UP).try_for_each(|_| call())?;
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let before = now_ns()?;
        call()?;
        times.push((now_ns()? - before) / divisor);
    }
    Ok(times)
}
