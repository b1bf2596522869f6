//! Tests with real processes: stopped, frozen, asleep, at work, blocked in a pipe, with children that have ended, and
//! Python's with the package's own module for stacks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};

use super::*;
use crate::process::proc_files::ProcessStat;
use crate::process::tests::{PATIENCE, run, wait_until};

/// The package's module that offers stacks.
const STACKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/elastic_node/_stacks.py");

/// A process of a test, which ends with it.
pub(super) struct Subject(pub(super) Child);

impl Subject {
    pub(super) fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("it starts"))
    }

    pub(super) fn shell(script: &str) -> Self {
        Self::start(Command::new("/bin/sh").args(["-c", script]))
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    /// The letter of its main thread's state.
    pub(super) fn state(&self) -> Option<char> {
        ProcessStat::of(self.pid().as_raw()).map(|stat| stat.state)
    }

    async fn look(&self) -> ProcessSight {
        Inspector::new().look(self.pid(), true, || true).await.expect("it is there")
    }

    /// Looks until the sight is as expected: a process on a busy machine takes its time to get there.
    async fn seen(&self, is_expected: impl Fn(&ProcessSight) -> bool) -> ProcessSight {
        self.looked_at(true, is_expected).await
    }

    async fn looked_at(
        &self,
        with_stack: bool,
        is_expected: impl Fn(&ProcessSight) -> bool,
    ) -> ProcessSight {
        let (inspector, deadline) = (Inspector::new(), Instant::now() + PATIENCE);
        loop {
            let sight = inspector.clone().look(self.pid(), with_stack, || true).await;
            let sight = sight.expect("it is there");
            if is_expected(&sight) {
                return sight;
            }
            assert!(Instant::now() < deadline, "not in time: {sight:?}");
        }
    }

    async fn seen_to(&self, activity: ProcessActivity, waits_in: &str) -> ProcessSight {
        let is_it = |sight: &ProcessSight| {
            sight.activity == activity && sight.waits_in.as_deref().unwrap_or_default() == waits_in
        };
        // A stop for its stack has the system restart a sleep by another call.
        self.looked_at(false, is_it).await
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // A process that has ended was not reaped, so its id is still its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Python program that offers its stacks first, as a worker does. `None` without Python.
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
pub(super) fn python(program: &str) -> Option<(Subject, tempfile::TempDir)> {
    let is_there = Command::new("python3").arg("-V").stdout(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no python3");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (path, ready) = (folder.path().join("program.py"), folder.path().join("ready"));
    let load = format!(
        "import importlib.util\n\
         spec = importlib.util.spec_from_file_location('_stacks', {STACKS:?})\n\
         stacks = importlib.util.module_from_spec(spec)\n\
         spec.loader.exec_module(stacks)\n\
         stacks.offer()\n\
         open({ready:?}, 'w').close()\n"
    );
    std::fs::write(&path, load + program).expect("it is written");
    Some((Subject::start(Command::new("python3").arg("-I").arg(&path)), folder))
}

#[test]
fn a_process_that_a_signal_has_stopped_is_stopped_and_waits_in_nothing() {
    run(async {
        let subject = Subject::shell("while :; do :; done");
        kill(subject.pid(), Signal::SIGSTOP).expect("it runs");
        wait_until(|| subject.state() == Some('T')).await;
        let sight = subject.seen_to(ProcessActivity::Stopped, "").await;
        assert_eq!(sight.watched_ms, 0, "one reading shows it: {sight:?}");
        assert!(sight.findings.is_empty(), "{sight:?}");
        assert!(sight.stack.is_empty(), "it is not asked for its stacks");
        kill(subject.pid(), Signal::SIGCONT).expect("it is there");
        subject.seen(|sight| sight.activity == ProcessActivity::Working).await;
    });
}

#[test]
fn a_process_that_computes_works_by_its_own_time_and_that_of_what_it_has_started() {
    run(async {
        for script in ["while :; do :; done", "while :; do :; done & wait"] {
            let subject = Subject::start(Command::new("setsid").args(["/bin/sh", "-c", script]));
            let sight = subject.seen(|sight| sight.activity == ProcessActivity::Working).await;
            let _ = nix::sys::signal::killpg(subject.pid(), Signal::SIGKILL);
            assert!(sight.cpu_ms >= 20, "{sight:?}");
        }
    });
}

#[test]
fn a_process_that_moves_data_works() {
    run(async {
        let subject = Subject::start(
            Command::new("dd")
                .args(["if=/dev/zero", "of=/dev/null", "bs=1M"])
                .stderr(Stdio::null()),
        );
        let sight = subject.seen(|sight| sight.activity == ProcessActivity::Working).await;
        assert!(sight.moved_bytes > 1 << 20, "{sight:?}");
    });
}

#[test]
fn a_process_whose_pipe_nobody_reads_waits_in_a_write_to_it() {
    run(async {
        let subject = Subject::start(Command::new("yes").stdout(Stdio::piped()));
        let waits_in = "write to file descriptor 1 (a pipe)";
        let sight = subject.seen_to(ProcessActivity::Waiting, waits_in).await;
        assert_eq!(sight.moved_bytes, 0, "{sight:?}");
        assert_eq!(sight.to_string(), format!("waits, in {waits_in}"));
    });
}

#[test]
fn a_process_that_reads_a_file_in_vain_is_told_with_its_name() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        let held = nix::fcntl::open(&path, OFlag::O_RDWR, nix::sys::stat::Mode::empty());
        let subject = Subject::shell(&format!("read line < {}", path.display()));
        let waits_in = format!("read from file descriptor 0 ({})", path.display());
        subject.seen_to(ProcessActivity::Waiting, &waits_in).await;
        drop(held);
    });
}

#[test]
fn a_process_that_sleeps_and_one_that_waits_for_it_are_told_apart() {
    run(async {
        let sleeper = Subject::shell("exec sleep 1000");
        sleeper.seen_to(ProcessActivity::Waiting, "a sleep").await;
        let parent = Subject::start(
            Command::new("setsid").args(["/bin/sh", "-c", "sleep 1000; :"]).stdout(Stdio::null()),
        );
        parent.seen_to(ProcessActivity::Waiting, "the end of a child process").await;
        let _ = nix::sys::signal::killpg(parent.pid(), Signal::SIGKILL);
    });
}

/// Whether the findings name a child process. There may be others, of a machine that is short of resources.
fn has_a_child_to_tell(sight: &ProcessSight) -> bool {
    sight.findings.iter().any(|finding| finding.contains("child process "))
}

#[test]
fn a_child_that_has_ended_and_is_not_waited_for_is_a_finding() {
    run(async {
        // The program that replaces the shell knows of no child.
        let subject = Subject::shell("/bin/sh -c 'exit 3' & exec sleep 1000");
        let sight = subject.seen(has_a_child_to_tell).await;
        let finding = &sight.findings[0];
        assert!(finding.starts_with("its child process "), "{finding}");
        assert!(
            finding.ends_with(" (sh) has ended with code 3 and was not waited for"),
            "{finding}"
        );
        let killed = Subject::shell("(kill -9 $(exec sh -c 'echo $PPID')) & exec sleep 1000");
        let sight = killed.seen(has_a_child_to_tell).await;
        assert!(sight.findings[0].contains("has ended by SIGKILL and"), "{sight:?}");
    });
}

#[test]
fn a_main_thread_that_has_ended_before_the_others_is_a_finding() {
    const PROGRAM: &str = "import ctypes, threading, time\n\
        threading.Thread(target=time.sleep, args=(1000,)).start()\n\
        ctypes.CDLL(None).pthread_exit(None)";
    run(async {
        let subject = Subject::start(Command::new("python3").args(["-c", PROGRAM]));
        let sight = subject.seen(|sight| sight.activity == ProcessActivity::Ended).await;
        assert_eq!(sight.findings[0], "its main thread alone: other threads of it go on");
    });
}

#[test]
fn a_child_that_is_stopped_is_a_finding() {
    run(async {
        let subject = Subject::shell("/bin/sh -c 'kill -STOP $$' & exec sleep 1000");
        let sight = subject.seen(has_a_child_to_tell).await;
        let finding = &sight.findings[0];
        assert!(finding.starts_with("its child process "), "{finding}");
        assert!(finding.ends_with(" (sh) is stopped by a signal or a debugger"), "{finding}");
        let child = finding.split_whitespace().nth(3).and_then(|pid| pid.parse().ok());
        let child = Pid::from_raw(child.expect("a process id"));
        kill(child, Signal::SIGKILL).expect("it is there");
    });
}

/// A control group of this test that gives its processes a fiftieth of a processor. `None` where this test may not make one.
struct Limited(PathBuf);

impl Limited {
    fn make() -> Option<Self> {
        let name = format!("elastic-test-{}", uuid::Uuid::new_v4().simple());
        // Version 1, and version 2 where its controller is given to the groups below.
        let kinds = [
            ("cgroup", "cpu", "cpu.cfs_quota_us", "2000"),
            ("cgroup2", "cgroup2", "cpu.max", "2000 100000"),
        ];
        kinds.into_iter().find_map(|(kind, word, file, limit)| {
            let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
            let is_of = |line: &&str| {
                line.split(' ').nth(2) == Some(kind) && line.split([' ', ',']).any(|it| it == word)
            };
            let mount = mounts.lines().find(is_of)?.split(' ').nth(1)?;
            let folder = Path::new(mount).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            std::fs::write(group.0.join(file), limit).ok().map(|()| group)
        })
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // It stays if its process does.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
fn a_process_that_a_cpu_limit_holds_back_is_said_to_be() {
    run(async {
        let Some(group) = Limited::make() else {
            return eprintln!("skipped: no control group with a CPU limit can be made");
        };
        let mut subject = Subject::shell("while :; do :; done");
        let pid = subject.pid().to_string();
        std::fs::write(group.0.join("cgroup.procs"), pid).expect("it is written");
        let words = "its control group's CPU limit held it back for ";
        let is_told = |sight: &ProcessSight| sight.findings.iter().any(|it| it.starts_with(words));
        let sight = subject.looked_at(false, is_told).await;
        assert!(sight.cpu_ms < sight.watched_ms / 2, "{sight:?}");
        subject.0.kill().expect("it was not reaped");
        subject.0.wait().expect("it was not reaped");
    });
}

#[test]
fn a_process_that_has_ended_is_told_and_one_that_is_gone_is_not() {
    run(async {
        let mut subject = Subject::shell("exit 0");
        wait_until(|| subject.state() == Some('Z')).await;
        assert_eq!(subject.look().await.activity, ProcessActivity::Ended);
        let pid = subject.pid();
        subject.0.wait().expect("it was not reaped");
        assert_eq!(Inspector::new().look(pid, true, || true).await, None);
    });
}

#[test]
fn a_debugger_that_is_attached_is_a_finding() {
    run(async {
        // The tracer is the parent, which needs no permission for that; the child ends with it.
        let program = "import ctypes, os, time\n\
             libc = ctypes.CDLL(None)\n\
             PR_SET_PDEATHSIG, PTRACE_SEIZE = 1, 0x4206\n\
             child = os.fork()\n\
             if child == 0:\n    \
                 libc.prctl(PR_SET_PDEATHSIG, 9)\n    \
                 time.sleep(1000)\n\
             assert libc.ptrace(PTRACE_SEIZE, child, None, None) == 0\n\
             with open(__file__ + '.child', 'w') as note:\n    note.write('%d\\n' % child)\n\
             time.sleep(1000)\n";
        let Some((subject, folder)) = python(program) else { return };
        let mut child = String::new();
        wait_until(|| {
            let note = folder.path().join("program.py.child");
            child = std::fs::read_to_string(note).unwrap_or_default();
            child.ends_with('\n')
        })
        .await;
        let child = Pid::from_raw(child.trim().parse().expect("a process id"));
        let sight = Inspector::new().look(child, false, || true).await.expect("it is there");
        let finding = format!("process {} (python3) traces it, as a debugger does", subject.pid());
        assert_eq!(sight.findings.first(), Some(&finding), "beside what the machine is short of");
    });
}

#[test]
fn what_was_reaped_during_a_look_is_not_told() {
    run(async {
        let subject = Subject::shell("exec sleep 1000");
        assert_eq!(Inspector::new().look(subject.pid(), true, || false).await, None);
    });
}

/// The kernel lets the parent of a vfork wait in such a sleep, as a disk does; the child opens a fifo in vain.
#[test]
fn a_process_in_uninterruptible_sleep_is_told_and_not_asked_for_its_stacks() {
    run(async {
        let program = "import os, signal, tempfile\n\
             path = os.path.join(os.path.dirname(__file__), 'fifo')\n\
             os.mkfifo(path)\n\
             vain = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]\n\
             os.posix_spawn('/bin/true', ['true'], {}, file_actions=vain)\n";
        let Some((subject, folder)) = python(program) else { return };
        let is_it = |sight: &ProcessSight| sight.activity == ProcessActivity::Uninterruptible;
        let sight = subject.seen(is_it).await;
        assert_eq!(sight.stack, "");
        // The child goes on, and its parent with it.
        let fifo = folder.path().join("fifo");
        drop(std::fs::OpenOptions::new().write(true).open(fifo).expect("the child reads it"));
        wait_until(|| subject.state() == Some('Z')).await;
    });
}

/// A control group of this test, with the file that freezes it. `None` where this test may not make one.
struct Freezable {
    folder: PathBuf,
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezable {
    fn all() -> impl Iterator<Item = Self> {
        let name = format!("elastic-test-{}", uuid::Uuid::new_v4().simple());
        let kinds = [
            ("cgroup2", "cgroup.freeze", ["1", "0"]),
            ("freezer", "freezer.state", ["FROZEN", "THAWED"]),
        ];
        kinds.into_iter().filter_map(move |(kind, file, words)| {
            let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
            let is_of = |line: &&str| line.split([' ', ',']).any(|word| word == kind);
            let mount = mounts.lines().find(is_of)?.split(' ').nth(1)?;
            let folder = Path::new(mount).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Self { folder, file, words };
            group.folder.join(file).exists().then_some(group)
        })
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).expect("it is written");
    }

    fn freeze(&self) -> Freeze<'_> {
        self.write(self.file, self.words[0]);
        Freeze(self)
    }
}

/// A group while it is frozen. A process in it cannot be killed before this is dropped.
struct Freeze<'a>(&'a Freezable);

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        self.0.write(self.0.file, self.0.words[1]);
    }
}

impl Drop for Freezable {
    fn drop(&mut self) {
        // It stays if its process does.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
fn a_process_whose_control_group_is_frozen_is_told() {
    run(async {
        let groups: Vec<Freezable> = Freezable::all().collect();
        if groups.is_empty() {
            eprintln!("skipped: no control group can be made");
        }
        for group in &groups {
            let mut subject = Subject::shell("while :; do :; done");
            group.write("cgroup.procs", &subject.pid().to_string());
            let frozen = group.freeze();
            let is_it = |sight: &ProcessSight| sight.activity == ProcessActivity::Frozen;
            let sight = subject.seen(is_it).await;
            assert_eq!((sight.waits_in.as_deref(), sight.stack.as_str()), (None, ""));
            drop(frozen);
            subject.0.kill().expect("it was not reaped");
            subject.0.wait().expect("it was not reaped");
        }
    });
}

#[test]
fn the_stack_of_a_python_program_names_file_line_and_function_each_time() {
    run(async {
        let program = "def compute():\n    while True:\n        pass\n\n\ncompute()\n";
        let Some((subject, folder)) = python(program) else { return };
        wait_until(|| folder.path().join("ready").exists()).await;
        for _ in 0..2 {
            let is_told = |sight: &ProcessSight| {
                sight.activity == ProcessActivity::Working && sight.stack.contains("in compute\n")
            };
            let stack = subject.seen(is_told).await.stack;
            assert!(stack.starts_with("Current thread 0x"), "{stack}");
            assert!(stack.contains("/program.py\", line "), "{stack}");
            assert_eq!(stack.matches("in compute").count(), 1, "the file was emptied: {stack}");
        }
    });
}

#[test]
fn the_main_threads_stack_comes_first() {
    run(async {
        let program = "import threading, time\n\
             def other():\n    time.sleep(1000)\n\
             threads = [threading.Thread(target=other, daemon=True) for _ in range(3)]\n\
             [thread.start() for thread in threads]\n\
             def join():\n    threads[0].join()\n\
             join()\n";
        let Some((subject, _folder)) = python(program) else { return };
        let joins = |sight: &ProcessSight| {
            sight.stack.contains("in join")
                && sight.stack.matches("in other").count() == 3
                && sight.waits_in.as_deref() == Some("a lock or a condition (futex)")
        };
        let sight = subject.seen(joins).await;
        let at = |text: &str| sight.stack.find(text).expect("it is there");
        assert!(at("in join") < at("in other"), "{}", sight.stack);
    });
}

#[test]
fn native_code_that_holds_the_interpreters_lock_does_not_hide_the_stacks() {
    run(async {
        // The signal ends a sleep of native code.
        let program = "import ctypes\n\
             def hold():\n    while True:\n        ctypes.PyDLL(None).sleep(1000)\n\
             hold()\n";
        let Some((subject, _folder)) = python(program) else { return };
        // Until it is there, Python itself is at work.
        let holds = |sight: &ProcessSight| {
            sight.activity == ProcessActivity::Waiting && sight.stack.contains("in hold\n")
        };
        let sight = subject.seen(holds).await;
        assert_eq!(sight.waits_in.as_deref(), Some("a sleep"));
        assert!(sight.native_stack.contains("sleep (libc"), "{}", sight.native_stack);
    });
}

/// A thread of native code keeps the lock, and the main thread wants to go on.
#[test]
fn a_main_thread_that_waits_for_pythons_lock_is_said_to() {
    run(async {
        let program = "import ctypes, threading\n\
             def hold():\n    ctypes.PyDLL(None).sleep(1000)\n\
             threading.Thread(target=hold, daemon=True).start()\n\
             while True:\n    pass\n";
        let Some((subject, _folder)) = python(program) else { return };
        let words = "its main thread waits for Python's lock (the GIL), which another thread keeps";
        let sight = subject.seen(|sight| sight.findings.iter().any(|it| it == words)).await;
        assert!(sight.stack.contains("in hold"), "{}", sight.stack);
    });
}

#[test]
fn a_process_that_waits_for_a_peer_is_told_with_its_address() {
    run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("it listens");
        let program = format!(
            "import socket\nsocket.create_connection(('127.0.0.1', {})).recv(1)\n",
            at.port()
        );
        let Some((subject, _folder)) = python(&program) else { return };
        let words = format!(" is connected to {at}");
        let is_told = |sight: &ProcessSight| sight.findings.iter().any(|it| it.ends_with(&words));
        let sight = subject.looked_at(false, is_told).await;
        let waits_in = sight.waits_in.as_deref().unwrap_or_default();
        assert!(waits_in.starts_with("receive from file descriptor "), "{sight:?}");
    });
}

/// A process with the file, and without a handler: the signal would end it.
#[test]
fn a_process_that_does_not_handle_the_signal_is_not_asked() {
    run(async {
        let program = "import faulthandler, time\n\
             faulthandler.unregister(stacks.SIGNAL)\n\
             open(__file__ + '.gone', 'w').close()\n\
             time.sleep(1000)\n";
        let Some((subject, folder)) = python(program) else { return };
        wait_until(|| folder.path().join("program.py.gone").exists()).await;
        assert_eq!(subject.look().await.stack, "");
        assert_ne!(subject.state(), Some('Z'), "it lives");
    });
}

/// The signal is blocked: it is handled when the program allows it again, or never.
#[test]
fn g_9_stacks_that_are_not_written_are_waited_for_no_longer_than_their_time() {
    run(async {
        let program = "import signal, time\n\
             signal.pthread_sigmask(signal.SIG_BLOCK, {stacks.SIGNAL})\n\
             open(__file__ + '.blocked', 'w').close()\n\
             time.sleep(1000)\n";
        let Some((subject, folder)) = python(program) else { return };
        wait_until(|| folder.path().join("program.py.blocked").exists()).await;
        let begun = Instant::now();
        let sight = subject.look().await;
        assert!(begun.elapsed() >= WATCHED + STACKS_WITHIN, "{:?}", begun.elapsed());
        assert_eq!(sight.stack, "");
    });
}

/// The lane of native stacks hangs, as with a disk that does not answer.
#[test]
fn g_9_a_native_stack_that_is_not_read_in_time_is_left_out() {
    run(async {
        let subject = Subject::shell("exec sleep 1000");
        subject.seen_to(ProcessActivity::Waiting, "a sleep").await;
        let inspector = Inspector::new();
        let (go_on, hangs) = std::sync::mpsc::channel::<()>();
        let hanging = inspector.stacks.run("a disk that hangs", move || hangs.recv().is_ok());
        let begun = Instant::now();
        let sight = inspector.clone().look(subject.pid(), true, || true).await;
        assert!(begun.elapsed() >= WATCHED + NATIVE_STACK_WITHIN, "{:?}", begun.elapsed());
        assert_eq!(sight.expect("it is there").native_stack, "");
        drop(go_on);
        assert!(!hanging.await.expect("no panic"));
        let sight = inspector.look(subject.pid(), true, || true).await.expect("it is there");
        assert!(sight.native_stack.contains("nanosleep"), "{sight:?}");
    });
}

#[test]
fn more_looks_than_the_lane_takes_jobs_all_have_their_answer() {
    run(async {
        let subject = Subject::shell("exec sleep 1000");
        let (inspector, pid) = (Inspector::new(), subject.pid());
        let looks = (0..inspector.lane.bounds().jobs_max * 3).map(|_| {
            let inspector = inspector.clone();
            tokio::task::spawn_local(async move { inspector.look(pid, false, || true).await })
        });
        for look in looks.collect::<Vec<_>>() {
            assert!(look.await.expect("no panic").is_some());
        }
    });
}
