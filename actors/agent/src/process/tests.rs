//! Tests with real processes of `/bin/sh`: started, seen to end, stopped, and never left behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler};
use elastic_protocol::messages::{HealthFailure, OutputSettings, ProcessActivity};
use elastic_protocol::{ExitStatus, HostName, Incarnation, ProgramSpec, WorkerId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::exit_watch::ExitWatch;
use super::*;
use crate::core::WorkerCredential;
use crate::output::{OutputSink, OutputStream};

/// Timeout that a busy machine keeps; no test waits for it to pass.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Makes this test binary be an agent that starts one worker and waits to be killed.
const BE_AGENT: &str = "ELASTIC_TEST_BE_AGENT";
const BE_CHECKER: &str = "ELASTIC_TEST_BE_CHECKER";

#[derive(Default)]
struct Shown(Mutex<Vec<String>>);

impl OutputSink for Shown {
    fn line(&self, _prefix: &str, stream: OutputStream, line: &str) {
        self.0.lock().expect("no panic").push(format!("{}:{line}", stream.name()));
    }
}

/// Passes on the events that it receives.
struct Listener(mpsc::UnboundedSender<ProcessEvent>);

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<ProcessEvent> for Listener {
    type Result = ();

    fn handle(&mut self, event: ProcessEvent, _ctx: &mut Context<Self>) {
        let _ = self.0.send(event);
    }
}

struct Fixture {
    processes: SystemProcesses,
    listener: Addr<Listener>,
    events: mpsc::UnboundedReceiver<ProcessEvent>,
    shown: Arc<Shown>,
    folder: tempfile::TempDir,
}

fn worker() -> WorkerId {
    let host = HostName::new("h").expect("a valid name");
    WorkerId { host, slot: 0, incarnation: Incarnation(1) }
}

fn order(argv: &[&str]) -> SpawnOrder {
    SpawnOrder {
        worker: worker(),
        program: ProgramSpec {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            environment: vec![],
        },
        environment: vec![("RANK".to_owned(), "3".to_owned())],
        place: None,
        credential: WorkerCredential("s3cret".to_owned()),
        output: OutputSettings::default(),
    }
}

impl Fixture {
    /// The result of a health check.
    async fn check(&mut self, command: &str, limit: Duration) -> Option<HealthFailure> {
        let recipient = self.listener.clone().recipient();
        self.processes.check_health(command.to_owned(), limit, recipient);
        match self.event().await {
            ProcessEvent::HealthChecked { failure } => failure,
            other => panic!("no other event is due: {other:?}"),
        }
    }

    fn new() -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let shown = Arc::new(Shown::default());
        Self {
            processes: SystemProcesses::new(shown.clone()),
            listener: elastic_runtime::spawn_child(|_ctx| Listener(sender), |_exit| {}),
            events,
            shown,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn spawn(&mut self, argv: &[&str]) {
        self.processes.spawn(order(argv), self.listener.clone().recipient());
    }

    async fn event(&mut self) -> ProcessEvent {
        let event = timeout(PATIENCE, self.events.recv()).await;
        event.expect("an event in time").expect("a listener")
    }

    /// Starts a shell script, and returns its process id.
    async fn script(&mut self, script: &str) -> u32 {
        self.spawn(&["/bin/sh", "-c", script]);
        match self.event().await {
            ProcessEvent::Spawned { result: Ok(pid), .. } => pid,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of the process, and returns its exit status and the end of its stderr.
    async fn end(&mut self) -> (ExitStatus, String) {
        let status = match self.event().await {
            ProcessEvent::Exited { status, .. } => status,
            other => panic!("{other:?}"),
        };
        match self.event().await {
            ProcessEvent::LastWords { said, .. } => (status, said.tail),
            other => panic!("{other:?}"),
        }
    }

    /// The text that the process writes to a file of this name, once it is there.
    async fn note(&self, name: &str) -> String {
        let file = self.folder.path().join(name);
        let mut note = String::new();
        wait_until(|| {
            note = std::fs::read_to_string(&file).unwrap_or_default();
            note.ends_with('\n')
        })
        .await;
        note.trim().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn shown(&self) -> Vec<String> {
        self.shown.0.lock().expect("no panic").clone()
    }
}

pub(super) fn run<F: Future>(test: F) -> F::Output {
    elastic_runtime::system::run(test).expect("a runtime")
}

pub(super) async fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Whether a process runs: it exists, and is not a zombie (which its parent has yet to reap).
fn runs(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !status.is_empty() && state != Some('Z')
}

#[test]
fn output_environment_and_exit_are_seen_and_no_zombie_is_left() {
    run(async {
        let mut fixture = Fixture::new();
        let script = "echo $RANK $ELASTIC_CREDENTIAL; echo oops >&2; cat; exit 7";
        let pid = fixture.script(script).await;
        assert_eq!(fixture.end().await, (ExitStatus::Code(7), "oops\n".to_owned()));
        let mut shown = fixture.shown();
        shown.sort();
        assert_eq!(shown, ["stderr:oops", "stdout:3 s3cret"]);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was reaped");
        let command_line = format!("{:?}", order(&["x"]));
        assert!(!command_line.contains("s3cret"));
    });
}

#[test]
fn x_9_sigterm_is_for_the_worker_and_sigkill_for_its_group() {
    run(async {
        let mut fixture = Fixture::new();
        let (child, ready) = (fixture.path("child"), fixture.path("ready"));
        fixture
            .script(&format!(
                "trap 'echo got it; echo > {ready}' TERM; sleep 1000 & echo $! > {child}; \
                 while :; do wait; done"
            ))
            .await;
        let child = fixture.note("child").await;
        fixture.processes.signal(&worker(), StopSignal::Terminate);
        wait_until(|| std::path::Path::new(&ready).exists()).await;
        assert!(runs(&child), "SIGTERM is not for the worker's children");
        fixture.processes.signal(&worker(), StopSignal::Kill);
        assert_eq!(fixture.end().await.0, ExitStatus::Signal(9));
        wait_until(|| !runs(&child)).await;
        assert_eq!(fixture.shown(), ["stdout:got it"]);
        fixture.processes.signal(&worker(), StopSignal::Kill);
    });
}

#[test]
fn sigterm_ends_a_worker_that_does_not_mind() {
    run(async {
        let mut fixture = Fixture::new();
        fixture.script("exec sleep 1000").await;
        fixture.processes.signal(&worker(), StopSignal::Terminate);
        assert_eq!(fixture.end().await.0, ExitStatus::Signal(15));
    });
}

#[test]
fn what_a_worker_leaves_in_its_group_ends_with_it() {
    run(async {
        let mut fixture = Fixture::new();
        let child = fixture.path("child");
        fixture.script(&format!("sleep 1000 & echo $! > {child}; exit 0")).await;
        assert_eq!(fixture.end().await.0, ExitStatus::Code(0));
        let child = fixture.note("child").await;
        wait_until(|| !runs(&child)).await;
    });
}

#[test]
fn a_descendant_that_left_the_group_does_not_delay_the_report() {
    run(async {
        let mut fixture = Fixture::new();
        let child = fixture.path("child");
        fixture.script(&format!("setsid sleep 1000 & echo $! > {child}; exit 0")).await;
        assert_eq!(fixture.end().await.0, ExitStatus::Code(0));
        // The child may have been killed before it left the group.
        if let Ok(child) = fixture.note("child").await.parse() {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
    });
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    run(async {
        let mut fixture = Fixture::new();
        let file = fixture.path("file");
        std::fs::write(&file, "text").expect("a file");
        // Written by a process of its own: a file that is open for writing anywhere, even for a moment in the
        // fork of another test, is "busy".
        let script = fixture.path("script");
        let write = format!("echo '#!/no/such/interpreter' > {script}; chmod +x {script}");
        let written = Command::new("/bin/sh").args(["-c", &write]).status();
        assert!(written.expect("a shell").success());
        let cases = [
            ("no-such-program-here", "no folder of PATH has a program of that name"),
            ("/no/such/program", "there is no such file"),
            (&file, "it is not executable (chmod +x)"),
            (&script, "the interpreter that its first line names is missing"),
        ];
        for (program, hint) in cases {
            fixture.spawn(&[program]);
            let ProcessEvent::Spawned { result: Err(failure), .. } = fixture.event().await else {
                panic!("{program} was started");
            };
            let reason = failure.reason;
            assert!(failure.is_programs, "it would not do better at the next attempt: {reason}");
            assert!(reason.starts_with(&format!("cannot start {program:?}: ")), "{reason}");
            assert!(reason.contains(hint), "{reason}");
        }
    });
}

#[test]
fn a_port_that_is_dropped_leaves_nothing_behind() {
    run(async {
        let mut fixture = Fixture::new();
        let child = fixture.path("child");
        let pid = fixture.script(&format!("sleep 1000 & echo $! > {child}; wait")).await;
        let child = fixture.note("child").await;
        drop(fixture.processes);
        wait_until(|| !runs(&child) && !runs(&pid.to_string())).await;
    });
}

#[test]
fn without_a_pidfd_a_thread_sees_the_end() {
    run(async {
        let mut child = Command::new("/bin/sh").args(["-c", "exit 5"]).spawn().expect("a shell");
        let pid = Pid::from_raw(child.id().cast_signed());
        let watch = ExitWatch::with_thread(pid).expect("a thread");
        timeout(PATIENCE, watch.ended()).await.expect("in time");
        assert_eq!(child.wait().expect("not reaped yet").code(), Some(5));
    });
}

/// The agent of the test below, run in a process of its own; not a test by itself.
#[test]
fn be_agent() {
    let Ok(folder) = std::env::var(BE_AGENT) else { return };
    run(async {
        let mut fixture = Fixture::new();
        let pid = fixture.script(&format!("sleep 1000 & echo $! > {folder}/child; wait")).await;
        std::fs::write(format!("{folder}/worker"), format!("{pid}\n")).expect("a file");
        fixture.event().await;
    });
}

#[test]
fn x_8_an_agent_that_is_killed_takes_its_workers_with_it() {
    run(async {
        let fixture = Fixture::new();
        let this_binary = std::env::current_exe().expect("a test binary");
        let mut agent = Command::new(this_binary)
            .args(["process::tests::be_agent", "--exact", "--nocapture"])
            .env(BE_AGENT, fixture.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an agent");
        let (worker, child) = (fixture.note("worker").await, fixture.note("child").await);
        assert!(runs(&worker) && runs(&child));
        agent.kill().expect("it runs");
        wait_until(|| !runs(&worker) && !runs(&child)).await;
        agent.wait().expect("it was not reaped");
        // The agent's pipe ends: the guard keeps no descriptor of the agent open.
        let output = BufReader::new(agent.stdout.take().expect("a pipe"));
        assert!(output.lines().all(|line| line.is_ok()));
    });
}

#[test]
fn g_9_a_health_check_is_bounded_in_time_and_output_and_leaves_nothing_behind() {
    run(async {
        let mut fixture = Fixture::new();
        let folder = fixture.folder.path().display().to_string();
        assert_eq!(fixture.check("echo fine", PATIENCE).await, None);
        let failure = fixture.check("echo one; echo two >&2; exit 3", PATIENCE).await;
        let HealthFailure { reason, output } = failure.expect("it fails");
        assert_eq!((&*reason, &*output), ("exit code 3", "one\ntwo"));
        let failure = fixture.check("/nowhere/check", PATIENCE).await.expect("it is not there");
        assert_eq!(failure.reason, "exit code 127");
        assert!(failure.output.contains("/nowhere/check"), "{failure:?}");
        let failure = fixture.check("yes ill | head -c 100000; exit 1", PATIENCE).await;
        let length = failure.expect("it fails").output.len();
        assert!((1_000..=HealthFailure::OUTPUT_BYTES_MAX).contains(&length), "{length}");
        let hangs = format!("sleep 1000 & echo $! > {folder}/child; echo begins; wait");
        let failure = fixture.check(&hangs, Duration::from_secs(2)).await;
        let HealthFailure { reason, output } = failure.expect("it hangs");
        assert_eq!((&*reason, &*output), ("it has not ended within 2 s", "begins"));
        let child = fixture.note("child").await;
        wait_until(|| !runs(&child)).await;
        let closed = fixture.check("exec >&- 2>&-; sleep 1000", Duration::from_millis(300)).await;
        assert_eq!(closed.expect("it hangs").reason, "it has not ended within 0.3 s");
        assert!(fixture.processes.health_lane().hanging().is_none());
    });
}

/// The agent of the test below, run in a process of its own, which adopts orphans; not a test by itself.
#[test]
fn be_checker() {
    let Ok(folder) = std::env::var(BE_CHECKER) else { return };
    run(async {
        let mut fixture = Fixture::new();
        fixture.processes.adopt_orphans().expect("signals can be heard");
        let check = |name: &str| {
            format!(
                "setsid sh -c 'echo $$ > {folder}/{name}; exec sleep 1000' & \
                 while ! [ -s {folder}/{name} ]; do sleep 0.01; done"
            )
        };
        let child = |name: &str| {
            let told = std::fs::read_to_string(format!("{folder}/{name}")).expect("it was begun");
            told.trim().to_owned()
        };
        assert_eq!(fixture.check(&check("passed"), PATIENCE).await, None);
        wait_until(|| !runs(&child("passed"))).await;
        let hangs = format!("{}; sleep 1000", check("hangs"));
        assert!(fixture.check(&hangs, Duration::from_secs(2)).await.is_some());
        wait_until(|| !runs(&child("hangs"))).await;
    });
}

#[test]
fn g_9_a_health_check_leaves_no_process_in_a_session_of_its_own_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let this_binary = std::env::current_exe().expect("a test binary");
    let agent = Command::new(this_binary)
        .args(["process::tests::be_checker", "--exact", "--nocapture"])
        .env(BE_CHECKER, folder.path())
        .output()
        .expect("an agent");
    assert!(agent.status.success(), "{}", String::from_utf8_lossy(&agent.stderr));
    assert!(folder.path().join("hangs").exists(), "it was run");
}

#[test]
fn s_4_a_worker_is_known_before_its_program_runs() {
    run(async {
        let mut fixture = Fixture::new();
        let (up, leaders) = (fixture.path("up"), fixture.processes.leaders());
        fixture.spawn(&["/bin/sh", "-c", &format!("echo $$ > {up}; exec sleep 1000")]);
        // The order for the start is on its lane.
        tokio::task::yield_now().await;
        // This thread takes note of starts, too, and does not before it awaits something.
        let deadline = Instant::now() + PATIENCE;
        let pid = loop {
            let told = std::fs::read_to_string(&up).unwrap_or_default();
            if told.ends_with('\n') {
                break told.trim().parse().expect("a number");
            }
            assert!(Instant::now() < deadline, "the program does not run");
            std::thread::yield_now();
        };
        assert_eq!(leaders.all(), [(worker(), pid)], "before the start has returned");
        assert!(
            matches!(fixture.event().await, ProcessEvent::Spawned { result, .. } if result == Ok(pid))
        );
        assert_eq!(leaders.all(), [(worker(), pid)], "after that");
        fixture.processes.signal(&worker(), StopSignal::Kill);
        assert_eq!(fixture.end().await.0, ExitStatus::Signal(9));
        assert_eq!(leaders.all(), []);
        fixture.spawn(&["/no/such/program"]);
        assert!(matches!(fixture.event().await, ProcessEvent::Spawned { result: Err(_), .. }));
        assert_eq!(leaders.all(), [], "one that cannot be started");
    });
}

#[test]
fn a_look_at_a_worker_is_answered_while_it_lives() {
    run(async {
        let mut fixture = Fixture::new();
        fixture.script("exec sleep 1000").await;
        let recipient = fixture.listener.clone().recipient();
        fixture.processes.inspect(&worker(), true, recipient);
        let ProcessEvent::Inspected { worker: of, sight } = fixture.event().await else {
            panic!("no other event is due");
        };
        // Its activity is not known: it may not be asleep yet.
        assert_eq!(of, worker());
        assert_ne!(sight.activity, ProcessActivity::Ended);
        // It ends while it is looked at, and nothing is said of it but its end.
        let recipient = fixture.listener.clone().recipient();
        fixture.processes.inspect(&worker(), true, recipient);
        fixture.processes.signal(&worker(), StopSignal::Kill);
        assert_eq!(fixture.end().await.0, ExitStatus::Signal(9));
        let recipient = fixture.listener.clone().recipient();
        fixture.processes.inspect(&worker(), true, recipient);
        let lanes = fixture.processes.inspection_lanes();
        wait_until(|| lanes.iter().all(|lane| lane.hanging().is_none())).await;
        assert!(fixture.events.try_recv().is_err(), "a process that is gone is not looked at");
    });
}
