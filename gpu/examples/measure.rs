//! A rank of a measurement: all-reduce, broadcast and commit on a GPU, from 1 KiB to 1 GiB, as JSON lines on stdout of
//! rank 0. `bench/gpu.sh` starts one for each rank, and the same with `torch.distributed`.
//!
//! `measure RANK WORLD FIRST_PORT [BYTES_MAX]`: rank r listens on port FIRST_PORT + r of this machine.

#![expect(clippy::disallowed_methods, reason = "it measures")]
#![expect(clippy::print_stdout, reason = "its output is data")]

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{
    AbortHandle, Communicator, CommunicatorExt, DEFAULT_STREAMS, DataPlane, DataType, GroupSpec,
    HostFabric, ReduceOp, SoloCommunicator, TcpFabric,
};
use elastic_gpu::actor::core::CoreConfig;
use elastic_gpu::cuda::{DeviceBuffer, Stream};
use elastic_gpu::load::LibrarySearch;
use elastic_gpu::nccl::{GpuPatience, Region};
use elastic_gpu::{
    Backend, DeviceOperation, DeviceState, Gpu, GpuActor, GpuConfig, GpuGroups, GpuPort,
    GroupConfig, GroupGeneration, NcclGroup, Scope,
};
use elastic_protocol::{GenerationId, HostName, Incarnation, NodeId, Stamp, Term, WorkerId};
use elastic_runtime::{NodeHandle, spawn_child_with_handle, system};

type Failure = Box<dyn std::error::Error>;

const DEADLINE: Duration = Duration::from_secs(60);
const BYTES_MIN: usize = 1 << 10;
const BYTES_MAX: usize = 1 << 30;

fn main() -> Result<(), Failure> {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [rank, world, port, ref rest @ ..] = arguments[..] else {
        return Err("usage: measure RANK WORLD FIRST_PORT [BYTES_MAX]".into());
    };
    let bytes_max = rest.first().copied().unwrap_or(BYTES_MAX);
    let (rank, world, port) = (u32::try_from(rank)?, u32::try_from(world)?, u16::try_from(port)?);
    let search = LibrarySearch::from_environment(|name| std::env::var(name).ok());
    let gpu = Arc::new(Gpu::open(&search, rank, true)?);
    let mut group = form(&gpu, rank, world, port)?;
    let compute = Stream::new(gpu.device())?;
    let sizes = std::iter::successors(Some(BYTES_MIN), |bytes| Some(bytes * 4));
    for bytes in sizes.take_while(|bytes| *bytes <= bytes_max) {
        let rounds = ((256 << 20) / bytes).clamp(5, 500);
        let buffer = DeviceBuffer::new(gpu.device(), bytes)?;
        let (data, data_type, op) = (Region::all(&buffer), DataType::F32, ReduceOp::Sum);
        let all_reduce = DeviceOperation::AllReduce { data, data_type, op };
        let reduced = timed(rounds, || {
            let sequence = group.launch_operation(&all_reduce)?;
            Ok(group.wait(OperationKind::AllReduce, sequence)?)
        })?;
        let one_to_all = DeviceOperation::Broadcast { data, data_type, root: 0 };
        let broadcast = timed(rounds, || {
            let sequence = group.launch_operation(&one_to_all)?;
            Ok(group.wait(OperationKind::Broadcast, sequence)?)
        })?;
        drop(buffer);
        let patience = GpuPatience { due: Instant::now() + DEADLINE, stop: &|| None };
        let mut state = DeviceState::new(gpu.device(), bytes)?;
        let begun = timed(rounds.min(20), || {
            state.begin_commit(&compute, &patience)?;
            Ok(state.before_update(&compute)?)
        })?;
        state.finish_commit(&patience)?;
        state.keep_commit();
        let copied = state.cost().copied / u32::try_from(state.cost().commits)?;
        if rank == 0 {
            println!(
                "{{\"library\":\"elastic\",\"world\":{world},\"bytes\":{bytes},\"all_reduce_us\":{:.1},\
                 \"broadcast_us\":{:.1},\"commit_call_us\":{:.1},\"commit_copy_us\":{:.1}}}",
                micros(reduced),
                micros(broadcast),
                micros(begun),
                micros(copied)
            );
        }
    }
    group.barrier()?;
    group.close();
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The median of some rounds, after some that do not count.
fn timed(
    rounds: usize,
    mut round: impl FnMut() -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    for _ in 0..rounds.min(5) {
        round()?;
    }
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let started = Instant::now();
        round()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn form(gpu: &Arc<Gpu>, rank: u32, world: u32, port: u16) -> Result<Box<NcclGroup>, Failure> {
    let host = HostName::new("localhost")?;
    let worker = |slot| WorkerId { host: host.clone(), slot, incarnation: Incarnation(1) };
    let members: Vec<WorkerId> = (0..world).map(worker).collect();
    let (abort, gpu_port) = (AbortHandle::new()?, GpuPort::default());
    start_actor(GpuConfig {
        gpu: Arc::clone(gpu),
        core: CoreConfig {
            worker: members[rank as usize].clone(),
            features: gpu.features(),
            version: gpu.maker().nccl.version().code(),
            operation_deadline: DEADLINE,
        },
        abort: abort.clone(),
        port: gpu_port.clone(),
    })?;
    let address = |rank: u32| SocketAddr::from(([127, 0, 0, 1], port + rank as u16));
    let control: Box<dyn Communicator> = match world {
        1 => Box::new(SoloCommunicator::of_generation(1, 1, &abort)),
        _ => HostFabric::new(TcpFabric::bind(address(rank))?).form(
            &GroupSpec {
                term: 1,
                generation: 1,
                rank,
                peers: (0..world).map(address).collect(),
                hosts: Vec::new(),
                host_names: Vec::new(),
                key: [0; 32],
                data_plane: DataPlane::Auto,
                encrypts: false,
                streams: DEFAULT_STREAMS,
                form_deadline: DEADLINE,
                operation_deadline: DEADLINE,
                path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
            },
            &abort,
        )?,
    };
    let config = GroupConfig {
        backend: Backend::Nccl,
        scope: Scope::World,
        spares: 0,
        operation_deadline: DEADLINE,
        roll_call: DEADLINE,
    };
    let stamp = Stamp { term: Term(1), generation: GenerationId(1) };
    let generation = GroupGeneration { stamp, members: &members, due: Instant::now() + DEADLINE };
    let mut groups = GpuGroups::new(config, Ok(Arc::clone(gpu)), gpu_port, abort);
    Ok(Box::new(groups.form_nccl(control, generation)?))
}

/// The actor, on a thread of its own, for as long as the process lives.
fn start_actor(config: GpuConfig) -> Result<(), Failure> {
    let (ready, is_ready) = mpsc::sync_channel(1);
    std::thread::Builder::new().spawn(move || {
        let run = async move {
            let node = NodeHandle::new(NodeId::worker(&config.core.worker), 1);
            let (_, handle) = spawn_child_with_handle(move |_| GpuActor::new(node, config), |_| {});
            tokio::task::yield_now().await;
            let _ = ready.send(());
            handle.exited().await
        };
        let _ = system::run(run);
    })?;
    Ok(is_ready.recv_timeout(DEADLINE)?)
}
