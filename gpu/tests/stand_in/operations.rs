//! Every collective, through NCCL's interface.

use elastic_collectives::{
    CollectiveError, Communicator, CommunicatorExt, DataPlane, Element, ReduceOp,
};
use elastic_gpu::{LANE_BYTES, Scope};
use half::f16;

use crate::support::{Options, World, faults};

fn pattern(rank: u32, length: usize) -> Vec<f32> {
    (0..length).map(|index| (rank as f32 + 1.0) * (index % 97) as f32).collect()
}

/// Calls every operation, and checks its result.
fn every_operation(group: &mut dyn Communicator) -> Result<(), CollectiveError> {
    let (rank, world) = (group.rank(), group.world_size());
    let all = || (0..world).map(|rank| pattern(rank, 1000));
    let folded = |fold: fn(f32, f32) -> f32| -> Vec<f32> {
        all()
            .reduce(|left, right| left.iter().zip(right).map(|(l, r)| fold(*l, r)).collect())
            .expect("somebody is there")
    };
    let mut data = pattern(rank, 1000);
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    assert_eq!(data, folded(|left, right| left + right));
    let mut data = pattern(rank, 1000);
    group.all_reduce(&mut data, ReduceOp::Max)?;
    assert_eq!(data, folded(f32::max));
    let mut data = pattern(rank, 1000);
    group.all_reduce(&mut data, ReduceOp::Mean)?;
    let mean: Vec<f32> = folded(|l, r| l + r).iter().map(|sum| sum / world as f32).collect();
    for (value, due) in data.iter().zip(mean) {
        assert!((value - due).abs() <= due.abs() * 1e-6);
    }

    let mut gathered = vec![0.0; 1000 * world as usize];
    group.all_gather(&pattern(rank, 1000), &mut gathered)?;
    assert_eq!(gathered, all().flatten().collect::<Vec<_>>());

    let counts: Vec<usize> = (0..world as usize).map(|rank| 10 * rank + 1).collect();
    let mut gathered = vec![0.0; counts.iter().sum()];
    group.all_gather_v(&pattern(rank, counts[rank as usize]), &mut gathered, &counts)?;
    let due: Vec<f32> = (0..world).flat_map(|rank| pattern(rank, counts[rank as usize])).collect();
    assert_eq!(gathered, due);

    let input: Vec<i64> =
        (0..world).flat_map(|part| vec![i64::from(part * 10 + rank); 5]).collect();
    let mut output = [0_i64; 5];
    group.reduce_scatter(&input, &mut output, ReduceOp::Sum)?;
    let due: i64 = (0..world).map(|from| i64::from(rank * 10 + from)).sum();
    assert_eq!(output, [due; 5]);

    for root in 0..world {
        let mut data = pattern(rank, 500);
        group.broadcast(&mut data, root)?;
        assert_eq!(data, pattern(root, 500));

        let mut data = pattern(rank, 1000);
        group.reduce(&mut data, ReduceOp::Sum, root)?;
        let sum = folded(|left, right| left + right);
        assert_eq!(data, if rank == root { sum } else { pattern(rank, 1000) });

        let mut gathered = vec![0.0; 1000 * world as usize];
        let at_root = (rank == root).then_some(gathered.as_mut_slice());
        group.gather(&pattern(rank, 1000), at_root, root)?;
        let due: Vec<f32> = all().flatten().collect();
        assert!(rank != root || gathered == due);

        let mut part = [0.0; 1000];
        group.scatter((rank == root).then_some(due.as_slice()), &mut part, root)?;
        assert_eq!(part.as_slice(), pattern(rank, 1000));
    }

    let input: Vec<u32> = (0..world).flat_map(|to| vec![rank * 100 + to; 3]).collect();
    let mut output = vec![0_u32; 3 * world as usize];
    group.all_to_all(&input, &mut output)?;
    assert_eq!(output, (0..world).flat_map(|from| vec![from * 100 + rank; 3]).collect::<Vec<_>>());

    let count = |from: u32, to: u32| (from + 2 * to) as usize;
    let out: Vec<usize> = (0..world).map(|to| count(rank, to)).collect();
    let back: Vec<usize> = (0..world).map(|from| count(from, rank)).collect();
    let input: Vec<u8> = out.iter().flat_map(|count| vec![rank as u8; *count]).collect();
    let mut output = vec![9_u8; back.iter().sum()];
    group.all_to_all_v(&input, &out, &mut output, &back)?;
    let due: Vec<u8> = (0..world).flat_map(|from| vec![from as u8; count(from, rank)]).collect();
    assert_eq!(output, due);

    group.barrier()?;
    if world > 1 {
        let mut token = [rank];
        if rank == 0 {
            group.send(&token, 1)?;
            group.recv(&mut token, world - 1)?;
            assert_eq!(token, [world - 1]);
        } else {
            group.recv(&mut token, rank - 1)?;
            assert_eq!(token, [rank - 1]);
            group.send(&[rank], (rank + 1) % world)?;
        }
    }
    Ok(())
}

#[test]
fn every_collective_gives_what_it_must() {
    let _turn = faults();
    for world in [1, 2, 3] {
        let mut world = World::new(0..world, Options::default());
        world.form();
        world.works(every_operation);
    }
}

#[test]
fn the_same_where_nccl_counts_its_ranks_in_another_order() {
    let _turn = faults();
    World::of_another_order().works(every_operation);
}

#[test]
fn the_same_with_nccl_within_hosts_only() {
    let _turn = faults();
    let host: fn(u32) -> &'static str = |rank| if rank < 3 { "a" } else { "b" };
    // The CPU groups within the hosts share memory, or have connections of their own.
    for data_plane in [DataPlane::Auto, DataPlane::Tcp] {
        let options = Options { scope: Scope::Host, host, data_plane, ..Options::default() };
        let mut world = World::new(0..4, options);
        world.form();
        world.works(every_operation);
        world.works(sixteen_bits_are_rounded_once);
    }
}

/// The ranks of the first host have 2048, 1 and 0, and that of the second has 1. The sum is 2048 where each host rounds
/// its sum to 16 bits, and 2050 where only the result is rounded. The message is large enough for partial sums, and
/// small enough for contributions, in turn.
fn sixteen_bits_are_rounded_once(group: &mut dyn Communicator) -> Result<(), CollectiveError> {
    for length in [10, 100_000] {
        let own = [2048.0, 1.0, 0.0, 1.0][group.rank() as usize];
        let mut data = vec![f16::from_f32(own); length];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(data.iter().all(|sum| *sum == f16::from_f32(2050.0)), "{}", data[0]);
    }
    Ok(())
}

#[test]
fn what_is_larger_than_the_lane_goes_piece_by_piece() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    world.form();
    let length = LANE_BYTES / size_of::<f32>() + 1000;
    let results = world.collective(move |group| {
        let rank = group.rank();
        let mut data = pattern(rank, length);
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        let due = pattern(0, length).into_iter().zip(pattern(1, length)).map(|(l, r)| l + r);
        assert!(data.into_iter().eq(due));
        let mut gathered = vec![0.0; 2 * length];
        group.all_gather(&pattern(rank, length), &mut gathered)?;
        assert!(gathered.into_iter().eq([0, 1].into_iter().flat_map(|r| pattern(r, length))));
        Ok::<(), CollectiveError>(())
    });
    for result in results {
        result.expect("it works");
    }
}

#[test]
fn wrong_arguments_are_refused_and_the_group_works_on() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    world.form();
    fn refused<E: Element>(group: &mut dyn Communicator, data: &mut [E], op: ReduceOp) {
        let result = group.all_reduce(data, op);
        assert!(matches!(result, Err(CollectiveError::InvalidArgument { .. })), "{result:?}");
    }
    world.collective(|group| {
        refused(group, &mut [1_u8], ReduceOp::Mean);
        assert!(group.broadcast(&mut [1_u8], 9).is_err());
    });
    world.check();
    world.collective(|group| group.close());
    for result in world.collective(|group| group.barrier()) {
        assert!(matches!(result, Err(CollectiveError::Closed)));
    }
}
