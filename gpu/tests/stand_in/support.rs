//! Ranks as threads of one process, for the tests beside this file: each has a GPU of the stand-in, an actor, and the
//! training thread's part.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use elastic_collectives::{
    AbortHandle, CollectiveError, Communicator, DEFAULT_STREAMS, DataPlane, FormError, GroupSpec,
    HostFabric, SoloCommunicator, TcpFabric,
};
use elastic_gpu::actor::core::CoreConfig;
use elastic_gpu::load::LibrarySearch;
use elastic_gpu::{
    Backend, Gpu, GpuActor, GpuConfig, GpuGroups, GpuPort, GpuRequest, GroupConfig,
    GroupGeneration, Scope,
};
use elastic_protocol::{GenerationId, HostName, Incarnation, NodeId, Stamp, Term, WorkerId};
use elastic_runtime::{NodeHandle, spawn_child_with_handle, system};
use tokio::sync::oneshot;

/// Long enough for a machine that has other things to do.
pub(crate) const LONG: Duration = Duration::from_secs(180);
/// No operation lasts so long: one that returns within [`LONG`] does so for another reason.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);
/// Time for which hung members wait for each other at the roll call: long, so that ranks whose threads are late do
/// not count as absent.
const ROLL_CALL: Duration = Duration::from_secs(10);

/// The stand-in's file: cargo puts it beside the tests that depend on it.
pub(crate) fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("the test's own path");
    tests.with_file_name("libelastic_gpu_stand_in.so")
}

pub(crate) fn search() -> LibrarySearch {
    let library = Some(library());
    LibrarySearch { cuda: library.clone(), nccl: library, system: false, python: Vec::new() }
}

/// Number of this process's communicators in the stand-in.
pub(crate) fn communicators() -> u32 {
    count(b"stand_in_communicators")
}

/// Waits until no more communicators than these are left.
pub(crate) fn wait_for_communicators(left: u32) {
    let due = Instant::now() + LONG;
    while communicators() > left {
        assert!(Instant::now() < due, "{} communicators instead of {left}", communicators());
        std::thread::yield_now();
    }
}

/// Number of calls of this process that have met a fault.
pub(crate) fn faults_met() -> u32 {
    count(b"stand_in_faults")
}

/// Waits until so many calls have come to a fault.
pub(crate) fn wait_for_faults(met: u32) {
    let deadline = Instant::now() + LONG;
    while faults_met() < met {
        assert!(Instant::now() < deadline, "waited in vain for {met} faults");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn count(name: &[u8]) -> u32 {
    type Count = unsafe extern "C" fn() -> u32;
    // SAFETY: the stand-in is loaded already, and declares the function so.
    #[expect(unsafe_code, reason = "a count of the stand-in's own")]
    unsafe {
        let stand_in = libloading::Library::new(library()).expect("it is there");
        stand_in.get::<Count>(name).expect("it counts")()
    }
}

/// Faults are the process's, so tests that may set them run one at a time.
pub(crate) struct Faults {
    file: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

/// This test's turn, without faults yet.
pub(crate) fn faults() -> Faults {
    static TURN: Mutex<()> = Mutex::new(());
    static SET: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("elastic-gpu-faults-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    // SAFETY: done once, in the first test's turn, before the stand-in that reads it is loaded.
    #[expect(unsafe_code, reason = "the stand-in is told by its environment")]
    SET.call_once(|| unsafe { std::env::set_var("STAND_IN_FAULTS", &file) });
    Faults { file, _turn: turn }
}

impl Faults {
    pub(crate) fn set(&self, text: &str) {
        // At once: the stand-in reads it at each of its calls, on other threads.
        let next = self.file.with_extension("next");
        std::fs::write(&next, text).expect("the faults are written");
        std::fs::rename(&next, &self.file).expect("they take the others' place");
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Settings of the ranks to make.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) scope: Scope,
    pub(crate) spares: u32,
    pub(crate) operation_deadline: Duration,
    pub(crate) host: fn(u32) -> &'static str,
    /// The path of the CPU group; the members of a host share memory only with [`Scope::Host`].
    pub(crate) data_plane: DataPlane,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            scope: Scope::World,
            spares: 0,
            operation_deadline: DEADLINE,
            host: |_| "a",
            data_plane: DataPlane::Auto,
        }
    }
}

/// A rank's training side.
pub(crate) struct Rank {
    pub(crate) worker: WorkerId,
    pub(crate) abort: AbortHandle,
    pub(crate) port: GpuPort,
    groups: GpuGroups,
    fabric: HostFabric,
    options: Options,
    _actor: Actor,
}

struct Actor {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Actor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the actor's thread does not panic");
        }
    }
}

/// The worker of this number on a host.
pub(crate) fn worker(number: u32, host: &str) -> WorkerId {
    let host = HostName::new(host).expect("a literal");
    WorkerId { host, slot: number, incarnation: Incarnation(1) }
}

impl Rank {
    pub(crate) fn new(number: u32, options: &Options) -> Rank {
        let worker = worker(number, (options.host)(number));
        let gpu = Arc::new(Gpu::open(&search(), number, false).expect("the stand-in works"));
        let abort = AbortHandle::new().expect("a descriptor is free");
        let port = GpuPort::default();
        let core = CoreConfig {
            worker: worker.clone(),
            features: gpu.features(),
            version: 0,
            operation_deadline: options.operation_deadline,
        };
        let actor =
            GpuConfig { gpu: Arc::clone(&gpu), core, abort: abort.clone(), port: port.clone() };
        let group = GroupConfig {
            backend: Backend::Nccl,
            scope: options.scope,
            spares: options.spares,
            operation_deadline: options.operation_deadline,
            roll_call: ROLL_CALL,
        };
        let groups = GpuGroups::new(group, Ok(gpu), port.clone(), abort.clone());
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let fabric = HostFabric::new(TcpFabric::bind(local).expect("a port is free"));
        let (options, _actor) = (options.clone(), start(actor));
        Rank { worker, abort, port, groups, fabric, options, _actor }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.fabric.local_address()
    }

    /// Forms a generation of these members.
    pub(crate) fn form(
        &mut self,
        generation: u64,
        members: &[(WorkerId, SocketAddr)],
    ) -> Result<Box<dyn Communicator>, FormError> {
        let rank = members.iter().position(|(worker, _)| *worker == self.worker);
        let rank = rank.expect("it is a member") as u32;
        let workers: Vec<WorkerId> = members.iter().map(|(worker, _)| worker.clone()).collect();
        let control: Box<dyn Communicator> = match members.len() {
            1 => Box::new(SoloCommunicator::of_generation(1, generation, &self.abort)),
            _ => self.fabric.form(
                &GroupSpec {
                    term: 1,
                    generation,
                    rank,
                    peers: members.iter().map(|(_, address)| *address).collect(),
                    hosts: match self.options.scope {
                        Scope::World => Vec::new(),
                        Scope::Host => {
                            let host = |worker: &WorkerId| u32::from(worker.host.as_str() != "a");
                            workers.iter().map(host).collect()
                        }
                    },
                    host_names: workers.iter().map(|worker| worker.host.as_str().into()).collect(),
                    key: [7; 32],
                    data_plane: self.options.data_plane,
                    encrypts: false,
                    streams: DEFAULT_STREAMS,
                    form_deadline: LONG,
                    operation_deadline: self.options.operation_deadline,
                    path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
                },
                &self.abort,
            )?,
        };
        let due = Instant::now() + LONG;
        let generation = GroupGeneration { stamp: stamp(generation), members: &workers, due };
        self.groups.form(control, generation)
    }

    /// The State's action when it hears of an abort.
    pub(crate) fn end(abort: &AbortHandle, port: &GpuPort, generation: u64) {
        abort.abort(1, generation, "a test ends it");
        port.tell(GpuRequest::Abort { stamp: stamp(generation) });
    }
}

pub(crate) fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

fn start(config: GpuConfig) -> Actor {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = mpsc::sync_channel(1);
    let thread = std::thread::spawn(move || {
        let run = async move {
            let node = NodeHandle::new(NodeId::worker(&config.core.worker), 1);
            let (address, handle) =
                spawn_child_with_handle(move |_| GpuActor::new(node, config), |_| {});
            // The actor starts when it is polled; the port is open then.
            tokio::task::yield_now().await;
            while !address.connected() {
                tokio::task::yield_now().await;
            }
            ready.send(()).expect("the test waits");
            let _ = stopped.await;
            handle.terminate();
            handle.exited().await;
        };
        system::run(run).expect("the system gives an event queue");
    });
    is_ready.recv_timeout(LONG).expect("the actor starts");
    Actor { stop: Some(stop), thread: Some(thread) }
}

type Step = Box<dyn FnOnce(&mut Option<Rank>, &mut Option<Box<dyn Communicator>>) + Send>;

/// A rank's thread, which does what the test tells it.
pub(crate) struct Seat {
    pub(crate) worker: WorkerId,
    pub(crate) address: SocketAddr,
    pub(crate) abort: AbortHandle,
    pub(crate) port: GpuPort,
    steps: Option<Sender<Step>>,
    thread: Option<JoinHandle<()>>,
}

impl Seat {
    pub(crate) fn new(number: u32, options: &Options) -> Seat {
        let (steps, received) = mpsc::channel::<Step>();
        let (told, facts) = mpsc::sync_channel(1);
        let options = options.clone();
        let thread = std::thread::spawn(move || {
            let rank = Rank::new(number, &options);
            let facts =
                (rank.worker.clone(), rank.address(), rank.abort.clone(), rank.port.clone());
            told.send(facts).expect("the test waits");
            let (mut rank, mut group) = (Some(rank), None);
            for step in received {
                step(&mut rank, &mut group);
            }
        });
        let (worker, address, abort, port) = facts.recv_timeout(LONG).expect("it starts");
        Seat { worker, address, abort, port, steps: Some(steps), thread: Some(thread) }
    }

    /// Does something in its thread; the result comes by the channel.
    pub(crate) fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Option<Rank>, &mut Option<Box<dyn Communicator>>) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (result, received) = mpsc::sync_channel(1);
        let step: Step = Box::new(move |rank, group| drop(result.send(step(rank, group))));
        self.steps.as_ref().expect("it lives").send(step).expect("its thread lives");
        received
    }

    /// Does something with its group.
    pub(crate) fn with_group<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut dyn Communicator) -> T + Send + 'static,
    ) -> Receiver<T> {
        self.step(|_, group| step(&mut **group.as_mut().expect("it has a group")))
    }

    pub(crate) fn end(&self, generation: u64) {
        Rank::end(&self.abort, &self.port, generation);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        drop(self.steps.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a rank's thread panicked");
        }
    }
}

/// The ranks of a test, by number.
pub(crate) struct World {
    pub(crate) seats: BTreeMap<u32, Seat>,
    options: Options,
    generation: u64,
}

impl World {
    pub(crate) fn new(numbers: impl IntoIterator<Item = u32>, options: Options) -> World {
        let seats = numbers.into_iter().map(|number| (number, Seat::new(number, &options)));
        World { seats: seats.collect(), options, generation: 0 }
    }

    pub(crate) fn join(&mut self, number: u32) {
        self.seats.insert(number, Seat::new(number, &self.options));
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Forms the next generation of all seats. If that fails for one, the generation is ended for all, as by the
    /// driver.
    pub(crate) fn try_form(&mut self) -> Vec<Result<(), String>> {
        self.generation += 1;
        let generation = self.generation;
        let members: Vec<_> =
            self.seats.values().map(|seat| (seat.worker.clone(), seat.address)).collect();
        let (result, results) = mpsc::channel();
        for (number, seat) in &self.seats {
            let (members, result, number) = (members.clone(), result.clone(), *number);
            seat.step(move |rank, group| {
                *group = None;
                let formed = rank.as_mut().expect("it lives").form(generation, &members);
                let formed =
                    formed.map(|formed| *group = Some(formed)).map_err(|error| describe(&error));
                result.send((number, formed)).expect("the test waits");
            });
        }
        let mut formed = BTreeMap::new();
        while formed.len() < self.seats.len() {
            let (number, result) = results.recv_timeout(LONG).expect("it returns");
            if result.is_err() {
                self.seats.values().for_each(|seat| seat.end(generation));
            }
            formed.insert(number, result);
        }
        formed.into_values().collect()
    }

    pub(crate) fn form(&mut self) {
        for formed in self.try_form() {
            formed.expect("it forms");
        }
    }

    /// The same in every seat, at once.
    fn all<T: Send + 'static>(
        &self,
        make: impl Fn(
            u32,
        ) -> Box<
            dyn FnOnce(&mut Option<Rank>, &mut Option<Box<dyn Communicator>>) -> T + Send,
        >,
    ) -> Vec<T> {
        let results: Vec<_> =
            self.seats.iter().map(|(number, seat)| seat.step(make(*number))).collect();
        results.into_iter().map(|result| result.recv_timeout(LONG).expect("it returns")).collect()
    }

    /// Rank 0 comes to 1 and 2, and gets NCCL's last rank.
    pub(crate) fn of_another_order() -> World {
        let mut world = World::new([1, 2], Options::default());
        world.form();
        world.collective(|group| group.close());
        world.join(0);
        world.form();
        world
    }

    /// The same works in every group, at once.
    pub(crate) fn works(
        &self,
        step: impl Fn(&mut dyn Communicator) -> Result<(), CollectiveError> + Clone + Send + 'static,
    ) {
        for result in self.collective(step) {
            result.expect("it works");
        }
    }

    /// The same with every group, at once.
    pub(crate) fn collective<T: Send + 'static>(
        &self,
        step: impl Fn(&mut dyn Communicator) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        self.all(|_| {
            let step = step.clone();
            Box::new(move |_, group| step(&mut **group.as_mut().expect("it has a group")))
        })
    }

    /// A generation forms, and works.
    pub(crate) fn form_and_check(&mut self) {
        self.form();
        self.check();
    }

    /// The generation ends, and the next one works.
    pub(crate) fn form_anew_and_check(&mut self) {
        self.abort();
        self.form_and_check();
    }

    /// The sum of the ranks plus one must come out everywhere.
    pub(crate) fn check(&self) {
        let world = self.seats.len() as u32;
        let due = (1..=world).sum::<u32>() as f32;
        let sums = self.collective(|group| sum(group));
        for result in sums {
            assert_eq!(result.expect("it works"), due);
        }
    }

    /// Ends the generation everywhere, as an abort does, and waits until every rank is out of its group.
    pub(crate) fn abort(&self) {
        let generation = self.generation;
        for seat in self.seats.values() {
            seat.end(generation);
        }
        self.all(|_| Box::new(|_, group| *group = None));
    }
}

/// An all-reduce of each rank plus one.
pub(crate) fn sum(group: &mut dyn Communicator) -> Result<f32, CollectiveError> {
    use elastic_collectives::{CommunicatorExt, ReduceOp};
    let mut data = [group.rank() as f32 + 1.0; 100];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    assert!(data.iter().all(|value| *value == data[0]));
    Ok(data[0])
}

pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
