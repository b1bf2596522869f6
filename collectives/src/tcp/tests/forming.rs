//! Tests of forming: strangers, stale peers, wrong keys, late ranks, aborts, and a hundred generations in place.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use super::super::TcpCommunicator;
use super::super::link::StreamLink;
use super::{KEY, LONG, fabric, fabrics, form, group, spawn};
use crate::wire::{
    HELLO_LENGTH, HandshakeRefusal, HandshakeReply, REPLY_LENGTH, RankHello, SIGNED_LENGTH,
};
use crate::{
    AbortHandle, CommunicatorExt, DEFAULT_STREAMS, DataPlane, FormError, GroupSpec, ReduceOp,
};

const SHORT: Duration = Duration::from_millis(300);

fn hello(generation: u64) -> [u8; HELLO_LENGTH] {
    RankHello {
        term: 1,
        generation,
        world_size: 2,
        rank: 1,
        target: 0,
        part: 0,
        stream: 0,
        nonce: [3; 32],
        proof: [0; 32],
    }
    .encode()
}

/// The hello with its missing proof added.
fn proved(hello: [u8; HELLO_LENGTH], key: [u8; 32]) -> [u8; HELLO_LENGTH] {
    let mut signed = b"elastic-collectives hello".to_vec();
    signed.extend(&hello[..SIGNED_LENGTH]);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let mut hello = RankHello::decode(&hello).unwrap();
    hello.proof.copy_from_slice(ring::hmac::sign(&key, &signed).as_ref());
    hello.encode()
}

#[test]
fn survivors_of_a_shrinking_world_form_again_a_hundred_times() {
    shrinks(DataPlane::Tcp);
}

#[test]
fn survivors_form_again_over_quic() {
    shrinks(DataPlane::Quic);
}

fn shrinks(data_plane: DataPlane) {
    let (fabrics, addresses) = fabrics(6);
    let ranks: Vec<_> = fabrics
        .into_iter()
        .enumerate()
        .map(|(rank, mut fabric)| {
            let addresses = addresses.clone();
            spawn(move || {
                let abort = AbortHandle::new().unwrap();
                for generation in 0..100u64 {
                    // Every twenty generations the last rank leaves for good.
                    let world = 6 - generation as usize / 20;
                    if rank >= world {
                        return;
                    }
                    let group = group(generation, rank as u32, &addresses[..world]);
                    let group = GroupSpec { data_plane, ..group };
                    let mut communicator = fabric.form(&group, &abort).unwrap();
                    let mut sum = [rank as u64 + generation];
                    communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    let world = world as u64;
                    assert_eq!(sum, [world * (world - 1) / 2 + world * generation]);
                }
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn garbage_and_half_a_handshake_do_not_disturb() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let mut strangers: Vec<_> =
        (0..300).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
    for (number, stranger) in strangers.iter_mut().enumerate() {
        match number % 4 {
            0 => stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap(),
            1 => stranger.write_all(&[255; 4096]).unwrap(),
            2 => stranger.write_all(&hello(1)[..30]).unwrap(),
            _ => {}
        }
    }
    let abort = AbortHandle::new().unwrap();
    let forming = form(first, group(1, 0, &addresses), &abort);
    let (_, mut other) = form(second, group(1, 1, &addresses), &abort).join().unwrap().unwrap();
    let (_, mut own) = forming.join().unwrap().unwrap();
    let barrier = spawn(move || other.barrier());
    own.barrier().unwrap();
    barrier.join().unwrap().unwrap();
}

#[test]
fn g2_a_peer_of_an_older_generation_is_told_so() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let mut stale = TcpStream::connect(addresses[0]).unwrap();
    stale.write_all(&hello(4)).unwrap();
    let abort = AbortHandle::new().unwrap();
    let forming = form(first, group(5, 0, &addresses), &abort);
    let mut answer = [0; REPLY_LENGTH];
    stale.read_exact(&mut answer).unwrap();
    let due = HandshakeReply::Refused { refusal: HandshakeRefusal::Stale, term: 1, generation: 5 };
    assert_eq!(HandshakeReply::decode(&answer), Ok(due));
    assert_eq!(stale.read(&mut answer).unwrap_or(0), 0);
    form(second, group(5, 1, &addresses), &abort).join().unwrap().unwrap();
    let (mut first, _) = forming.join().unwrap().unwrap();
    let error = first.form(&group(4, 0, &addresses), &abort).unwrap_err();
    assert!(matches!(error, FormError::Stale { generation: 4, .. }));
}

#[test]
fn another_key_is_refused_and_named() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let abort = AbortHandle::new().unwrap();
    let mut ours = group(1, 0, &addresses);
    ours.form_deadline = SHORT;
    let mut theirs = group(1, 1, &addresses);
    (theirs.key, theirs.form_deadline) = ([8; 32], SHORT);
    let forming = form(first, ours, &abort);
    let (_, error) = form(second, theirs, &abort).join().unwrap().unwrap_err();
    let FormError::DeadlinePassed { missing } = error else { panic!("{error}") };
    assert_eq!(missing[0].rank, 0);
    assert!(forming.join().unwrap().is_err());
}

#[test]
fn a_forged_proof_is_refused() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let abort = AbortHandle::new().unwrap();
    let forming = form(first, group(1, 0, &addresses), &abort);
    let mut forger = TcpStream::connect(addresses[0]).unwrap();
    // A hello can be replayed by any observer of it.
    forger.write_all(&proved(hello(1), KEY)).unwrap();
    let mut answer = [0; REPLY_LENGTH];
    forger.read_exact(&mut answer).unwrap();
    assert!(matches!(HandshakeReply::decode(&answer), Ok(HandshakeReply::Welcome { .. })));
    forger.write_all(&crate::wire::Proof { proof: [0; 32] }.encode()).unwrap();
    assert_eq!(forger.read(&mut answer).unwrap_or(0), 0);
    form(second, group(1, 1, &addresses), &abort).join().unwrap().unwrap();
    forming.join().unwrap().unwrap();
}

#[test]
fn who_dials_early_waits_for_its_generation() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, mut first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let abort = AbortHandle::new().unwrap();
    let early = form(second, group(2, 1, &addresses), &abort);
    // The first rank is still in generation 1, whose other member does not come.
    let mut old = group(1, 0, &addresses);
    old.form_deadline = SHORT;
    assert!(matches!(first.form(&old, &abort), Err(FormError::DeadlinePassed { .. })));
    first.form(&group(2, 0, &addresses), &abort).unwrap();
    early.join().unwrap().unwrap();
}

#[test]
fn nothing_is_parked_without_the_key() {
    let (mut fabrics, addresses) = fabrics(2);
    let mut first = fabrics.remove(0);
    let later = RankHello { part: 1, ..RankHello::decode(&hello(1)).unwrap() }.encode();
    let hellos = [hello(u64::MAX), later, proved(later, [9; 32]), proved(later, KEY)];
    let mut strangers: Vec<_> = hellos
        .iter()
        .map(|hello| {
            let mut stranger = TcpStream::connect(addresses[0]).unwrap();
            stranger.write_all(hello).unwrap();
            stranger
        })
        .collect();
    let abort = AbortHandle::new().unwrap();
    let mut group = group(1, 0, &addresses);
    group.form_deadline = SHORT;
    first.form(&group, &abort).unwrap_err();
    assert_eq!(first.parked.len(), 1);
    let mut answer = [0; REPLY_LENGTH];
    strangers[0].read_exact(&mut answer).unwrap();
    let due = HandshakeReply::Refused { refusal: HandshakeRefusal::NotYet, term: 1, generation: 1 };
    assert_eq!(HandshakeReply::decode(&answer), Ok(due));
    for stranger in &mut strangers[1..3] {
        assert_eq!(stranger.read(&mut answer).unwrap_or(0), 0);
    }
}

#[test]
fn what_is_parked_is_bounded_by_the_links_and_pruned() {
    let (mut fabrics, addresses) = fabrics(2);
    let mut first = fabrics.remove(0);
    let later = RankHello { part: 1, ..RankHello::decode(&hello(1)).unwrap() }.encode();
    let replays: Vec<_> = (0..50)
        .map(|_| {
            let mut replay = TcpStream::connect(addresses[0]).unwrap();
            replay.write_all(&proved(later, KEY)).unwrap();
            replay
        })
        .collect();
    let abort = AbortHandle::new().unwrap();
    let mut group = group(1, 0, &addresses);
    (group.form_deadline, group.streams) = (SHORT, 4);
    first.form(&group, &abort).unwrap_err();
    assert_eq!(first.parked.len(), 4, "one for each link");
    drop(replays);
    let mut last = TcpStream::connect(addresses[0]).unwrap();
    last.write_all(&proved(
        RankHello { part: 2, ..RankHello::decode(&later).unwrap() }.encode(),
        KEY,
    ))
    .unwrap();
    first.form_part(&group, 1, &abort).unwrap_err();
    assert_eq!(first.parked.len(), 1, "those of before are closed");
}

#[test]
fn strangers_that_stay_do_not_disturb() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let strangers: Vec<_> = (0..400)
        .map(|_| {
            let mut stranger = TcpStream::connect(addresses[0]).unwrap();
            stranger.write_all(&hello(u64::MAX)[..71]).unwrap();
            stranger
        })
        .collect();
    let abort = AbortHandle::new().unwrap();
    let forming = form(first, group(1, 0, &addresses), &abort);
    form(second, group(1, 1, &addresses), &abort).join().unwrap().unwrap();
    let (first, _) = forming.join().unwrap().unwrap();
    assert!(first.warning.is_some_and(|warning| warning.contains("no member of the job")));
    drop(strangers);
}

#[test]
fn g9_the_deadline_names_who_is_missing() {
    let (mut fabrics, addresses) = fabrics(3);
    let abort = AbortHandle::new().unwrap();
    let mut group = group(1, 1, &addresses);
    group.form_deadline = SHORT;
    let error = fabrics[1].form(&group, &abort).unwrap_err();
    let FormError::DeadlinePassed { missing } = error else { panic!("{error}") };
    let ranks: Vec<_> = missing.iter().map(|peer| peer.rank).collect();
    assert_eq!(ranks, [0, 2]);
}

#[test]
fn g9_a_peer_behind_a_path_that_was_silent_is_not_waited_for_as_long() {
    let (mut fabrics, addresses) = fabrics(3);
    let abort = AbortHandle::new().unwrap();
    let mut group = group(1, 1, &addresses);
    // The forming's own deadline is `LONG`.
    group.path_deadline = SHORT;
    fabrics[1].standing.doubt(addresses[0]);
    let error = fabrics[1].form(&group, &abort).unwrap_err();
    let FormError::DeadlinePassed { missing } = error else { panic!("{error}") };
    let ranks: Vec<_> = missing.iter().map(|peer| peer.rank).collect();
    assert_eq!(ranks, [0], "rank 2 is late, and nothing is known against its path");
}

/// Closes a connection without telling the other end, as if a reset had reached this end alone.
#[expect(unsafe_code, reason = "TCP_REPAIR has no safe wrapper")]
fn forget(socket: socket2::Socket) -> std::io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    let descriptor = socket.as_raw_fd();
    // SAFETY: the kernel reads `length` bytes of `on`.
    let result = unsafe {
        libc::setsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const on).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
fn a_handshake_whose_other_end_was_reset_is_dialed_again() {
    let (mut fabrics, addresses) = fabrics(2);
    let (second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let abort = AbortHandle::new().unwrap();
    // The forming's own deadline is `LONG`.
    let dialing = form(second, group(1, 1, &addresses), &abort);
    first.listener.set_nonblocking(false).unwrap();
    for _ in 0..DEFAULT_STREAMS {
        let (accepted, _) = first.listener.accept().unwrap();
        (&accepted).read_exact(&mut [0; HELLO_LENGTH]).unwrap();
        if let Err(error) = forget(accepted) {
            eprintln!("skipped: TCP_REPAIR is not permitted here ({error})");
            abort.abort(1, 1, "skipped");
            return drop(dialing.join().unwrap());
        }
    }
    first.listener.set_nonblocking(true).unwrap();
    let accepting = form(first, group(1, 0, &addresses), &abort);
    dialing.join().unwrap().unwrap();
    accepting.join().unwrap().unwrap();
}

#[test]
fn an_abort_ends_forming_before_and_while_it_waits() {
    let (mut fabrics, addresses) = fabrics(2);
    let (_second, first) = (fabrics.pop().unwrap(), fabrics.pop().unwrap());
    let abort = AbortHandle::new().unwrap();
    let forming = form(first, group(1, 0, &addresses), &abort);
    abort.abort(1, 1, "the other host is gone");
    let (mut first, error) = forming.join().unwrap().unwrap_err();
    assert!(matches!(error, FormError::Aborted { generation: 1, .. }));
    let error = first.form(&group(1, 0, &addresses), &abort).unwrap_err();
    assert!(matches!(error, FormError::Aborted { generation: 1, .. }));
    // The next generation is not concerned (G-2).
    first.form(&group(2, 0, &addresses[..1]), &abort).unwrap();
}

#[test]
fn a_group_without_its_rank_is_refused() {
    let mut fabric = fabric();
    let abort = AbortHandle::new().unwrap();
    let address = fabric.local_address();
    let error = fabric.form(&group(1, 1, &[address]), &abort).unwrap_err();
    assert!(matches!(error, FormError::InvalidGroup(_)));
    assert!(!format!("{:?}", group(1, 0, &[address])).contains("key"));
    assert_eq!(group(1, 0, &[address]).form_deadline, LONG);
}

/// The connections with each other rank, as the kernel names this side's sockets.
type Sockets = Vec<Vec<PathBuf>>;

fn sockets(group: &TcpCommunicator) -> Sockets {
    let inode = |link: &StreamLink| {
        let descriptor = format!("/proc/self/fd/{}", link.socket.as_raw_fd());
        std::fs::read_link(descriptor).unwrap()
    };
    group.engine.peers().map(|streams| streams.iter().map(inode).collect()).collect()
}

/// The data plane, and whether the links are encrypted by this crate.
const PATHS: [(DataPlane, bool); 3] =
    [(DataPlane::Tcp, false), (DataPlane::Tcp, true), (DataPlane::Quic, false)];

/// Forms generations 1 and 2, the second of which has the ranks in reverse; `between` runs in the first.
fn reformed(
    (data_plane, encrypts): (DataPlane, bool),
    between: fn(u32, &mut TcpCommunicator),
) -> Vec<(Sockets, Sockets)> {
    let (fabrics, addresses) = fabrics(3);
    let ranks = fabrics.into_iter().enumerate().map(|(rank, mut fabric)| {
        let addresses = addresses.clone();
        spawn(move || {
            let abort = AbortHandle::new().unwrap();
            let rank = rank as u32;
            let of = |group: GroupSpec| GroupSpec { data_plane, encrypts, ..group };
            let mut first = fabric.form(&of(group(1, rank, &addresses)), &abort).unwrap();
            let before = sockets(&first);
            between(rank, &mut first);
            drop(first);
            let reverse: Vec<_> = addresses.iter().rev().copied().collect();
            let mut second = fabric.form(&of(group(2, 2 - rank, &reverse)), &abort).unwrap();
            let mut sum = [rank];
            second.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [3]);
            let mut after = sockets(&second);
            after.reverse();
            (before, after)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn the_next_generation_forms_over_what_stands() {
    // A connection is also reused after a failed collective, if all frames were read.
    let failing = |rank, group: &mut TcpCommunicator| {
        group.barrier().unwrap();
        if rank > 0 {
            group.recv(&mut [0u8], 0).unwrap_err();
        }
    };
    for path in PATHS {
        for between in [|_, group: &mut TcpCommunicator| group.barrier().unwrap(), failing] {
            for (before, after) in reformed(path, between) {
                assert_eq!(before, after);
            }
        }
    }
}

#[test]
fn g4_a_connection_with_late_data_is_not_used_again() {
    // Rank 2 leaves what rank 1 sends unread.
    let late = |rank, group: &mut TcpCommunicator| match rank {
        0 => {
            group.recv(&mut [0u8], 1).unwrap();
            group.send(&[1u8], 2).unwrap();
        }
        1 => {
            group.send(&[1u8; 100], 2).unwrap();
            group.send(&[1u8], 0).unwrap();
        }
        _ => group.recv(&mut [0u8], 0).unwrap(),
    };
    for path in PATHS {
        let ranks = reformed(path, late);
        let [(_, _), (before, after), _] = &ranks[..] else { panic!("three ranks") };
        assert_eq!(before[0], after[0]);
        // The connection is replaced on the stream that carried the unread data, and on no other one.
        assert_ne!(before[1][0], after[1][0]);
        let streams = if path.0 == DataPlane::Quic { 1 } else { 4 };
        assert_eq!((before[1].len(), &before[1][1..]), (streams, &after[1][1..]));
    }
}
