//! Tests with real scripts and files: H-15 and X-7 for a single run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use elastic_protocol::ExitStatus;
use elastic_runtime::{BlockingLane, OffloadPort, system};
use tempfile::TempDir;

use super::*;
use crate::core::limits::STDERR_BYTES_MAX;

/// Timeout that no run of these tests reaches, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

fn script(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("hosts.sh");
    fs::write(&path, text).expect("a file in it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("to make it executable");
    (folder, path)
}

fn discovery(path: &std::path::Path) -> ScriptDiscovery {
    ScriptDiscovery::new(path, OffloadPort::lane(BlockingLane::DISCOVERY))
}

fn run_within(path: &std::path::Path, limit: Duration) -> Result<String, DiscoveryError> {
    system::run(async { discovery(path).run(limit).await }).expect("a runtime")
}

fn run(text: &str) -> Result<String, DiscoveryError> {
    let (_folder, path) = script(text);
    run_within(&path, LIMIT)
}

fn reason(result: Result<String, DiscoveryError>) -> String {
    result.expect_err("it fails").to_string()
}

/// Whether the process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[expect(clippy::disallowed_methods, reason = "waits for a process of the operating system")]
fn wait_until_gone(pid: &str) {
    let deadline = Instant::now() + LIMIT;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} is left");
        std::thread::yield_now();
    }
}

#[test]
fn what_it_prints_counts() {
    assert_eq!(run("#!/bin/sh\necho a:2\necho noise >&2\necho b\n"), Ok("a:2\nb\n".to_owned()));
    assert_eq!(run("#!/bin/sh\ncat\n"), Ok(String::new()), "stdin is empty");
}

#[test]
fn h_15_its_stderr_is_in_the_error() {
    let failed = run("#!/bin/sh\necho a:1\necho 'no scheduler' >&2\nexit 3\n");
    let Err(DiscoveryError::Failed { status, stderr, .. }) = &failed else { panic!("{failed:?}") };
    assert_eq!((*status, stderr.as_str()), (ExitStatus::Code(3), "no scheduler"));
    let killed = reason(run("#!/bin/sh\nkill -9 $$\n"));
    assert!(killed.contains("signal 9 (SIGKILL); it wrote nothing to stderr"), "{killed}");
}

#[test]
fn x_7_what_cannot_be_started_says_why() {
    let (folder, path) = script("#!/bin/sh\n");
    let gone = reason(run_within(&folder.path().join("none.sh"), LIMIT));
    assert!(gone.contains("none.sh cannot be started: No such file"), "{gone}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("to take the right away");
    let plain = reason(run_within(&path, LIMIT));
    assert!(plain.ends_with("it is not executable"), "{plain}");
    let directory = reason(run_within(folder.path(), LIMIT));
    assert!(directory.ends_with("it is a directory"), "{directory}");
    let interpreter = reason(run("#!/no/such/shell\n"));
    assert!(interpreter.contains("interpreter"), "{interpreter}");
    let neither = reason(run("echo a:1\n"));
    assert!(neither.contains("#! line"), "{neither}");
}

#[test]
fn x_7_a_script_that_hangs_is_ended_with_all_that_it_started() {
    let (folder, path) = script(
        "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho stuck >&2\nsleep 1000 &\necho $! > pid.new\n\
         mv pid.new pid\nwait\n",
    );
    let pid_file = folder.path().join("pid");
    let mut limit = Duration::from_millis(100);
    // On a busy machine the script may not get that far within the limit.
    let pid = loop {
        let failed = run_within(&path, limit);
        assert!(matches!(failed, Err(DiscoveryError::TimedOut { .. })), "{failed:?}");
        if let Ok(pid) = fs::read_to_string(&pid_file) {
            assert!(reason(failed).contains("its stderr: stuck"));
            break pid;
        }
        limit *= 2;
        assert!(limit < LIMIT, "the script never started its child");
    };
    wait_until_gone(&pid);
}

#[test]
fn what_a_script_leaves_in_the_background_does_not_pile_up() {
    let listed = run("#!/bin/sh\nsleep 1000 &\necho $!\n").expect("it ends");
    wait_until_gone(&listed);
}

#[test]
fn x_7_a_flood_is_bounded() {
    let flood = run("#!/bin/sh\nexec yes host:1\n");
    assert!(matches!(flood, Err(DiscoveryError::TooMuchOutput { .. })), "{flood:?}");
    let chatty = run("#!/bin/sh\nyes noise | head -c 1000000 >&2\necho the end >&2\nexit 1\n");
    let Err(DiscoveryError::Failed { stderr, .. }) = chatty else { panic!("{chatty:?}") };
    assert!(stderr.len() <= STDERR_BYTES_MAX && stderr.ends_with("the end"));
}

#[test]
fn x_7_bytes_that_are_not_utf_8_are_replaced() {
    let printed = run("#!/bin/sh\nprintf 'a\\377:1\\nb:1\\n'\n");
    assert_eq!(printed, Ok("a\u{fffd}:1\nb:1\n".to_owned()));
}

#[test]
fn dropping_a_run_ends_the_script() {
    let (folder, path) = script(
        "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho $$ > pid.new\nmv pid.new pid\nexec sleep 1000\n",
    );
    let pid_file = folder.path().join("pid");
    let pid = system::run(async {
        let mut run = discovery(&path).run(LIMIT);
        loop {
            let step = tokio::time::timeout(Duration::from_millis(10), &mut run).await;
            assert!(step.is_err(), "it ended: {step:?}");
            if let Ok(pid) = fs::read_to_string(&pid_file) {
                break pid;
            }
        }
    })
    .expect("a runtime");
    wait_until_gone(&pid);
}

#[test]
fn a_host_file_is_read_anew_each_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("hosts");
    let mut discovery = HostFileDiscovery::new(&path, OffloadPort::lane(BlockingLane::DISCOVERY));
    let mut read = || system::run(async { discovery.run(LIMIT).await }).expect("a runtime");
    let missing = reason(read());
    assert!(missing.contains("cannot be read: No such file"), "{missing}");
    fs::write(&path, "a slots=1\n").expect("a file");
    assert_eq!(read(), Ok("a slots=1\n".to_owned()));
    fs::write(&path, "a slots=1\nb slots=2\n").expect("a file");
    assert_eq!(read(), Ok("a slots=1\nb slots=2\n".to_owned()));
    fs::write(&path, vec![b'x'; 2 << 20]).expect("a file");
    assert!(matches!(read(), Err(DiscoveryError::TooLong { .. })));
}
