//! Starts what stands beside the training thread: the collectives' listener and the actor thread.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use elastic_collectives::{AbortHandle, DEFAULT_OPERATION_DEADLINE, TcpFabric};
use elastic_protocol::Deadlines;
use elastic_transport::Token;
use elastic_worker::state::actor::TrainingThread;
use elastic_worker::state::core::StateConfig;
use elastic_worker::state::environment::{CREDENTIAL, WorkerEnvironment};
use elastic_worker::state::training::{Control, CpuGroups, Error, Result, Shared};

use super::attach::{AttachOptions, WhileWaiting};
use super::gpu::{self, Groups};
use super::process::{Process, ThreadEnd};

/// How long one collective may take, in whole or broken seconds.
const COLLECTIVE_TIMEOUT: &str = "ELASTIC_COLLECTIVE_TIMEOUT";

/// A worker that is about to enter the run loop.
pub(super) struct Started {
    pub(super) control: Control,
    pub(super) abort: AbortHandle,
    pub(super) fabric: Groups,
    /// Ends when the worker leaves; with what went wrong, if it did.
    pub(super) thread: JoinHandle<ThreadEnd>,
}

/// Binds, connects, and returns once a session with the driver stands.
pub(super) fn start(environment: WorkerEnvironment, options: AttachOptions) -> Result<Started> {
    let operation_deadline = operation_deadline()?;
    let token = environment.credential.parse::<Token>().map_err(|source| Error::Start {
        what: format!("reading {CREDENTIAL}"),
        source: source.into(),
    })?;
    let ip = ip_towards_driver(&environment)?;
    let bound = |source: std::io::Error| Error::Start {
        what: format!("listening for other workers on {ip}"),
        source: source.into(),
    };
    let fabric = TcpFabric::bind(SocketAddr::new(ip, 0)).map_err(bound)?;
    let abort = AbortHandle::new().map_err(bound)?;
    let (gpu, gpu_groups) = gpu::open(&environment.worker, &abort, operation_deadline)?;
    let shared = Arc::new(Shared::default());
    let (sender, commands) = mpsc::sync_channel(Control::COMMANDS_MAX);
    let process = Process {
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
    let tell = move |message| actor.do_send(message);
    let mut control = Control::new(tell, commands, shared, || "it ended without a word".to_owned());
    if let Some(WhileWaiting { period, check }) = options.while_waiting {
        control = control.checking(period, check);
    }
    let cpu = CpuGroups::new(fabric, abort.clone(), operation_deadline);
    let fabric = Groups { cpu, gpu: gpu_groups };
    Ok(Started { control, abort, fabric, thread })
}

/// This machine's address on the way to the driver: where other workers can reach it too.
fn ip_towards_driver(environment: &WorkerEnvironment) -> Result<IpAddr> {
    let reach = || {
        let driver = environment.driver_address()?;
        let any: SocketAddr = match driver {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        // Connecting a datagram socket sends nothing: it only asks for the route.
        let socket = UdpSocket::bind(any)?;
        socket.connect(driver)?;
        Ok(socket.local_addr()?.ip())
    };
    reach().map_err(|source: std::io::Error| Error::Start {
        what: format!("finding the way to the driver at {}", environment.driver),
        source: source.into(),
    })
}

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
