//! Tests of every operation against a plain computation, over world sizes, types, operations and odd sizes, with
//! the same bits on every rank.

use half::{bf16, f16};
use proptest::prelude::*;

use super::reference::reference;
use super::{LONG, Path, world};
use crate::shm;
use crate::tcp::PIECE;
use crate::{CollectiveError, CommunicatorExt, DataType, Element, Operation, ReduceOp};

/// The content of a rank's buffer: every bit pattern of the integers, moderate floats.
fn content(data_type: DataType, elements: usize, rank: u32, seed: u64) -> Vec<u64> {
    let size = data_type.size_bytes();
    let mut words = vec![0u64; (elements * size).div_ceil(8)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let mut state = seed ^ (u64::from(rank) << 32) | 1;
    for element in bytes.chunks_exact_mut(size).take(elements) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = ((state >> 40) as f64) / f64::from(1 << 23) - 1.0;
        match data_type {
            DataType::F32 => element.copy_from_slice(&(number as f32).to_ne_bytes()),
            DataType::F64 => element.copy_from_slice(&number.to_ne_bytes()),
            DataType::F16 => element.copy_from_slice(&f16::from_f64(number).to_ne_bytes()),
            DataType::Bf16 => element.copy_from_slice(&bf16::from_f64(number).to_ne_bytes()),
            _ => element.copy_from_slice(&state.to_be_bytes()[..size]),
        }
    }
    words
}

fn bytes(words: &[u64], length: usize) -> &[u8] {
    &bytemuck::cast_slice::<u64, u8>(words)[..length]
}

fn element_counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..20usize,
        4090..4100usize,
        PIECE / 2 - 3..PIECE / 2 + 3,
        shm::PIECE_MOST / 4 - 3..shm::PIECE_MOST / 4 + 3,
        (1..10usize, 0..7usize).prop_map(|(pieces, more)| pieces * PIECE / 3 + more),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reductions_give_the_bits_of_a_fold_in_rank_order(
        path in prop::sample::select(Path::EVERY.to_vec()),
        size in 1u32..=8,
        data_type in prop::sample::select(DataType::ALL.to_vec()),
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        elements in element_counts(),
        root in 0u32..8,
        seed: u64,
    ) {
        let root = root % size;
        prop_assume!(op != ReduceOp::Mean || !data_type.is_integer());
        let element = data_type.size_bytes();
        let length = elements * element;
        let inputs: Vec<_> =
            (0..size).map(|rank| content(data_type, elements, rank, seed)).collect();
        let reduced = reference(data_type, op, &inputs, elements);
        let part = elements / size as usize * element;
        let scattered = part * size as usize;
        let results = world(path, size, LONG, move |communicator, _| {
            let input = content(data_type, elements, communicator.rank(), seed);
            let mut data = input.clone();
            let data = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut data)[..length];
            communicator.run(Operation::AllReduce { data: &mut *data, data_type, op }).unwrap();
            let mut own = vec![0u64; part.div_ceil(8)];
            let own = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut own)[..part];
            let scattered = bytes(&input, scattered);
            let output = &mut *own;
            communicator.run(Operation::ReduceScatter { input: scattered, output, data_type, op }).unwrap();
            let mut at_root = input.clone();
            let at_root = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut at_root)[..length];
            communicator.run(Operation::Reduce { data: &mut *at_root, data_type, op, root }).unwrap();
            communicator.barrier().unwrap();
            (data.to_vec(), own.to_vec(), at_root.to_vec())
        });
        for (rank, (all, own, at_root)) in results.into_iter().enumerate() {
            prop_assert!(all == reduced, "all_reduce differs at rank {}", rank);
            let due = if rank as u32 == root { &reduced } else { bytes(&inputs[rank], length) };
            prop_assert!(at_root == due, "reduce to rank {} differs at rank {}", root, rank);
            prop_assert!(own == reduced[rank * part..(rank + 1) * part], "reduce_scatter, rank {}", rank);
        }
    }

    #[test]
    fn data_arrives_where_it_belongs(
        path in prop::sample::select(Path::EVERY.to_vec()),
        size in 1u32..=8,
        elements in element_counts(),
        root in 0u32..8,
        seed: u64,
    ) {
        let root = root % size;
        let input = move |rank: u32| content(DataType::U8, elements, rank, seed);
        let results = world(path, size, LONG, move |communicator, _| {
            let rank = communicator.rank();
            let own = input(rank);
            let own = bytes(&own, elements);
            let mut gathered = vec![0u8; elements * size as usize];
            communicator.all_gather(own, &mut gathered).unwrap();
            let mut state = own.to_vec();
            state.truncate(if rank == root { elements } else { 3 });
            communicator.broadcast_vec(&mut state, root, elements).unwrap();
            // Part r of what rank s sends is part s of what rank r gets: twice is the identity.
            let mut turned = vec![0u8; gathered.len()];
            let mut back = vec![0u8; gathered.len()];
            communicator.all_to_all(&gathered, &mut turned).unwrap();
            communicator.all_to_all(&turned, &mut back).unwrap();
            let counts: Vec<usize> = (0..size as usize).map(|rank| rank % 3 * elements / 2).collect();
            let mut varied = vec![0u8; counts.iter().sum()];
            let mine = vec![rank as u8; counts[rank as usize]];
            communicator.all_gather_v(&mine, &mut varied, &counts).unwrap();
            let mut at_root = vec![0u8; if rank == root { gathered.len() } else { 0 }];
            let place = (rank == root).then_some(&mut *at_root);
            communicator.gather(own, place, root).unwrap();
            let mut part = vec![0u8; elements];
            communicator.scatter((rank == root).then_some(&*turned), &mut part, root).unwrap();
            (gathered, state, turned, back, varied, at_root, part)
        });
        let inputs: Vec<Vec<u8>> = (0..size).map(|rank| bytes(&input(rank), elements).to_vec()).collect();
        for (rank, (gathered, state, turned, back, varied, at_root, part)) in results.into_iter().enumerate() {
            prop_assert!(gathered == inputs.concat());
            // The root's `turned` has its own input for each rank.
            prop_assert!(part == inputs[root as usize]);
            let all = if rank as u32 == root { inputs.concat() } else { Vec::new() };
            prop_assert!(at_root == all);
            prop_assert!(state == inputs[root as usize]);
            prop_assert!(turned == inputs[rank].repeat(size as usize));
            prop_assert!(back == gathered);
            let due: Vec<u8> =
                (0..size as usize).flat_map(|rank| vec![rank as u8; rank % 3 * elements / 2]).collect();
            prop_assert!(varied == due);
        }
    }
}

/// The worlds have more ranks, or hosts, than the limit from which small messages go by doubling.
#[test]
fn small_messages_among_many_have_the_bits_of_a_fold_in_rank_order() {
    for (path, size) in [(Path::Tcp, 16), (Path::Tcp, 19), (Path::Hierarchy, 33)] {
        for elements in [0, 1, 3, 1000] {
            let (data_type, op) = (DataType::F32, ReduceOp::Sum);
            let inputs: Vec<_> =
                (0..size).map(|rank| content(data_type, elements, rank, 7)).collect();
            let reduced = reference(data_type, op, &inputs, elements);
            let gathered: Vec<u8> =
                inputs.iter().flat_map(|input| bytes(input, elements * 4).to_vec()).collect();
            let results = world(path, size, LONG, move |communicator, _| {
                let input = content(data_type, elements, communicator.rank(), 7);
                let input = bytes(&input, elements * 4);
                let mut all = vec![0u8; input.len() * size as usize];
                communicator.all_gather(input, &mut all).unwrap();
                let mut words: Vec<f32> = bytemuck::cast_slice(input).to_vec();
                communicator.all_reduce(&mut words, op).unwrap();
                communicator.barrier().unwrap();
                (bytemuck::cast_slice::<f32, u8>(&words).to_vec(), all)
            });
            for (rank, (data, all)) in results.into_iter().enumerate() {
                assert!(data == reduced, "{path:?}, rank {rank} of {size}, {elements} elements");
                assert!(all == gathered, "{path:?}, rank {rank} of {size}, {elements} elements");
            }
        }
    }
}

#[test]
fn messages_arrive_in_order_beside_collectives() {
    for path in Path::ALL {
        world(path, 3, LONG, |communicator, _| {
            let (rank, next, previous) =
                (communicator.rank(), (communicator.rank() + 1) % 3, (communicator.rank() + 2) % 3);
            for round in 0..10u32 {
                communicator.send(&[rank, round], next).unwrap();
                communicator.send(&[f64::from(rank)], next).unwrap();
                let mut message = [0u32; 2];
                communicator.recv(&mut message, previous).unwrap();
                assert_eq!(message, [previous, round]);
                let mut number = [0.0f64];
                communicator.recv(&mut number, previous).unwrap();
                assert_eq!(number, [f64::from(previous)]);
                let mut sum = [1i64];
                communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [3]);
            }
        });
    }
}

/// A rank that runs ahead never touches data that a slower one still reads, for any order of operations.
#[test]
fn operations_back_to_back_do_not_mix() {
    for path in Path::ALL {
        world(path, 5, LONG, |communicator, _| {
            let own = communicator.rank();
            for round in 0..400u32 {
                let mut sum = [own + round; 3];
                communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [10 + 5 * round; 3]);
                let mut word = [if own == round % 5 { round } else { u32::MAX }];
                communicator.broadcast(&mut word, round % 5).unwrap();
                assert_eq!(word, [round]);
                let mut all = [0; 5];
                communicator.all_gather(&[own * round], &mut all).unwrap();
                assert_eq!(all, [0, 1, 2, 3, 4].map(|rank| rank * round));
                if round % 7 == 0 {
                    communicator.barrier().unwrap();
                }
                let mut parts = [0; 5];
                communicator.all_to_all(&[own + round; 5], &mut parts).unwrap();
                assert_eq!(parts, [0, 1, 2, 3, 4].map(|rank| rank + round));
            }
        });
    }
}

#[test]
fn all_to_all_v_takes_a_length_for_each_pair() {
    for path in Path::ALL {
        world(path, 4, LONG, |communicator, _| {
            let rank = communicator.rank() as usize;
            // Rank s sends s + r elements to rank r.
            let counts: Vec<usize> = (0..4).map(|other| rank + other).collect();
            let input = vec![rank as u64; counts.iter().sum()];
            let mut output = vec![9u64; input.len()];
            communicator.all_to_all_v(&input, &counts, &mut output, &counts).unwrap();
            let due: Vec<u64> = (0..4).flat_map(|other| vec![other as u64; rank + other]).collect();
            assert_eq!(output, due);
        });
    }
}

#[test]
fn wrong_arguments_are_refused_and_the_communicator_goes_on() {
    fn refused<T: std::fmt::Debug>(result: Result<T, CollectiveError>) {
        assert!(matches!(result, Err(CollectiveError::InvalidArgument { .. })), "{result:?}");
    }
    for path in Path::ALL {
        world(path, 2, LONG, |communicator, _| {
            let own = communicator.rank();
            refused(communicator.all_reduce(&mut [1i32], ReduceOp::Mean));
            refused(communicator.all_gather(&[1u8], &mut [0u8; 3]));
            refused(communicator.broadcast(&mut [1u8], 2));
            refused(communicator.send(&[1u8], own));
            refused(communicator.all_to_all(&[1u8; 3], &mut [0u8; 3]));
            let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut [0u64; 2]).to_vec();
            let (data, data_type) = (&mut bytes.clone()[..7], f32::DATA_TYPE);
            refused(communicator.run(Operation::Broadcast { data, data_type, root: 0 }));
            refused(communicator.reduce(&mut [1u8], ReduceOp::Sum, 2));
            refused(communicator.gather(&[1u8], (own == 1).then_some(&mut [0u8; 2][..]), 0));
            refused(communicator.scatter((own == 1).then_some(&[0u8; 2][..]), &mut [1u8], 0));
            let mut state = vec![1; 100];
            refused(communicator.broadcast_vec(&mut state, 0, 99));
            communicator.barrier().unwrap();
        });
    }
}
