//! Collectives on data that is on the GPU already, as tensors of torch are.

use std::time::{Duration, Instant};

use elastic_collectives::{CollectiveError, Communicator, DataType, Operation, ReduceOp};
use elastic_gpu::cuda::Stream;
use elastic_gpu::nccl::{GpuPatience, Region};
use elastic_gpu::{DeviceOperation, DeviceState, NcclGroup};

use crate::support::{LONG, Options, World, faults};

fn nccl_of(group: &mut dyn Communicator) -> &mut NcclGroup {
    let group = group.as_any_mut().downcast_mut::<NcclGroup>();
    group.expect("all have GPUs")
}

#[expect(clippy::disallowed_methods, reason = "the deadline of a test")]
fn patience() -> GpuPatience<'static> {
    GpuPatience { due: Instant::now() + LONG, stop: &|| None }
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

fn run(nccl: &mut NcclGroup, operation: DeviceOperation<'_>) -> Result<(), CollectiveError> {
    let queued = nccl.launch_operation(&operation)?;
    nccl.wait(operation.kind(), queued)
}

const OF: DataType = DataType::I32;

/// Calls every operation, and checks its result, by the ranks of the generation.
fn every_operation(group: &mut dyn Communicator) -> Result<(), CollectiveError> {
    let (data_type, op) = (OF, ReduceOp::Sum);
    let nccl = nccl_of(group);
    let (rank, world) = (nccl.rank() as i32, nccl.world_size() as i32);
    let ranks = || 0..world;

    let (one, other) = (Numbers::new(nccl, &[rank; 5]), Numbers::new(nccl, &[10 * rank; 3]));
    let buffers = vec![(one.all(), OF), (other.all(), OF)];
    run(nccl, Operation::GroupedAllReduce { buffers, op })?;
    let sum: i32 = ranks().sum();
    assert_eq!((one.read(), other.read()), (vec![sum; 5], vec![10 * sum; 3]));
    run(nccl, Operation::AllReduce { data: one.all(), data_type, op: ReduceOp::Max })?;
    assert_eq!(one.read(), [sum; 5]);

    for root in ranks() {
        let is_root = rank == root;
        let data = Numbers::new(nccl, &[rank; 4]);
        run(nccl, Operation::Broadcast { data: data.all(), data_type, root: root as u32 })?;
        assert_eq!(data.read(), [root; 4]);

        let data = Numbers::new(nccl, &[rank; 4]);
        run(nccl, Operation::Reduce { data: data.all(), data_type, op, root: root as u32 })?;
        assert_eq!(data.read(), [if is_root { sum } else { rank }; 4]);

        let (input, output) =
            (Numbers::new(nccl, &[rank, -rank]), Numbers::zeroes(nccl, 2 * world as usize));
        let (input, at_root) = (input.all(), is_root.then(|| output.all()));
        run(nccl, Operation::Gather { input, output: at_root, data_type, root: root as u32 })?;
        let all: Vec<i32> = ranks().flat_map(|rank| [rank, -rank]).collect();
        assert_eq!(output.read(), if is_root { all } else { vec![0; 2 * world as usize] });

        let parts: Vec<i32> = ranks().flat_map(|to| [10 * rank + to; 2]).collect();
        let (input, output) = (Numbers::new(nccl, &parts), Numbers::zeroes(nccl, 2));
        let input = is_root.then(|| input.all());
        let output_all = output.all();
        run(nccl, Operation::Scatter { input, output: output_all, data_type, root: root as u32 })?;
        assert_eq!(output.read(), [10 * root + rank; 2]);
    }

    let input = Numbers::new(nccl, &[rank, -rank]);
    let output = Numbers::zeroes(nccl, 2 * world as usize);
    let (counts, place) = (None, output.all());
    run(nccl, Operation::AllGather { input: input.all(), output: place, counts, data_type })?;
    assert_eq!(output.read(), ranks().flat_map(|rank| [rank, -rank]).collect::<Vec<_>>());

    let counts: Vec<usize> = ranks().map(|rank| rank as usize).collect();
    let input = Numbers::new(nccl, &vec![rank; counts[rank as usize]]);
    let output = Numbers::zeroes(nccl, counts.iter().sum());
    let (counts, place) = (Some(counts.as_slice()), output.all());
    run(nccl, Operation::AllGather { input: input.all(), output: place, counts, data_type })?;
    let due: Vec<i32> = ranks().flat_map(|rank| vec![rank; rank as usize]).collect();
    assert_eq!(output.read(), due);

    let parts: Vec<i32> = ranks().flat_map(|part| [100 * part + rank; 2]).collect();
    let (input, output) = (Numbers::new(nccl, &parts), Numbers::zeroes(nccl, 2));
    let place = output.all();
    run(nccl, Operation::ReduceScatter { input: input.all(), output: place, data_type, op })?;
    assert_eq!(output.read(), [100 * rank * world + sum; 2]);

    let twos = vec![2; world as usize];
    for counts in [None, Some((twos.as_slice(), twos.as_slice()))] {
        let parts: Vec<i32> = ranks().flat_map(|to| [10 * rank + to; 2]).collect();
        let (input, output) = (Numbers::new(nccl, &parts), Numbers::zeroes(nccl, parts.len()));
        let place = output.all();
        run(nccl, Operation::AllToAll { input: input.all(), output: place, counts, data_type })?;
        let due: Vec<i32> = ranks().flat_map(|from| [10 * from + rank; 2]).collect();
        assert_eq!(output.read(), due);
    }
    run(nccl, Operation::Barrier)?;

    let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
    let token = Numbers::new(nccl, &[if rank == 0 { 7 } else { 0 }]);
    let recv = || Operation::Recv { data: token.all(), data_type, from: before as u32 };
    if rank > 0 {
        run(nccl, recv())?;
    }
    run(nccl, Operation::Send { data: token.all(), data_type, to: next as u32 })?;
    if rank == 0 {
        run(nccl, recv())?;
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
        let (all, data_type) = (data.all(), OF);
        let (input, output) = (all, all);
        let (mean, op) = (ReduceOp::Mean, ReduceOp::Sum);
        let (three, counts): (&[usize], [&[usize]; 2]) = (&[3], [&[1, 1], &[2, 1]]);
        let counts = Some((counts[0], counts[1]));
        let refusals = [
            Operation::AllReduce { data: all, data_type, op: mean },
            Operation::Broadcast { data: all, data_type, root: 2 },
            Operation::AllGather { input, output, counts: None, data_type },
            Operation::AllGather { input, output, counts: Some(three), data_type },
            Operation::ReduceScatter { input, output, data_type, op },
            Operation::AllToAll { input, output, counts, data_type },
        ]
        .map(|operation| nccl.launch_operation(&operation));
        for refusal in refusals {
            assert!(matches!(refusal, Err(CollectiveError::InvalidArgument { .. })), "{refusal:?}");
        }
        run(nccl, Operation::AllReduce { data: all, data_type, op }).expect("it works");
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
        let (data_type, op) = (OF, ReduceOp::Sum);
        let result = run(nccl, Operation::AllReduce { data: data.all(), data_type, op });
        (result, nccl.lets_go_within(LONG))
    });
    assert!(results[0].0.is_err(), "{:?}", results[0].0);
    assert!(results.iter().all(|(_, lets_go)| *lets_go));
    drop(faults);
}

#[test]
fn g_9_memory_that_the_gpu_does_not_let_go_of_is_waited_for_and_then_given_up() {
    let faults = faults();
    let mut world = World::new(0..1, Options::default());
    world.form();
    faults.set("call=cuMemcpyDtoHAsync do=hang");
    let lets_go = world.collective(|group| {
        let nccl = nccl_of(group);
        let data = Numbers::zeroes(nccl, 3);
        let stuck = GpuPatience { due: Instant::now(), stop: &|| None };
        data.memory.read(nccl.stream().expect("it has one"), &stuck).expect_err("the copy hangs");
        nccl.lets_go_within(Duration::from_millis(200))
    });
    assert_eq!(lets_go, [false], "a copy is under way");
}
