//! Collectives on data that is on the GPU already, as tensors of torch are.

use std::time::{Duration, Instant};

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{CollectiveError, Communicator, DataType, ReduceOp};
use elastic_gpu::cuda::Stream;
use elastic_gpu::nccl::{Patience, Region};
use elastic_gpu::{DeviceState, NcclGroup};

use crate::support::{LONG, Options, World, faults};

fn nccl_of(group: &mut dyn Communicator) -> &mut NcclGroup {
    let group = group.as_any_mut().and_then(|group| group.downcast_mut::<NcclGroup>());
    group.expect("all have GPUs")
}

#[expect(clippy::disallowed_methods, reason = "the deadline of a test")]
fn patience() -> Patience<'static> {
    Patience { due: Instant::now() + LONG, stop: &|| None }
}

/// Numbers on the GPU.
struct Numbers {
    memory: DeviceState,
    stream: Stream,
}

impl Numbers {
    fn new(nccl: &NcclGroup, numbers: &[i32]) -> Self {
        let device = nccl.stream().expect("it has one").device();
        let memory = DeviceState::new(device, size_of_val(numbers)).expect("memory");
        let stream = Stream::new(device).expect("a stream");
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        memory.write(&bytes, &stream, &patience()).expect("it is written");
        Self { memory, stream }
    }

    fn zeroes(nccl: &NcclGroup, count: usize) -> Self {
        Self::new(nccl, &vec![0; count])
    }

    fn all(&self) -> Region<'_> {
        Region::all(self.memory.buffer())
    }

    fn read(&self) -> Vec<i32> {
        let bytes = self.memory.read(&self.stream, &patience()).expect("it is read");
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| i32::from_le_bytes(*word)).collect()
    }
}

/// Calls every operation, and compares with what it must give, by the ranks of the generation.
fn every_operation(group: &mut dyn Communicator) -> Result<(), CollectiveError> {
    const OF: DataType = DataType::I32;
    let nccl = nccl_of(group);
    let (rank, world) = (nccl.rank() as i32, nccl.world_size() as i32);
    let ranks = || 0..world;

    let (one, other) = (Numbers::new(nccl, &[rank; 5]), Numbers::new(nccl, &[10 * rank; 3]));
    let queued = nccl.all_reduce_device(&[one.all(), other.all()], OF, ReduceOp::Sum)?;
    nccl.wait(OperationKind::AllReduce, queued)?;
    let sum: i32 = ranks().sum();
    assert_eq!((one.read(), other.read()), (vec![sum; 5], vec![10 * sum; 3]));

    for root in ranks() {
        let data = Numbers::new(nccl, &[rank; 4]);
        let queued = nccl.broadcast_device(&data.all(), OF, root as u32)?;
        nccl.wait(OperationKind::Broadcast, queued)?;
        assert_eq!(data.read(), [root; 4]);
    }

    let input = Numbers::new(nccl, &[rank, -rank]);
    let output = Numbers::zeroes(nccl, 2 * world as usize);
    let queued = nccl.all_gather_device(&input.all(), &output.all(), None, OF)?;
    nccl.wait(OperationKind::AllGather, queued)?;
    assert_eq!(output.read(), ranks().flat_map(|rank| [rank, -rank]).collect::<Vec<_>>());

    let counts: Vec<usize> = ranks().map(|rank| rank as usize).collect();
    let input = Numbers::new(nccl, &vec![rank; counts[rank as usize]]);
    let output = Numbers::zeroes(nccl, counts.iter().sum());
    let queued = nccl.all_gather_device(&input.all(), &output.all(), Some(&counts), OF)?;
    nccl.wait(OperationKind::AllGatherV, queued)?;
    let due: Vec<i32> = ranks().flat_map(|rank| vec![rank; rank as usize]).collect();
    assert_eq!(output.read(), due);

    let parts: Vec<i32> = ranks().flat_map(|part| [100 * part + rank; 2]).collect();
    let (input, output) = (Numbers::new(nccl, &parts), Numbers::zeroes(nccl, 2));
    let queued = nccl.reduce_scatter_device(&input.all(), &output.all(), OF, ReduceOp::Sum)?;
    nccl.wait(OperationKind::ReduceScatter, queued)?;
    assert_eq!(output.read(), [100 * rank * world + sum; 2]);

    let (sent, received) = (vec![2; world as usize], vec![2; world as usize]);
    let parts: Vec<i32> = ranks().flat_map(|to| [10 * rank + to; 2]).collect();
    let (input, output) = (Numbers::new(nccl, &parts), Numbers::zeroes(nccl, parts.len()));
    let queued = nccl.all_to_all_device(
        (&input.all(), sent.as_slice()),
        (&output.all(), received.as_slice()),
        OF,
    )?;
    nccl.wait(OperationKind::AllToAllV, queued)?;
    assert_eq!(output.read(), ranks().flat_map(|from| [10 * from + rank; 2]).collect::<Vec<_>>());

    let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
    let token = Numbers::new(nccl, &[if rank == 0 { 7 } else { 0 }]);
    if rank > 0 {
        let queued = nccl.receive_device(&token.all(), OF, before as u32)?;
        nccl.wait(OperationKind::SendReceive, queued)?;
    }
    let queued = nccl.send_device(&token.all(), OF, next as u32)?;
    nccl.wait(OperationKind::SendReceive, queued)?;
    if rank == 0 {
        let queued = nccl.receive_device(&token.all(), OF, before as u32)?;
        nccl.wait(OperationKind::SendReceive, queued)?;
    }
    assert_eq!(token.read(), [7]);
    Ok(())
}

#[test]
fn every_collective_gives_what_it_must() {
    let _turn = faults();
    let mut world = World::new(0..3, Options::default());
    world.form();
    world.works(every_operation);
}

#[test]
fn the_same_where_nccl_counts_its_ranks_in_another_order() {
    let _turn = faults();
    World::of_another_order().works(every_operation);
}

#[test]
fn wrong_arguments_are_refused_and_the_group_works_on() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    world.form();
    world.collective(|group| {
        let nccl = nccl_of(group);
        let data = Numbers::zeroes(nccl, 3);
        let of = DataType::I32;
        let refusals = [
            nccl.all_reduce_device(&[data.all()], of, ReduceOp::Mean),
            nccl.broadcast_device(&data.all(), of, 2),
            nccl.all_gather_device(&data.all(), &data.all(), None, of),
            nccl.all_gather_device(&data.all(), &data.all(), Some(&[3]), of),
            nccl.reduce_scatter_device(&data.all(), &data.all(), of, ReduceOp::Sum),
            nccl.all_to_all_device((&data.all(), &[1, 1]), (&data.all(), &[2, 1]), of),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, Err(CollectiveError::InvalidArgument { .. })), "{refusal:?}");
        }
        let queued = nccl.all_reduce_device(&[data.all()], of, ReduceOp::Sum).expect("it is right");
        nccl.wait(OperationKind::AllReduce, queued).expect("it works");
        assert!(nccl.lets_go_within(LONG), "nothing is under way");
    });
    world.check();
}

#[test]
fn after_a_failure_the_memory_is_let_go_of() {
    let faults = faults();
    let options = Options { operation_deadline: Duration::from_secs(1), ..Options::default() };
    let mut world = World::new(0..2, options);
    world.form();
    let results = world.collective(|group| {
        let nccl = nccl_of(group);
        let data = Numbers::zeroes(nccl, 3);
        if nccl.rank() == 1 {
            return (Ok(()), true);
        }
        // The other does not come: the deadline passes, and the actor ends the communicator.
        let queued = nccl.all_reduce_device(&[data.all()], DataType::I32, ReduceOp::Sum);
        let result = queued.and_then(|number| nccl.wait(OperationKind::AllReduce, number));
        (result, nccl.lets_go_within(LONG))
    });
    assert!(results[0].0.is_err(), "{:?}", results[0].0);
    assert!(results.iter().all(|(_, lets_go)| *lets_go));
    drop(faults);
}
