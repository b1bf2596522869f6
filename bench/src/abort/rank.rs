//! A rank of `bench abort`: a generation for each line on its stdin, all-reducing until it fails.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use elastic_collectives::{
    AbortHandle, CommunicatorExt as _, DEFAULT_STREAMS, DataPlane, GroupSpec, HostFabric, ReduceOp,
    TcpFabric,
};

use crate::monotonic::now_ns;

const DEADLINE: Duration = Duration::from_secs(60);

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct AbortRankOptions {
    /// Bytes of the all-reduce.
    bytes: usize,
}

/// Runs one rank until its stdin ends.
pub(crate) fn run(options: &AbortRankOptions) -> anyhow::Result<()> {
    let tcp = TcpFabric::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    writeln!(std::io::stdout(), "{}", tcp.local_address())?;
    let mut fabric = HostFabric::new(tcp);
    let abort = AbortHandle::new()?;
    let mut data = vec![0.0f32; options.bytes / size_of::<f32>()];
    for line in std::io::stdin().lines() {
        let mut group = fabric.form(&spec(&line?)?, &abort)?;
        let due = (1..=group.world_size()).sum::<u32>() as f32;
        let mut small = [(group.rank() + 1) as f32; 1000];
        group.all_reduce(&mut small, ReduceOp::Sum)?;
        let verdict = if small == [due; 1000] { "right" } else { "wrong" };
        writeln!(std::io::stdout(), "{verdict}")?;
        // Zeros stay zeros, so that the kill finds the rank in an all-reduce and not beside it.
        data.fill(0.0);
        let failure = loop {
            if let Err(failure) = group.all_reduce(&mut data, ReduceOp::Sum) {
                break failure;
            }
            ensure!(data.first().is_none_or(|value| *value == 0.0), "a completed sum is wrong");
        };
        let at_ns = now_ns()?;
        // The generation's memory is returned before it is inspected.
        drop(group);
        writeln!(std::io::stdout(), "{at_ns} {failure}")?;
    }
    Ok(())
}

/// The group of a line: generation, rank, the ranks' hosts, their addresses.
fn spec(line: &str) -> anyhow::Result<GroupSpec> {
    let mut words = line.split(' ');
    let mut next = || words.next().context("a line is GENERATION RANK HOSTS PEERS");
    let (generation, rank) = (next()?.parse()?, next()?.parse()?);
    let hosts = next()?.split(',').map(|host| Ok(host.parse()?)).collect::<anyhow::Result<_>>()?;
    let peers = next()?.split(',').map(|peer| Ok(peer.parse()?)).collect::<anyhow::Result<_>>()?;
    Ok(GroupSpec {
        term: 0,
        generation,
        rank,
        hosts,
        host_names: Vec::new(),
        peers,
        key: [7; 32],
        data_plane: DataPlane::Auto,
        encrypts: false,
        streams: DEFAULT_STREAMS,
        form_deadline: DEADLINE,
        operation_deadline: DEADLINE,
        path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
    })
}
