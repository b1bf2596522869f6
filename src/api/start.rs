//! Starts the helpers of the training thread: the collectives' listener and the actor thread. `attach` calls
//! it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use elastic_collectives::{AbortHandle, DEFAULT_OPERATION_DEADLINE, TcpFabric};
use elastic_protocol::Deadlines;
use elastic_transport::JoinToken;
use elastic_worker::state::actor::TrainingThread;
use elastic_worker::state::core::StateConfig;
use elastic_worker::state::environment::{CREDENTIAL, WorkerEnvironment};
use elastic_worker::state::training::{
    ControlShared, CpuGroups, Error, Result, ThreadMessage, TrainingControl,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::attach::{AttachOptions, WhileWaiting};
use super::data_address::{self, data_ip};
use super::gpu::{self, Groups};
use super::patient_start::PatientStart;
use super::process::{ActorThreadStart, ThreadEnd};

/// Time limit of one collective, in seconds; fractions are allowed.
const COLLECTIVE_TIMEOUT: &str = "ELASTIC_COLLECTIVE_TIMEOUT";

/// A worker that is about to enter the run loop.
pub(super) struct StartedWorker {
    pub(super) control: TrainingControl,
    pub(super) abort: AbortHandle,
    pub(super) fabric: Groups,
    /// The actor thread, which ends when the worker leaves; its result is the error, if any.
    pub(super) thread: JoinHandle<ThreadEnd>,
}

/// Binds the listener, connects with the driver, and returns once a session with it stands.
pub(super) fn start(
    environment: WorkerEnvironment,
    options: AttachOptions,
) -> Result<StartedWorker> {
    raise_open_files();
    survive_large_files();
    let operation_deadline = operation_deadline()?;
    let token = environment.credential.parse::<JoinToken>().map_err(|source| Error::Start {
        what: format!("reading {CREDENTIAL}"),
        source: source.into(),
    })?;
    let mut patience = PatientStart::new(options.while_waiting);
    let ip = data_ip(&environment, &mut patience)?;
    let listening = format!("listening for other workers on {ip}");
    let fabric = patience.until(&listening, || TcpFabric::bind(SocketAddr::new(ip, 0)))?;
    let abort = patience.until(&listening, AbortHandle::new)?;
    let (gpu, gpu_groups) = gpu::open(&environment.worker, &abort, operation_deadline)?;
    let new_ip = data_address::follow(ip, environment.clone());
    let shared = Arc::new(ControlShared::default());
    let (sender, commands) = mpsc::sync_channel(TrainingControl::COMMANDS_MAX);
    let process = ActorThreadStart {
        address: environment.driver,
        token,
        watch_interrupt: options.watch_interrupt,
        config: StateConfig {
            job: environment.job,
            worker: environment.worker,
            pid: std::process::id(),
            data_address: fabric.local_address(),
            deadlines: Deadlines::default(),
        },
        thread: TrainingThread {
            commands: sender,
            shared: Arc::clone(&shared),
            abort: abort.clone(),
        },
        gpu,
    };
    let rates = shared.links().clone();
    let (ready, started) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("elastic".to_owned())
        .spawn(move || process.run(ready))
        .map_err(|source| Error::Start {
            what: "starting the actor thread".to_owned(),
            source: source.into(),
        })?;
    let actor = match started.recv() {
        Ok(started) => started?,
        Err(_) => {
            let reason = match thread.join() {
                Ok(Err(reason)) => reason,
                _ => "it panicked at its start".to_owned(),
            };
            return Err(Error::ActorsGone { reason });
        }
    };
    let beside = actor.clone();
    shared
        .checkpoints()
        .tell_through(move |outcome| beside.do_send(ThreadMessage::Checkpoint(outcome)));
    let tell = move |message| actor.do_send(message);
    let mut control =
        TrainingControl::new(tell, commands, shared, || "it ended without a word".to_owned());
    if let Some(WhileWaiting { period, check }) = options.while_waiting {
        control = control.checking(period, check);
    }
    let cpu = CpuGroups::new(fabric, abort.clone(), operation_deadline, rates).following(new_ip);
    let fabric = Groups { cpu, gpu: gpu_groups };
    Ok(StartedWorker { control, abort, fabric, thread })
}

/// Raises the limit on open files as far as the system allows. A connection for each other rank, and some more
/// while a generation forms, exceed the usual soft limit of 1024 in a large world.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error, as on a full disk: a checkpoint that is too large is
/// not saved, and training goes on. By default the kernel's SIGXFSZ ends the process. What the program has set stays.
#[expect(unsafe_code, reason = "a signal's handler may do next to nothing")]
fn survive_large_files() {
    // A handler, and not the signal ignored: programs that this process starts begin with the default.
    let nothing = SigHandler::Handler(no_more_than_an_error);
    let action = SigAction::new(nothing, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, and the former action was valid.
    let set = unsafe { sigaction(Signal::SIGXFSZ, &action) }.and_then(|former| {
        match former.handler() {
            SigHandler::SigDfl => Ok(()),
            // SAFETY: as above.
            _ => unsafe { sigaction(Signal::SIGXFSZ, &former) }.map(drop),
        }
    });
    if let Err(error) = set {
        tracing::debug!(%error, "a file that becomes too large ends this process");
    }
}

extern "C" fn no_more_than_an_error(_signal: i32) {}

fn operation_deadline() -> Result<Duration> {
    let Ok(text) = std::env::var(COLLECTIVE_TIMEOUT) else {
        return Ok(DEFAULT_OPERATION_DEADLINE);
    };
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Error::Start {
            what: format!("reading {COLLECTIVE_TIMEOUT}"),
            source: format!("{text:?} is not a positive number of seconds").into(),
        }
    })
}
