//! Tests of refused segments, and of which groups share memory. The operations are tested elsewhere, on every path.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use elastic_robust_lock::{LockSeat, LockWatch, RobustLock};
use ring::rand::SystemRandom;

use super::ShmCommunicator;
use super::layout::{PIECE_MOST, SegmentLayout};
use super::memory::SharedSegment;
use super::stores::Stores;
use crate::{
    AbortHandle, CollectiveError, CommunicatorExt, DEFAULT_STREAMS, DataPlane, FormError,
    GroupSpec, HostFabric, PeerLoss, ReduceOp, TcpFabric,
};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn only_the_segment_of_the_token_is_opened() {
    let (layout, token) = (SegmentLayout::new(2), [1, 2, 3, 4]);
    let (segment, descriptor) = SharedSegment::create(layout, token).unwrap();
    let (pid, number) = (std::process::id(), descriptor.as_raw_fd());
    let same = SharedSegment::open(layout, pid, number, token).unwrap();
    segment.line(1, 0).step.store(7, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(same.line(1, 0).step.load(std::sync::atomic::Ordering::SeqCst), 7);
    assert!(SharedSegment::open(layout, pid, number, [1, 2, 3, 5]).is_err());
    assert!(SharedSegment::open(SegmentLayout::new(3), pid, number, token).is_err());
    assert!(SharedSegment::open(layout, pid, i32::MAX, token).is_err());
    assert!(SharedSegment::open(layout, u32::MAX, number, token).is_err());
    let file = unsealed(layout.length());
    assert!(
        SharedSegment::open(layout, pid, file.as_raw_fd(), token).is_err(),
        "its length may change"
    );
}

/// A memfd of the right length whose owner could shrink it under a reader.
fn unsealed(length: usize) -> std::fs::File {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let file =
        memfd_create(c"elastic-collectives", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .unwrap();
    let file = std::fs::File::from(file);
    file.set_len(length as u64).unwrap();
    file
}

fn group(generation: u64, rank: usize, peers: &[SocketAddr], hosts: &[u32]) -> GroupSpec {
    GroupSpec {
        term: 1,
        generation,
        rank: rank as u32,
        peers: peers.to_vec(),
        hosts: hosts.to_vec(),
        host_names: Vec::new(),
        key: [5; 32],
        data_plane: DataPlane::Auto,
        encrypts: false,
        streams: DEFAULT_STREAMS,
        form_deadline: DEADLINE,
        operation_deadline: DEADLINE,
        path_deadline: crate::DEFAULT_PATH_DEADLINE,
    }
}

#[expect(clippy::disallowed_methods, reason = "the ranks of a test are threads")]
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(body)
}

fn fabrics(world: usize) -> (Vec<TcpFabric>, Vec<SocketAddr>) {
    let bind = |_| TcpFabric::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let fabrics: Vec<_> = (0..world).map(bind).collect();
    let addresses = fabrics.iter().map(TcpFabric::local_address).collect();
    (fabrics, addresses)
}

#[test]
fn each_generation_takes_the_path_that_its_hosts_allow() {
    let (fabrics, peers) = fabrics(3);
    let ranks: Vec<_> = (0..)
        .zip(fabrics)
        .map(|(rank, fabric)| {
            let peers = peers.clone();
            spawn(move || {
                let abort = AbortHandle::new().unwrap();
                let mut fabric = HostFabric::new(fabric);
                // All on one host, on two hosts, hosts unknown, two ranks on one host, and a world of one.
                let worlds: [(usize, &[u32]); 5] =
                    [(3, &[4, 4, 4]), (3, &[4, 5, 4]), (3, &[]), (2, &[9, 9]), (1, &[9])];
                for (generation, (world, hosts)) in (0..).zip(worlds) {
                    if rank >= world {
                        return;
                    }
                    let group = group(generation, rank, &peers[..world], hosts);
                    let mut communicator = fabric.form(&group, &abort).unwrap();
                    let mut sum = [1u64];
                    communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    assert_eq!(sum, [world as u64]);
                    assert_eq!(communicator.generation(), generation);
                }
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

/// Lengths in elements around those at which the stores and the pieces change.
fn lengths() -> Vec<usize> {
    let changes = [4096, PIECE_MOST / 4, PIECE_MOST / 2, PIECE_MOST];
    let around = changes.into_iter().flat_map(|at| [at - 1, at, at + 1]);
    [0, 1, 12, 13].into_iter().chain(around).chain([3 * PIECE_MOST / 4 + 5]).collect()
}

#[test]
fn two_ranks_that_write_past_their_caches_get_the_sums_of_those_that_do_not() {
    let value = |rank: usize, at: usize| (at % 1001) as f32 * 0.1 + rank as f32 * 3.7;
    let (fabrics, peers) = fabrics(2);
    let ranks = fabrics.into_iter().enumerate().map(|(rank, mut fabric)| {
        let peers = peers.clone();
        spawn(move || {
            let abort = AbortHandle::new().unwrap();
            for (generation, stores) in (1..).zip([Stores::Cached, Stores::NonTemporal]) {
                let mut tcp = fabric.form(&group(generation, rank, &peers, &[]), &abort).unwrap();
                let random = SystemRandom::new();
                let segment = ShmCommunicator::share(&mut tcp, &random).unwrap().unwrap();
                let mut group = ShmCommunicator::new(tcp, segment.written_with(stores));
                for length in lengths() {
                    let own: Vec<f32> = (0..length).map(|at| value(rank, at)).collect();
                    let due: Vec<f32> = (0..length).map(|at| value(0, at) + value(1, at)).collect();
                    let mut all = own.clone();
                    group.all_reduce(&mut all, ReduceOp::Sum).unwrap();
                    assert_eq!(all, due, "{stores:?}, {length} elements");
                    let mut at_root = own.clone();
                    group.reduce(&mut at_root, ReduceOp::Sum, 1).unwrap();
                    assert_eq!(at_root, if rank == 1 { due } else { own }, "{stores:?}, {length}");
                    let mut told: Vec<f32> = (0..length).map(|at| value(rank, at)).collect();
                    group.broadcast(&mut told, 0).unwrap();
                    assert!(told.iter().enumerate().all(|(at, told)| *told == value(0, at)));
                }
            }
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn hosts_are_given_for_all_ranks_or_for_none() {
    let (mut fabrics, peers) = fabrics(1);
    let mut fabric = HostFabric::new(fabrics.remove(0));
    let abort = AbortHandle::new().unwrap();
    let error = fabric.form(&group(1, 0, &peers, &[1, 1]), &abort).err();
    assert!(matches!(error, Some(FormError::InvalidGroup(_))), "{error:?}");
}

#[test]
fn an_abort_ends_the_forming_of_shared_memory() {
    let (fabrics, peers) = fabrics(2);
    let mut fabrics = fabrics.into_iter();
    let (mut first, second) = (fabrics.next().unwrap(), fabrics.next().unwrap());
    let abort = AbortHandle::new().unwrap();
    let waiting = {
        let (abort, group) = (abort.clone(), group(1, 1, &peers, &[0, 0]));
        spawn(move || HostFabric::new(second).form(&group, &abort).map(|formed| formed.rank()))
    };
    // The peer is connected, but never takes part in sharing memory.
    let other = AbortHandle::new().unwrap();
    let _idle = first.form(&group(1, 0, &peers, &[0, 0]), &other).unwrap();
    assert!(abort.abort(1, 1, "told"));
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, FormError::Aborted { generation: 1, .. }), "{error:?}");
}

/// The lock of a seat, taken by this thread as a worker would that inherited the agent's table.
fn take(seat: &LockSeat) -> RobustLock {
    let name = seat.name().expect("the agent's");
    let (number, rest) = name.split_once(':').expect("a descriptor and more");
    let path = format!("/proc/self/fd/{number}");
    let inherited = std::fs::File::options().read(true).write(true).open(path).unwrap();
    RobustLock::take(&format!("{}:{rest}", inherited.into_raw_fd())).unwrap()
}

#[test]
fn g_12_a_rank_that_waits_in_shared_memory_sees_a_peer_die_before_its_connections_close() {
    let (fabrics, peers) = fabrics(2);
    let agent = LockWatch::new(7).unwrap();
    let seats = [agent.seat(|| {}).unwrap(), agent.seat(|| {}).unwrap()];
    let mut ranks = fabrics.into_iter().zip(seats).zip(0..).map(|((fabric, seat), rank)| {
        let group = group(1, rank, &peers, &[4, 4]);
        let (formed, has_formed) = channel();
        let thread = spawn(move || {
            let lock = take(&seat);
            let abort = AbortHandle::new().unwrap();
            abort.watch_locks(lock.peers());
            let mut communicator = HostFabric::new(fabric).form(&group, &abort).unwrap();
            formed.send(()).unwrap();
            if rank == 1 {
                // The thread ends with the lock in its hand, as if its process died. Its connections remain.
                std::mem::forget((lock, communicator, seat));
                return None;
            }
            let result = communicator.all_reduce(&mut [1u64], ReduceOp::Sum);
            Some(result.expect_err("nobody else comes"))
        });
        (thread, has_formed)
    });
    let (waits, dies) = (ranks.next().unwrap(), ranks.next().unwrap());
    waits.1.recv_timeout(DEADLINE).unwrap();
    assert!(dies.0.join().unwrap().is_none());
    let error = waits.0.join().unwrap().expect("the rank that waits");
    let CollectiveError::PeerLost { rank: 1, source: PeerLoss::Died } = error else {
        panic!("{error:?}")
    };
}
