//! Tests with real processes: asleep, computing, in Python's native code, in uninterruptible sleep, and killed while their
//! stack is taken.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::snapshot::STOPPED_WITHIN_MS;
use super::*;
use crate::process::exit_watch::ExitWatch;
use crate::process::inspection::tests::{Subject, python};
use crate::process::tests::{PATIENCE, run, wait_until};

/// Names this test program's child, which stands still in a function of its own.
const STANDS_STILL: &str = "ELASTIC_TEST_STANDS_STILL";

/// Takes stacks until one is as expected: a process on a busy machine takes its time to get there.
async fn seen(subject: &Subject, is_expected: impl Fn(&str) -> bool) -> String {
    let mut last = None;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match native_stack(subject.pid()) {
            Ok(stack) if is_expected(&stack) => return stack,
            other => last = Some(other),
        }
        tokio::task::yield_now().await;
    }
    panic!("not in time: {last:?}");
}

#[test]
fn a_call_that_blocks_is_named_with_its_callers() {
    run(async {
        let subject = Subject::shell("exec sleep 1000");
        let stack = seen(&subject, |stack| stack.contains("nanosleep")).await;
        assert!(stack.lines().next().is_some_and(|line| line.contains("libc")), "{stack}");
        assert!(stack.contains("__libc_start"), "walked to its begin: {stack}");
    });
}

/// The child of the next test; by itself it does nothing.
#[test]
fn stands_still_if_it_is_told_to() {
    if std::env::var_os(STANDS_STILL).is_some() {
        loop {
            std::thread::park();
        }
    }
}

/// The main thread of a Rust program: it has the test harness's functions on its stack, which waits for a test.
#[test]
fn functions_of_a_rust_program_have_their_names() {
    run(async {
        let name = "process::inspection::native_stack::tests::stands_still_if_it_is_told_to";
        let program = std::env::current_exe().expect("it runs");
        let subject = Subject::start(
            Command::new(program)
                .args(["--exact", name, "--test-threads", "2"])
                .env(STANDS_STILL, "yes")
                .stdout(Stdio::null()),
        );
        let stack = seen(&subject, |stack| stack.contains("test::test_main")).await;
        // The program's own `main` is a jump where it is optimised.
        assert!(stack.contains("std::rt::lang_start"), "{stack}");
        assert!(!stack.contains("_ZN") && !stack.contains("_RN"), "not mangled: {stack}");
    });
}

#[test]
fn a_process_that_computes_is_shown_too_and_goes_on() {
    run(async {
        let subject = Subject::shell("while :; do :; done");
        let stack = seen(&subject, |stack| stack.lines().count() > 1).await;
        assert!(!stack.is_empty(), "{stack}");
        let status = std::fs::read_to_string(format!("/proc/{}/status", subject.pid()));
        assert!(status.expect("it lives").contains("TracerPid:\t0\n"), "nobody traces it any more");
        wait_until(|| subject.state() == Some('R')).await;
    });
}

#[test]
fn native_code_that_holds_the_interpreters_lock_is_named() {
    run(async {
        let program = "import ctypes\n\
             def hold():\n    while True:\n        ctypes.PyDLL(None).pause()\n\
             hold()\n";
        let Some((subject, _folder)) = python(program) else { return };
        let stack = seen(&subject, |stack| stack.starts_with("pause ")).await;
        assert!(stack.contains("ffi_call"), "{stack}");
        assert!(!stack.contains("main ("), "the interpreter's own callers are left out: {stack}");
    });
}

#[test]
fn g_9_a_thread_that_does_not_stop_is_waited_for_no_longer_than_its_time_and_let_go() {
    run(async {
        // The kernel keeps the parent of a vfork in uninterruptible sleep until the child has executed another program.
        let program = "import os\n\
             path = os.path.dirname(__file__) + '/fifo'\n\
             os.mkfifo(path)\n\
             vain = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]\n\
             os.posix_spawn('/bin/true', ['true'], {}, file_actions=vain)\n";
        let Some((subject, folder)) = python(program) else { return };
        let mut waited_ms = None;
        wait_until(|| {
            let begun = Instant::now();
            let refused = native_stack(subject.pid());
            waited_ms = Some(begun.elapsed().as_millis());
            matches!(refused, Err(NativeStackError::NotStopped))
        })
        .await;
        assert!(waited_ms >= Some(u128::from(STOPPED_WITHIN_MS)), "{waited_ms:?}");
        let fifo = folder.path().join("fifo");
        drop(std::fs::OpenOptions::new().write(true).open(fifo).expect("the child reads it"));
        wait_until(|| subject.state() == Some('Z')).await;
    });
}

#[test]
fn a_process_that_ends_while_its_stack_is_taken_keeps_its_exit_status() {
    run(async {
        for _ in 0..30 {
            let mut subject = Subject::shell("exec sleep 1000");
            let (pid, watch) = (subject.pid(), ExitWatch::with_thread(subject.pid()));
            let tracer = std::thread::Builder::new().spawn(move || {
                // Until it is gone.
                while !matches!(native_stack(pid), Err(NativeStackError::Unreadable { .. })) {}
            });
            let tracer = tracer.expect("a thread");
            let _ = native_stack(pid);
            nix::sys::signal::kill(pid, Signal::SIGKILL).expect("it was not reaped");
            watch.expect("a watch").ended().await;
            assert_eq!(subject.state(), Some('Z'), "the watch has seen its end, and not a stop");
            let status = subject.0.wait().expect("nobody else has reaped it");
            assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
            tracer.join().expect("no panic");
        }
    });
}
