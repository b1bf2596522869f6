//! A program under measurement: its ranks, each with a channel for commands, and rank 0's results. Used by the
//! benchmarks of collectives.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use elastic_collectives::DEFAULT_STREAMS;
use tempfile::TempDir;

use super::namespaces::Namespaces;
use super::rank::SizePlan;
use super::{Collective, CollectiveOptions, CollectivePeer};
use crate::monotonic::now_ns;
use crate::process::pause;
use elastic_collectives::DataPlane;

/// The scripts of the peers.
pub(super) const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Grace period for ranks whose commands have ended.
const ENDING_MS: u64 = 3_000;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Processes that are ended when dropped, so that none outlives a failed measurement. They have heard by then that no
/// command comes any more, and end by themselves: a rank of Open MPI that is killed leaves a file in /dev/shm.
pub(super) struct Processes(pub(super) Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        let now_ms = || now_ns().map_or(u64::MAX, |now_ns| now_ns / 1_000_000);
        let due_ms = now_ms().saturating_add(ENDING_MS);
        for child in &mut self.0 {
            while now_ms() < due_ms && matches!(child.try_wait(), Ok(None)) {
                pause(LOOK_EVERY);
            }
            // A rank that succeeded has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that is measured.
pub(super) enum CollectiveContestant {
    /// Ranks that are other processes.
    Ranks(Box<Ranks>),
    /// This process copies.
    Memcpy,
}

/// The path of our ranks' data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CollectivePath {
    /// Memory within a host, TCP between hosts.
    Best,
    /// TCP alone.
    Tcp,
    /// TCP alone, encrypted.
    Encrypted,
    /// TCP alone, with one connection for each pair.
    OneStream,
    /// QUIC alone.
    Quic,
}

/// The ranks of one program.
pub(super) struct Ranks {
    commands: Vec<Box<dyn Write>>,
    results: Box<dyn BufRead>,
    _processes: Processes,
    _folder: Option<TempDir>,
}

/// The program of a peer, running and ready.
pub(super) fn peer(
    peer: CollectivePeer,
    collective: Collective,
    options: &CollectiveOptions,
    namespaces: Option<&Namespaces>,
) -> anyhow::Result<CollectiveContestant> {
    let is_form = collective == Collective::Form;
    match peer {
        CollectivePeer::Tcp => CollectiveContestant::ours(options, namespaces, CollectivePath::Tcp),
        CollectivePeer::Encrypted => {
            CollectiveContestant::ours(options, namespaces, CollectivePath::Encrypted)
        }
        CollectivePeer::Quic => {
            CollectiveContestant::ours(options, namespaces, CollectivePath::Quic)
        }
        CollectivePeer::OneStream => {
            CollectiveContestant::ours(options, namespaces, CollectivePath::OneStream)
        }
        CollectivePeer::Gloo | CollectivePeer::Mpi if collective == Collective::Shards => {
            bail!("it has no shards")
        }
        CollectivePeer::Gloo => gloo(options, namespaces),
        CollectivePeer::Mpi if namespaces.is_some() => {
            bail!("mpirun does not span network namespaces")
        }
        CollectivePeer::Mpi if is_form => bail!("MPI forms its world once"),
        CollectivePeer::Mpi => super::mpi::start(options),
        CollectivePeer::Memcpy if is_form => bail!("a copy forms nothing"),
        CollectivePeer::Memcpy => Ok(CollectiveContestant::Memcpy),
    }
}

impl CollectiveContestant {
    /// Elastic Node's ranks.
    pub(super) fn ours(
        options: &CollectiveOptions,
        namespaces: Option<&Namespaces>,
        path: CollectivePath,
    ) -> anyhow::Result<CollectiveContestant> {
        let mut processes = Processes(Vec::new());
        let (mut commands, mut outputs): (Vec<Box<dyn Write>>, _) = (Vec::new(), Vec::new());
        for rank in 0..options.world {
            let program = std::env::current_exe()?;
            let mut command = in_namespace(namespaces, rank, options.world, &program);
            command
                .args(["collective-rank", &address(namespaces, rank, options.world).to_string()]);
            let (input, output) = spawn(&mut processes, &mut command)?;
            commands.push(Box::new(input));
            outputs.push(BufReader::new(output));
        }
        let mut peers = Vec::new();
        for output in &mut outputs {
            peers.push(line(output)?.parse::<SocketAddr>()?);
        }
        let host = |rank| namespaces.map_or(0, |_| Namespaces::side(rank, options.world));
        // If hosts are not known, nothing is left out because two ranks share one.
        let hosts: Vec<u32> = match path {
            CollectivePath::Best | CollectivePath::Tcp => (0..options.world).map(host).collect(),
            CollectivePath::Encrypted | CollectivePath::OneStream | CollectivePath::Quic => {
                Vec::new()
            }
        };
        let data_plane = match path {
            CollectivePath::Best => DataPlane::Auto,
            CollectivePath::Tcp | CollectivePath::Encrypted | CollectivePath::OneStream => {
                DataPlane::Tcp
            }
            CollectivePath::Quic => DataPlane::Quic,
        };
        let encrypts = path == CollectivePath::Encrypted;
        let streams = if path == CollectivePath::OneStream { 1 } else { DEFAULT_STREAMS };
        for (rank, input) in (0..).zip(&mut commands) {
            let (peers, hosts) = (peers.clone(), hosts.clone());
            let plan = SizePlan { rank, peers, hosts, encrypts, streams, data_plane };
            writeln!(input, "{}", serde_json::to_string(&plan)?)?;
        }
        let results = Box::new(outputs.swap_remove(0));
        Ok(CollectiveContestant::ranks(commands, results, processes, None))
    }

    pub(super) fn ranks(
        commands: Vec<Box<dyn Write>>,
        results: Box<dyn BufRead>,
        processes: Processes,
        folder: Option<TempDir>,
    ) -> CollectiveContestant {
        let (_processes, _folder) = (processes, folder);
        CollectiveContestant::Ranks(Box::new(Ranks { commands, results, _processes, _folder }))
    }

    /// Microseconds of each of `calls` calls.
    pub(super) fn measure(
        &mut self,
        collective: Collective,
        bytes: usize,
        calls: usize,
    ) -> anyhow::Result<Vec<f64>> {
        let CollectiveContestant::Ranks(ranks) = self else { return copy(bytes, calls) };
        for command in &mut ranks.commands {
            writeln!(command, "{} {bytes} {calls}", collective.name())?;
            command.flush()?;
        }
        let times: Vec<f64> = line(&mut ranks.results)?
            .split(' ')
            .map(|time| Ok(time.parse::<f64>()? / 1e3))
            .collect::<anyhow::Result<_>>()?;
        ensure!(times.len() == calls, "{} calls were asked for, {} measured", calls, times.len());
        Ok(times)
    }
}

/// A rank's command, in its namespace.
fn in_namespace(
    namespaces: Option<&Namespaces>,
    rank: u32,
    world: u32,
    program: &std::path::Path,
) -> Command {
    match namespaces {
        Some(namespaces) => namespaces.command(Namespaces::side(rank, world), program),
        None => Command::new(program),
    }
}

fn address(namespaces: Option<&Namespaces>, rank: u32, world: u32) -> IpAddr {
    match namespaces {
        Some(_) => Namespaces::address(Namespaces::side(rank, world)),
        None => Ipv4Addr::LOCALHOST.into(),
    }
}

fn spawn(
    processes: &mut Processes,
    command: &mut Command,
) -> anyhow::Result<(impl Write + use<>, impl std::io::Read + use<>)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{:?} cannot be started", command.get_program()))?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    processes.0.push(child);
    pipes.context("stdin and stdout are pipes")
}

/// The next line; an error where the rank has ended.
pub(super) fn line(output: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(output.read_line(&mut line)? > 0, "a rank ended early");
    Ok(line.trim().to_owned())
}

fn gloo(
    options: &CollectiveOptions,
    namespaces: Option<&Namespaces>,
) -> anyhow::Result<CollectiveContestant> {
    let found = Command::new(&options.python)
        .args(["-c", "import torch.distributed as d; raise SystemExit(not d.is_gloo_available())"])
        .stderr(Stdio::null())
        .status();
    let is_there = found.is_ok_and(|status| status.success());
    ensure!(is_there, "{} has no torch with gloo", options.python.display());
    let mut processes = Processes(Vec::new());
    let (mut commands, mut results): (Vec<Box<dyn Write>>, _) = (Vec::new(), None);
    let master = address(namespaces, 0, options.world);
    // Of another namespace, or free a moment ago: a collision shows as a failed start.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    for rank in 0..options.world {
        let mut command = in_namespace(namespaces, rank, options.world, &options.python);
        command
            .arg(PathBuf::from(PEERS).join("gloo.py"))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", options.world.to_string())
            .env("MASTER_ADDR", master.to_string())
            .env("MASTER_PORT", port.to_string())
            .env("GLOO_SOCKET_IFNAME", namespaces.map_or("lo", |_| Namespaces::INTERFACE));
        let (input, output) = spawn(&mut processes, &mut command)?;
        commands.push(Box::new(input));
        results.get_or_insert(output);
    }
    let results = Box::new(BufReader::new(results.context("there is a rank 0")?));
    Ok(CollectiveContestant::ranks(commands, results, processes, None))
}

fn copy(bytes: usize, calls: usize) -> anyhow::Result<Vec<f64>> {
    let (source, mut target) = (vec![1u8; bytes], vec![0u8; bytes]);
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let before = now_ns()?;
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        times.push((now_ns()? - before) as f64 / 1e3);
    }
    Ok(times)
}
