//! Locks of real processes: deaths, and events that only look like one. The processes are this test program again. An
//! environment variable makes it an owner, and lines on its stdin give it orders.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use elastic_robust_lock::{LockMark, LockSeat, LockWatch, RobustLock};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// The seat's name, which also makes this program an owner.
const SEAT: &str = "ELASTIC_TEST_SEAT";
/// Time limit that ends a hanging test.
const DEADLINE: Duration = Duration::from_secs(60);
/// Prefix of an owner's lines, since the test harness writes to the same stream.
const MARK: &str = "@";
const KILLS: u64 = 200;
/// Kills with one watch, which has seats for 127.
const A_WATCH: u64 = 100;

/// Not a test of its own: the program of an owner. As in a worker, the lock is with a thread of its own.
#[test]
#[expect(clippy::exit, reason = "one of the ways in which an owner ends")]
fn owner() {
    let Ok(seat) = std::env::var(SEAT) else { return };
    let (release, released) = channel::<()>();
    let (marks, mark) = channel();
    let held = std::thread::Builder::new().spawn(move || match RobustLock::take(&seat) {
        Ok(held) => {
            marks.send(held.peers().own()).expect("asked for in this process");
            say("holds");
            let _sender_is_gone = released.recv();
            drop(held);
            say("released");
        }
        Err(error) => say(&format!("{error:?}")),
    });
    let mut held = Some((release, held.expect("a thread")));
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "release" => drop(held.take()),
            "exit" => std::process::exit(3),
            "exec" => panic!("{}", Command::new("sleep").arg("1000").exec()),
            "fork" => fork_and_end(),
            "second" => second(),
            "touch" => touch(),
            "mark" => say(&mark.recv().expect("it holds the lock").0.to_string()),
            other => panic!("{other}"),
        }
    }
    if let Some((release, thread)) = held {
        drop(release);
        thread.join().expect("no panic");
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush()).expect("the test reads");
}

/// A child of fork(2) that ends at once, and one that outlives this process.
#[expect(unsafe_code, reason = "fork(2)")]
fn fork_and_end() {
    for ends in [true, false] {
        // SAFETY: the child makes system calls only.
        match unsafe { fork() }.expect("a child") {
            // SAFETY: as above.
            ForkResult::Child if ends => unsafe { libc::_exit(0) },
            ForkResult::Child => loop {
                nix::unistd::pause();
            },
            ForkResult::Parent { child } if ends => {
                waitpid(child, None).expect("it ends");
            }
            ForkResult::Parent { child } => say(&format!("child {child}")),
        }
    }
}

/// Another program with this one's environment and descriptors, as a script that a worker starts.
fn second() {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "owner", "--nocapture"]).stdin(Stdio::null());
    assert!(command.status().expect("it starts").success());
}

/// Uses memory, for a core dump that takes a while.
fn touch() {
    let memory = vec![1_u8; 128 << 20];
    say("touched");
    std::mem::forget(memory);
}

/// An owner's process, as the test sees it; killed when dropped.
struct Owner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    deaths: Receiver<()>,
    seat: LockSeat,
}

impl Owner {
    fn start(watch: &LockWatch) -> Owner {
        Self::start_with(watch, Command::new(std::env::current_exe().expect("a path")))
    }

    #[expect(unsafe_code, reason = "the agent's step between fork and exec")]
    fn start_with(watch: &LockWatch, mut command: Command) -> Owner {
        let (told, deaths) = channel();
        let seat = watch.seat(move || told.send(()).expect("the test listens")).expect("a seat");
        let seat = std::sync::Arc::new(seat);
        let passed = std::sync::Arc::clone(&seat);
        command
            .args(["--exact", "owner", "--nocapture"])
            .env(SEAT, seat.name().expect("the watcher's own table"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: makes one system call.
        unsafe { command.pre_exec(move || passed.pass_on()) };
        let mut child = command.spawn().expect("it starts");
        drop(command);
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let seat = std::sync::Arc::into_inner(seat).expect("the command is gone");
        Owner { child, input, output, deaths, seat }
    }

    fn holding(watch: &LockWatch) -> Owner {
        let mut owner = Self::start(watch);
        assert_eq!(owner.hear().as_deref(), Some("holds"));
        owner
    }

    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("text") > 0 {
            if let Some(said) = line.trim_end().strip_prefix(MARK) {
                return Some(said.to_owned());
            }
            line.clear();
        }
        None
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it is there");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn sees_death(&self) {
        self.deaths.recv_timeout(DEADLINE).expect("the death is seen");
    }

    fn is_quiet(&self) -> bool {
        self.deaths.try_recv().is_err()
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

fn watch() -> LockWatch {
    LockWatch::new(0x1234_5678_9abc_def0_0fed_cba9_8765_4321).expect("a watch")
}

/// Returns once the watcher has looked at all seats: another owner's death was seen.
fn looked_again(watch: &LockWatch) {
    let other = Owner::holding(watch);
    other.signal(Signal::SIGKILL);
    other.sees_death();
}

#[test]
fn g_12_a_killed_owner_is_seen() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    assert!(owner.is_quiet());
    owner.signal(Signal::SIGKILL);
    owner.sees_death();
    owner.end();
    assert!(owner.is_quiet(), "once");
}

#[test]
fn g_10_an_agent_sees_afterwards_whether_a_process_has_used_the_library() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.signal(Signal::SIGKILL);
    owner.end();
    assert!(owner.seat.was_taken());
    let mut other = Owner::start_with(&watch, Command::new("true"));
    assert!(other.end().success() && !other.seat.was_taken());
}

#[test]
fn g_12_a_worker_that_waits_is_woken_by_the_death_of_another_one() {
    let watch = watch();
    let seat = watch.seat(|| {}).expect("a seat");
    let lock = take(&seat);
    let peers = lock.peers();
    let (mut dies, mut lives) = (Owner::holding(&watch), Owner::holding(&watch));
    let mark_of = |owner: &mut Owner| {
        owner.tell("mark");
        LockMark(owner.hear().expect("a mark").parse().expect("a number"))
    };
    let (dead, alive) = (mark_of(&mut dies), mark_of(&mut lives));
    assert!(![peers.own(), dead, alive].iter().any(|mark| peers.has_died(*mark)));
    let before = peers.deaths();
    dies.signal(Signal::SIGKILL);
    // A wait may end early. Only a death changes the number.
    while peers.deaths() == before {
        assert!(peers.wait(&AtomicU32::new(0), 0, before, DEADLINE), "waiting for two words");
    }
    assert!(peers.has_died(dead));
    assert!(!peers.has_died(alive) && !peers.has_died(peers.own()));
    assert!(!peers.has_died(LockMark::default()), "no lock");
    assert!(!peers.has_died(LockMark(dead.0 ^ 1 << 31)), "another agent's");
}

/// The lock of a seat of this process's own table, taken as a worker would that inherited it.
fn take(seat: &LockSeat) -> RobustLock {
    let name = seat.name().expect("the watcher's own table");
    let (number, rest) = name.split_once(':').expect("a descriptor, and more");
    let table = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{number}"))
        .expect("the table");
    RobustLock::take(&format!("{}:{rest}", table.into_raw_fd())).expect("the lock")
}

#[test]
fn g_12_200_kills_at_random_moments_none_missed_and_no_false_alarm() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut released = 0;
    for _ in 0..KILLS / A_WATCH {
        let watch = watch();
        let mut owners = Vec::new();
        for _ in 0..A_WATCH {
            let mut owner = Owner::start(&watch);
            // Killed at its start, while it holds the lock, while it gives it back, and after that.
            let (waits, releases) = (next(4) > 0, next(2) == 0);
            let holds = waits && owner.hear().as_deref() == Some("holds");
            if holds && releases {
                owner.tell("release");
            }
            pause(Duration::from_micros(next(3_000)));
            assert!(owner.is_quiet(), "nobody has died");
            owner.signal(Signal::SIGKILL);
            owner.end();
            let has_released = holds && releases && owner.hear().as_deref() == Some("released");
            released += u64::from(has_released);
            if holds && !releases {
                owner.sees_death();
            }
            owners.push((owner, has_released));
        }
        looked_again(&watch);
        let is_false = |(owner, has_released): &(Owner, bool)| *has_released && !owner.is_quiet();
        assert!(!owners.iter().any(is_false), "a lock that was given back is no death");
    }
    assert!(released > 10, "moments differ: {released}");
}

#[test]
fn an_owner_that_gives_the_lock_back_has_not_died() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.tell("release");
    assert_eq!(owner.hear().as_deref(), Some("released"));
    owner.tell("exit");
    assert_eq!(owner.end().code(), Some(3));
    looked_again(&watch);
    assert!(owner.is_quiet());
}

#[test]
fn an_owner_that_exits_with_the_lock_has_died() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.tell("exit");
    owner.sees_death();
    assert_eq!(owner.end().code(), Some(3), "how it ended is told by its status");
}

#[test]
fn a_stopped_owner_has_not_died() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.signal(Signal::SIGSTOP);
    let stopped = waitpid(owner.pid(), Some(WaitPidFlag::WUNTRACED)).expect("a child");
    assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
    looked_again(&watch);
    assert!(owner.is_quiet());
    // It need not run to be killed.
    owner.signal(Signal::SIGKILL);
    owner.sees_death();
    owner.end();
}

#[test]
fn a_child_of_fork_does_not_take_the_lock_along() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.tell("fork");
    let child = owner.hear().expect("a child");
    let child: i32 = child.strip_prefix("child ").expect("a child").parse().expect("a pid");
    looked_again(&watch);
    assert!(owner.is_quiet(), "the first child's end is not its parent's");
    owner.signal(Signal::SIGKILL);
    owner.sees_death();
    owner.end();
    kill(Pid::from_raw(child), Signal::SIGKILL).expect("the second child outlives its parent");
}

#[test]
fn a_program_that_its_owner_starts_takes_no_second_lock() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.tell("second");
    // The library has closed the table's descriptor, so that the second program finds another file or none.
    let said = owner.hear().expect("an answer");
    assert!(said.contains("NotInherited"), "{said}");
    looked_again(&watch);
    assert!(owner.is_quiet(), "its end is not its parent's");
    owner.signal(Signal::SIGKILL);
    owner.sees_death();
}

#[test]
fn a_program_that_replaces_itself_loses_its_lock_and_lives() {
    let watch = watch();
    let mut owner = Owner::holding(&watch);
    owner.tell("exec");
    owner.sees_death();
    assert_eq!(owner.child.try_wait().expect("a child"), None, "the process lives");
}

#[test]
fn an_owner_that_dumps_its_core_dies_when_the_dump_is_done() {
    let watch = watch();
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sh");
    let own = std::env::current_exe().expect("a path");
    command.args(["-c", "ulimit -c unlimited; exec \"$0\" \"$@\""]).arg(own);
    command.current_dir(folder.path());
    let mut owner = Owner::start_with(&watch, command);
    assert_eq!(owner.hear().as_deref(), Some("holds"));
    owner.tell("touch");
    assert_eq!(owner.hear().as_deref(), Some("touched"));
    owner.signal(Signal::SIGQUIT);
    owner.sees_death();
    let status = std::fs::read_to_string(format!("/proc/{}/status", owner.pid()));
    let is_dumping = status.is_ok_and(|status| status.contains("CoreDumping:\t1"));
    assert!(!is_dumping, "the kernel lets go of the threads only after the dump");
    let ended = owner.end();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(3));
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
fn an_owner_in_a_namespace_of_its_own_is_seen() {
    let can = Command::new("unshare")
        .args(["--user", "--pid", "--fork", "true"])
        .stderr(Stdio::null())
        .status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: unshare --user --pid is not permitted here");
        return;
    }
    let watch = watch();
    let mut command = Command::new("unshare");
    command.args(["--user", "--pid", "--fork", "--kill-child"]);
    command.arg(std::env::current_exe().expect("a path"));
    let mut owner = Owner::start_with(&watch, command);
    assert_eq!(owner.hear().as_deref(), Some("holds"), "it is process 1 there");
    looked_again(&watch);
    assert!(owner.is_quiet());
    owner.signal(Signal::SIGKILL);
    owner.sees_death();
}

#[test]
fn seats_are_bounded_and_are_given_out_again() {
    let watch = watch();
    let mut seats: Vec<LockSeat> = std::iter::from_fn(|| watch.seat(|| {})).take(1_000).collect();
    assert_eq!(seats.len(), 127);
    seats.pop();
    let mut owner = Owner::holding(&watch);
    assert!(watch.seat(|| {}).is_none());
    owner.signal(Signal::SIGKILL);
    owner.sees_death();
    owner.end();
    drop(owner);
    // The seat of a dead owner is clean.
    let next = Owner::holding(&watch);
    assert!(next.is_quiet());
}

#[expect(clippy::disallowed_methods, reason = "kills come at random moments")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
