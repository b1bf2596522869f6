//! Unit tests of the agent's core, one decision at a time, and the parts that they share.

mod leaving;
mod links;
mod looks;
mod processes;

use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, HealthFailure, LaneStatus, LibraryTrace, ProcessActivity,
    ProcessSight, StoppedBy,
};
use elastic_protocol::{
    Deadlines, ExitStatus, HostName, Incarnation, JobId, ProgramSpec, Term, Time, WorkerId,
};

use super::*;

pub(super) fn host() -> HostName {
    HostName::new("a").expect("a literal")
}

pub(super) fn worker(slot: u32, incarnation: u64) -> WorkerId {
    WorkerId { host: host(), slot, incarnation: Incarnation(incarnation) }
}

pub(super) fn job(number: u128) -> JobId {
    JobId(uuid::Uuid::from_u128(number))
}

pub(super) fn welcome(number: u128, term: u64) -> DriverToAgent {
    DriverToAgent::Welcome {
        job: job(number),
        term: Term(term),
        program: ProgramSpec {
            argv: vec!["train".to_owned()],
            environment: vec![("A".to_owned(), "program".to_owned())],
        },
        deadlines: Deadlines::default(),
        output: Box::default(),
    }
}

pub(super) fn start(worker: WorkerId) -> DriverToAgent {
    let environment = vec![("RANK".to_owned(), "0".to_owned())];
    DriverToAgent::Start { worker, environment, place: None, credential: "secret".to_owned() }
}

pub(super) fn stop(worker: WorkerId, grace_ms: u64) -> DriverToAgent {
    DriverToAgent::Stop { worker, grace_ms, reason: "test".to_owned() }
}

fn lost() -> DriverLink {
    DriverLink::Lost { reason: "cable".to_owned() }
}

fn drain(core: &mut AgentCore) -> Vec<AgentOutput> {
    std::iter::from_fn(|| core.poll_output()).collect()
}

const T0: Time = Time::ZERO;

/// An agent of two slots that was welcomed, with a running worker `a[0]#1` of pid 100.
fn running() -> AgentCore {
    let mut core = AgentCore::new(T0, AgentSettings::new(host(), 2));
    core.handle_link(T0, DriverLink::Up);
    core.handle_driver(T0, welcome(1, 1));
    core.handle_driver(T0, start(worker(0, 1)));
    core.handle_spawned(T0, &worker(0, 1), Ok(100));
    drain(&mut core);
    core
}

fn exited(worker: WorkerId, status: ExitStatus) -> AgentOutput {
    exited_by(worker, status, None)
}

fn exited_by(worker: WorkerId, status: ExitStatus, stopped_by: Option<StoppedBy>) -> AgentOutput {
    AgentOutput::ToDriver(AgentToDriver::Exited {
        worker,
        status,
        stopped_by,
        killed_after_grace: false,
        library: LibraryTrace::Unseen,
    })
}

/// A process ends without last words.
fn end(core: &mut AgentCore, worker: &WorkerId, status: ExitStatus) {
    core.handle_exited(worker, status, LibraryTrace::Unseen);
    core.handle_last_words(worker, LastWords::default());
}

fn silence(worker: WorkerId) -> AgentOutput {
    let (tail, error, out_of_memory) = (String::new(), None, None);
    AgentOutput::ToDriver(AgentToDriver::LastWords { worker, tail, error, out_of_memory })
}

fn signal(worker: WorkerId, signal: StopSignal, reason: &str) -> AgentOutput {
    AgentOutput::Signal { worker, signal, reason: reason.to_owned() }
}

/// The first message over a link, of an agent without processes.
fn join() -> AgentOutput {
    AgentOutput::ToDriver(AgentToDriver::Join {
        host: host(),
        slots: 2,
        role: "default".to_owned(),
        meeting: None,
        run_id: None,
        nodes: None,
        live: vec![],
    })
}

fn exit(code: i32, reason: &str) -> AgentOutput {
    AgentOutput::Exit { code, reason: reason.to_owned() }
}
