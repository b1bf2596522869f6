//! Communicators themselves, without the actor: sub-communicators, and ends in good order.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use elastic_collectives::{DataType, ReduceOp};
use elastic_gpu::Gpu;
use elastic_gpu::cuda::{CudaEvent, DeviceBuffer, Stream};
use elastic_gpu::nccl::{Comm, CommEnding, GpuPatience, Maker, Region, UniqueId};

use crate::support::{LONG, communicators, faults, search, wait_for_communicators};

fn patiently<T>(call: impl FnOnce(&GpuPatience<'_>) -> T) -> T {
    call(&GpuPatience { due: Instant::now() + LONG, stop: &|| None })
}

/// Does the same as each of `world` ranks, each on a thread and with a GPU of its own; the results by rank.
fn ranks<T: Send>(world: u32, body: impl Fn(Comm, &Maker) -> T + Sync) -> Vec<T> {
    let first = Gpu::open(&search(), 0, false).expect("the stand-in works");
    let id: UniqueId = first.maker().nccl.unique_id().expect("it makes one");
    std::thread::scope(|scope| {
        let rank = |rank: u32| {
            let (id, body) = (&id, &body);
            scope.spawn(move || {
                let gpu = Gpu::open(&search(), rank, false).expect("the stand-in works");
                let comm = patiently(|patience| gpu.maker().init(id, world, rank, patience));
                body(comm.expect("it forms"), gpu.maker())
            })
        };
        let threads: Vec<_> = (0..world).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Puts one operation through a communicator and waits for it.
fn passes(comm: &Comm, maker: &Maker) {
    let stream = Stream::new(&maker.device).expect("a stream");
    let buffer = DeviceBuffer::new(&maker.device, 64).expect("memory");
    let all = Region::new(&buffer, 0..64);
    let queued = patiently(|patience| {
        comm.enqueue(&stream, patience, |operations| {
            operations.all_reduce(&all, &all, DataType::F32, ReduceOp::Sum)
        })
    });
    queued.expect("it is queued");
    let end = CudaEvent::new(&maker.device).expect("a mark");
    end.record(&stream).expect("it is queued");
    let due = Instant::now() + LONG;
    while !end.is_passed().expect("the GPU works") {
        assert!(Instant::now() < due, "it is done");
        std::thread::yield_now();
    }
}

#[test]
fn a_split_gives_each_colour_a_communicator_whose_ranks_go_by_key() {
    let _turn = faults();
    // Ranks 0, 2 and 3 by falling key; rank 1 alone; rank 4 in none.
    let colours = [Some(7), Some(1), Some(7), Some(7), None];
    let places = [(2, 3), (0, 1), (1, 3), (0, 3), (0, 0)];
    let made = ranks(5, |comm, maker| {
        let rank = comm.rank() as usize;
        let key = 10 - comm.rank();
        let part = patiently(|patience| comm.split(colours[rank], key, places[rank], patience));
        let part = part.expect("it splits");
        if let Some(part) = &part {
            passes(part, maker);
        }
        passes(&comm, maker);
        part.map(|part| (part.rank(), part.world()))
    });
    let due: Vec<_> =
        colours.iter().zip(places).map(|(colour, place)| colour.map(|_| place)).collect();
    assert_eq!(made, due);
}

#[test]
fn all_leave_a_communicator_in_good_order() {
    let _turn = faults();
    let before = communicators();
    ranks(3, |comm, maker| {
        passes(&comm, maker);
        comm.end(CommEnding::Finish).expect("all come");
        assert!(comm.is_ended());
        assert!(comm.peek_error().is_err(), "nothing can be asked of it");
        comm.end(CommEnding::Abort).expect("to end it again does nothing");
    });
    wait_for_communicators(before);
}

#[test]
fn who_is_left_alone_in_a_finish_aborts() {
    let faults = faults();
    let before = communicators();
    let others_wait = Barrier::new(2);
    ranks(2, |comm, maker| {
        passes(&comm, maker);
        if comm.rank() == 0 {
            comm.end(CommEnding::Finish).expect("it is aborted instead");
            others_wait.wait();
        } else {
            others_wait.wait();
            faults.set("call=ncclCommFinalize do=fail:3");
            comm.end(CommEnding::Finish).expect("it is aborted instead");
        }
        assert!(comm.is_ended());
    });
    wait_for_communicators(before);
}

/// Time for which the threads of a revoked communicator run on in the tests: longer than an abort may take.
const SETTLES_MS: u64 = 900;

#[test]
fn a_revoked_communicator_is_shrunk_and_ended_once_nccl_has_settled() {
    let faults = faults();
    let before = communicators();
    faults.set(&format!("call=ncclCommRevoke do=slow:{SETTLES_MS}"));
    ranks(3, |comm, maker| {
        passes(&comm, maker);
        let began = Instant::now();
        comm.revoke().expect("it is revoked");
        assert!(began.elapsed() < Duration::from_millis(SETTLES_MS), "who revokes does not wait");
        if comm.rank() < 2 {
            let rest = patiently(|patience| comm.shrink(&[2], patience)).expect("it shrinks");
            assert!(began.elapsed() >= Duration::from_millis(SETTLES_MS));
            passes(&rest, maker);
        }
        comm.end(CommEnding::Abort).expect("it is not left behind");
        assert_eq!(maker.reaper.left_behind(), 0);
    });
    wait_for_communicators(before);
}

#[test]
fn kernels_are_loaded_ahead_by_a_communicator_of_one_rank() {
    let faults = faults();
    let before = communicators();
    let gpu = Gpu::open(&search(), 0, false).expect("the stand-in works");
    gpu.warm_up().expect("it forms");
    faults.set("call=ncclCommInitRankConfig do=fail:3");
    let refused = gpu.warm_up().expect_err("NCCL refuses").to_string();
    assert!(refused.contains("ncclCommInitRankConfig"), "{refused}");
    wait_for_communicators(before);
}
