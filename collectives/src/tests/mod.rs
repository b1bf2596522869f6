//! Tests of operations and their failures on every path, over loopback, with threads of this process as ranks.

mod composition;
mod failure;
mod groups;
mod negotiation;
mod operations;
mod reference;

use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{
    AbortHandle, AsyncCommunicator, Communicator, DEFAULT_STREAMS, DataPlane, GroupSpec,
    HostFabric, ProgressThread, TcpFabric,
};

/// Time limit that ends a hanging test; a passing test never waits this long.
const LONG: Duration = Duration::from_secs(60);

/// The path of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Tcp,
    SharedMemory,
    /// Hosts of two ranks each, and one more where the world is odd.
    Hierarchy,
    /// Hosts of one, three, two and two ranks, with encryption between them.
    UnevenHierarchy,
    /// TCP with encryption.
    Encrypted,
    Quic,
    /// Hosts of two ranks each, with QUIC between them.
    QuicHierarchy,
}

impl Path {
    const ALL: [Path; 5] =
        [Path::Tcp, Path::SharedMemory, Path::Hierarchy, Path::Encrypted, Path::Quic];

    /// All paths, with the unusual ones, for tests over all kinds of data.
    const EVERY: [Path; 7] = [
        Path::Tcp,
        Path::SharedMemory,
        Path::Hierarchy,
        Path::UnevenHierarchy,
        Path::Encrypted,
        Path::Quic,
        Path::QuicHierarchy,
    ];

    fn data_plane(self) -> DataPlane {
        match self {
            Path::Tcp | Path::Encrypted => DataPlane::Tcp,
            Path::SharedMemory | Path::Hierarchy | Path::UnevenHierarchy => DataPlane::Auto,
            Path::Quic => DataPlane::Quic,
            Path::QuicHierarchy => DataPlane::ShmQuic,
        }
    }

    fn encrypts(self) -> bool {
        matches!(self, Path::UnevenHierarchy | Path::Encrypted)
    }

    fn hosts(self, world: u32) -> Vec<u32> {
        match self {
            Path::Tcp | Path::Encrypted | Path::Quic => Vec::new(),
            Path::SharedMemory => vec![3; world as usize],
            Path::UnevenHierarchy => vec![0, 1, 1, 1, 2, 2, 3, 3][..world as usize].to_vec(),
            Path::Hierarchy | Path::QuicHierarchy => (0..world).map(|rank| rank / 2).collect(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the ranks of a test are threads")]
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(body)
}

/// Forms a world and runs `body` on each rank; the results by rank.
fn world<T: Send + 'static>(
    path: Path,
    world: u32,
    operation_deadline: Duration,
    body: impl Fn(&mut dyn Communicator, &AbortHandle) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let bind = |_| TcpFabric::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let fabrics: Vec<_> = (0..world).map(bind).collect();
    let peers: Vec<_> = fabrics.iter().map(TcpFabric::local_address).collect();
    let hosts = path.hosts(world);
    let rank = |(rank, fabric): (usize, TcpFabric)| {
        let (peers, hosts, body) = (peers.clone(), hosts.clone(), body.clone());
        spawn(move || {
            let abort = AbortHandle::new().unwrap();
            let group = GroupSpec {
                term: 1,
                generation: 1,
                rank: rank as u32,
                peers,
                hosts,
                host_names: Vec::new(),
                key: [7; 32],
                data_plane: path.data_plane(),
                encrypts: path.encrypts(),
                streams: DEFAULT_STREAMS,
                form_deadline: LONG,
                operation_deadline,
                path_deadline: crate::DEFAULT_PATH_DEADLINE,
            };
            let mut communicator = HostFabric::new(fabric).form(&group, &abort).unwrap();
            // A segment is visible only as a mapping, since it has no name in any file system.
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let shares = maps.contains("memfd:elastic-collectives");
            let alone = world < [u32::MAX, 2, 2, 3, u32::MAX, u32::MAX, 2][path as usize];
            assert!(alone || shares, "the ranks share no memory");
            body(&mut *communicator, &abort)
        })
    };
    let ranks: Vec<_> = fabrics.into_iter().enumerate().map(rank).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// A launchable communicator for a test's rank: a sub-group, since the rank's own communicator is only borrowed.
fn launchable(communicator: &mut dyn Communicator, abort: &AbortHandle) -> AsyncCommunicator {
    let group = communicator.split(Some(0), 0).unwrap().unwrap();
    AsyncCommunicator::new(group, Some(abort.clone()), &ProgressThread::new())
}
