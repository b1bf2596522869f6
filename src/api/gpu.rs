//! A worker's GPU, if it has one: opened before the first generation, and owned by the GPU actor, a child of
//! the State's actor. The training thread asks that actor when it forms a group.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use elastic_collectives::{AbortHandle, Communicator, FormError};
use elastic_gpu::actor::core::CoreConfig;
use elastic_gpu::load::LibrarySearch;
use elastic_gpu::{
    Backend, Gpu, GpuActor, GpuConfig, GpuGroups, GpuPort, GpuRequest, GroupConfig,
    GroupGeneration, NoGpu, SEVERAL_RANKS_PER_GPU, Settings,
};
use elastic_protocol::messages::Placement;
use elastic_protocol::{Deadlines, Stamp, WorkerId};
use elastic_runtime::child::ChildHandle;
use elastic_runtime::restart::{Lifetime, RestartPolicy};
use elastic_runtime::{ChildExit, ChildSpec, NodeHandle, SupervisorSpec};
use elastic_worker::state::actor::{TrainingPort, TrainingThread};
use elastic_worker::state::core::{
    CheckpointCommand, CheckpointOutcome, TrainingCommand, TrainingProgress,
};
use elastic_worker::state::training::{CpuGroups, Error, Fabric, GroupDeadlines, Result};
use tracing::{error, info, warn};

/// The configuration of this worker's GPU actor; `None` if the worker uses no GPU.
pub(super) type GpuSide = Option<GpuConfig>;

/// The settings of the environment; and the GPU of a slot, opened once in this process, or the reason why there
/// is none.
pub(super) type OpenedGpu = (Settings, Result<Arc<Gpu>, String>);

/// Opens the GPU of this process's slot, unless it is open already.
pub(super) fn opened(slot: u32) -> Result<OpenedGpu> {
    static OPENED: OnceLock<OpenedGpu> = OnceLock::new();
    if let Some(opened) = OPENED.get() {
        return Ok(opened.clone());
    }
    let lookup = |name: &str| std::env::var(name).ok();
    let settings = Settings::parse(lookup).map_err(|source| Error::Start {
        what: "reading the environment".to_owned(),
        source: source.into(),
    })?;
    let gpu = match settings.backend {
        Backend::Cpu => Err("--backend cpu is given".to_owned()),
        backend => {
            let search = LibrarySearch::from_environment(lookup);
            let may_share = lookup(SEVERAL_RANKS_PER_GPU).is_some_and(|value| value == "1");
            match Gpu::open(&search, slot, may_share) {
                Ok(gpu) => Ok(described(gpu)),
                Err(none) => Err(absent(&none, backend, &search)?),
            }
        }
    };
    Ok(OPENED.get_or_init(|| (settings, gpu)).clone())
}

/// Logs which GPU was taken.
fn described(gpu: Gpu) -> Arc<Gpu> {
    info!("{}", gpu.describe());
    if let Some(fault) = gpu.maker().nccl.known_fault() {
        warn!("{fault}");
    }
    if let Err(reason) = gpu.warm_up() {
        warn!(%reason, "NCCL's kernels are not loaded ahead");
    }
    Arc::new(gpu)
}

/// Opens the GPU of a worker, for the actor's side and the training thread's.
pub(super) fn open(
    worker: &WorkerId,
    abort: &AbortHandle,
    operation_deadline: Duration,
) -> Result<(GpuSide, GpuGroups)> {
    let (settings, gpu) = opened(worker.slot)?;
    let port = GpuPort::default();
    let group = GroupConfig {
        backend: settings.backend,
        scope: settings.scope,
        spares: settings.spares,
        operation_deadline,
        roll_call: elastic_gpu::roll_call_deadline(operation_deadline),
    };
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(reason) => {
            return Ok((None, GpuGroups::new(group, Err(reason), port, abort.clone())));
        }
    };
    let core = CoreConfig {
        worker: worker.clone(),
        features: gpu.features(),
        version: gpu.maker().nccl.version().code(),
        operation_deadline,
    };
    let groups = GpuGroups::new(group, Ok(Arc::clone(&gpu)), port.clone(), abort.clone());
    Ok((Some(GpuConfig { gpu, core, abort: abort.clone(), port }), groups))
}

/// Logs once why the CPU's collectives are used. An error if NCCL, or this very library, was demanded.
fn absent(none: &NoGpu, backend: Backend, search: &LibrarySearch) -> Result<String> {
    let is_broken = matches!(none, NoGpu::Broken(_));
    let is_demanded = search.nccl.is_some() || search.cuda.is_some();
    let reason = elastic_gpu::describe_error(none);
    if backend == Backend::Nccl || is_broken && is_demanded {
        let what = format!("opening the GPU (--backend {backend})");
        return Err(Error::Start { what, source: reason.into() });
    }
    if is_broken {
        error!("the CPU's collectives are used: {reason}");
    } else {
        info!("the CPU's collectives are used: {reason}");
    }
    Ok(reason)
}

/// The collectives of this process: NCCL's beside the CPU's.
pub(super) struct Groups {
    pub(super) cpu: CpuGroups,
    pub(super) gpu: GpuGroups,
}

impl Fabric for Groups {
    #[expect(
        clippy::disallowed_methods,
        reason = "the training thread is outside of the deterministic world"
    )]
    fn form(
        &mut self,
        placement: &Placement,
        deadlines: GroupDeadlines,
    ) -> Result<Box<dyn Communicator>, FormError> {
        let due = Instant::now() + deadlines.form;
        let group = self.cpu.form(placement, deadlines)?;
        let members: Vec<WorkerId> =
            placement.assignment.members().map(|member| member.worker).collect();
        let generation = GroupGeneration { stamp: placement.stamp, members: &members, due };
        self.gpu.form(group, generation)
    }

    fn relocate(&mut self) -> Option<SocketAddr> {
        self.cpu.relocate()
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.cpu.take_warnings()
    }
}

/// The training thread as the State sees it, with the GPU actor beside it.
pub(super) struct WithGpu {
    thread: TrainingThread,
    gpu: GpuSide,
    node: NodeHandle,
    supervisor: Option<ChildHandle>,
}

impl WithGpu {
    pub(super) fn new(thread: TrainingThread, gpu: GpuSide, node: NodeHandle) -> Self {
        Self { thread, gpu, node, supervisor: None }
    }
}

impl TrainingPort for WithGpu {
    fn started(&mut self) {
        let Some(config) = self.gpu.clone() else { return };
        let (node, abort) = (self.node.clone(), config.abort.clone());
        let actor = ChildSpec::new(
            "gpu",
            Lifetime::Permanent,
            move |_: &mut actix::Context<GpuActor>| GpuActor::new(node.clone(), config.clone()),
            |_address| {},
        );
        let policy = RestartPolicy { restarts_max: 3, ..RestartPolicy::default() };
        let given_up = move |exit: ChildExit| {
            if let ChildExit::Failed(reason) = exit {
                // The communicators have no owner any more: this worker ends, and a new one fills its slot.
                abort.abort(u64::MAX, u64::MAX, format!("the GPU actor has failed: {reason}"));
            }
        };
        let spec = SupervisorSpec::new("gpu", policy).child(actor);
        self.supervisor = Some(spec.start(&self.node, given_up).1);
    }

    fn command(&mut self, command: TrainingCommand) -> Result<(), String> {
        self.thread.command(command)
    }

    fn abort(&mut self, stamp: Stamp, reason: String) {
        self.thread.abort(stamp, reason);
        if let Some(gpu) = &self.gpu {
            gpu.port.tell(GpuRequest::Abort { stamp });
        }
    }

    fn pause(&mut self) -> u64 {
        self.thread.pause()
    }

    fn unpause(&mut self) {
        self.thread.unpause();
    }

    fn begin_generation(&mut self) {
        self.thread.begin_generation();
    }

    fn checkpoint(&mut self, command: CheckpointCommand) -> Option<CheckpointOutcome> {
        self.thread.checkpoint(command)
    }

    fn progress(&self) -> TrainingProgress {
        self.thread.progress()
    }

    fn set_deadlines(&mut self, deadlines: &Deadlines) {
        self.thread.set_deadlines(deadlines);
    }

    fn release(&mut self) {
        self.thread.release();
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.terminate();
        }
    }
}
