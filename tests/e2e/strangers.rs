//! Descriptors that run out, and strangers that hold connections to the workers' data ports (section S-2).

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use elastic_collectives::wire::{RankHello, VERSION};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, send, socket,
};

use crate::handshakes::HalfOpen;
use crate::support::{Job, signal};

/// The addresses on which a process listens for other workers.
fn data_ports(pid: i32) -> Vec<SocketAddr> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let inodes: BTreeSet<String> = descriptors
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let target = target.to_str()?.strip_prefix("socket:[")?;
            Some(target.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("it runs");
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_ours = fields.get(3) == Some(&"0A") && inodes.contains(*fields.get(9)?);
        let port = fields.get(1)?.split_once(':')?.1;
        is_ours.then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    let ports = table.lines().filter_map(listens);
    ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

fn pids(job: &mut Job) -> Vec<i32> {
    [("a", 0), ("a", 1), ("b", 0), ("b", 1)].map(|(host, slot)| job.pid(host, slot)).to_vec()
}

fn limit_open_files(pid: i32, limits: &str) {
    let limit = format!("--nofile={limits}");
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(status.expect("prlimit can be run").success());
}

fn limits_of_open_files(pid: i32) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let mut numbers = line["Max open files".len()..].split_ascii_whitespace();
    let mut next = || numbers.next().expect("a number").to_owned();
    (next(), next())
}

fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn resident_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

/// A job of four workers on two hosts, over TCP.
fn over_tcp() -> Job {
    over("tcp")
}

fn over(plane: &str) -> Job {
    let flags = ["-H", "a:2,b:2", "--launcher", "local", "--min-np", "1", "--data-plane", plane];
    let mut job = Job::start(&flags, &[]);
    job.wait_for_sizes(&[4]);
    job
}

/// Connections to a port that a stranger has opened, or tries to open.
const EACH: usize = 10_000;

/// Strangers with connections to data ports, which they hold until this is dropped.
struct Strangers {
    ends: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    /// Begins `EACH` connections to each of these ports. Those that are established say these bytes, and then all stay
    /// silent. The kernel goes on trying the others while the queue of the port is full.
    fn hold(ports: &[SocketAddr], says: &[u8]) -> Self {
        let mut strangers = Self { ends: Vec::new(), threads: Vec::new() };
        for port in ports {
            let (port, says) = (*port, says.to_vec());
            let ((begun, all), (end, ended)) = (channel(), channel());
            let thread = std::thread::Builder::new().spawn(move || {
                // A table of descriptors of its own: each may have as many as a process.
                unshare(CloneFlags::CLONE_FILES).expect("everybody may");
                let held = connections(port, &says);
                begun.send(held.len()).expect("the test waits");
                // The end is that of the sender.
                let _ = ended.recv();
            });
            strangers.threads.push(thread.expect("a thread"));
            strangers.ends.push(end);
            assert_eq!(all.recv(), Ok(EACH));
        }
        strangers
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.ends.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn connections(port: SocketAddr, says: &[u8]) -> Vec<OwnedFd> {
    let port = SockaddrStorage::from(port);
    let begin = |_| {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let stream = socket(AddressFamily::Inet, SockType::Stream, flags, None);
        let stream = stream.expect("a descriptor");
        assert_eq!(connect(stream.as_raw_fd(), &port), Err(nix::Error::EINPROGRESS));
        // A connection that is not established yet cannot be written to.
        let _ = send(stream.as_raw_fd(), says, MsgFlags::MSG_NOSIGNAL);
        stream
    };
    (0..EACH).map(begin).collect()
}

fn far_hello() -> Vec<u8> {
    let hello = RankHello {
        term: u64::MAX,
        generation: u64::MAX,
        world_size: 4,
        rank: 3,
        target: 0,
        part: 0,
        stream: 0,
        nonce: [3; 32],
        proof: [0; 32],
    };
    hello.encode().to_vec()
}

#[test]
fn s_2_a_worker_takes_the_descriptors_that_it_may_have() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most / 2, most).expect("below the hard limit");
    let mut job = over_tcp();
    for pid in pids(&mut job) {
        assert_eq!(limits_of_open_files(pid), (most.to_string(), most.to_string()));
    }
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_2_a_worker_out_of_descriptors_is_replaced_and_the_job_goes_on() {
    let mut job = over_tcp();
    let (sick, victim) = (job.pid("a", 1), job.pid("b", 1));
    // The limit is below what is free even after a peer's death.
    limit_open_files(sick, "8:8");
    signal(victim, Signal::SIGKILL);
    job.wait("another process in the slot of the one that had no descriptor left", |job| {
        let status = job.status()?;
        let workers = status["workers"].as_array()?;
        let slot = workers.iter().find(|it| it["host"] == "a" && it["slot"] == 1)?;
        let is_whole = status["phase"] == "run" && status["world_size"] == 4;
        (is_whole && slot["pid"] != sick).then_some(())
    });
    job.wait_for_progress();
    let resets = job.events_of("reset_decided");
    assert!(resets.len() < 12, "{} resets", resets.len());
    let causes = format!("{resets:?}");
    assert!(causes.contains("refused what forming needs"), "{causes}");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_2_a_stranger_with_ten_thousand_connections_to_each_data_port_does_not_disturb() {
    for says in [far_hello(), Vec::new()] {
        let mut job = over_tcp();
        let workers = pids(&mut job);
        let ports: Vec<SocketAddr> = workers.iter().flat_map(|pid| data_ports(*pid)).collect();
        assert_eq!(ports.len(), 4);
        for pid in &workers {
            limit_open_files(*pid, "1024:1024");
        }
        let before: Vec<u64> = workers.iter().map(|pid| resident_kib(*pid)).collect();
        let strangers = Strangers::hold(&ports, &says);
        job.wait_for_steps();
        signal(workers[3], Signal::SIGKILL);
        wait_for_next_worker(&mut job);
        for (pid, before) in workers[..3].iter().zip(before) {
            let after = resident_kib(*pid);
            assert!(after < before + 20_000, "{before} KiB, then {after} KiB");
            assert!(open_files(*pid) < 400, "{} descriptors", open_files(*pid));
        }
        drop(strangers);
        end_with_one_warning_each(&mut job);
    }
}

#[test]
fn s_2_ten_thousand_half_open_handshakes_at_each_data_port_do_not_disturb() {
    let mut job = over("quic");
    let workers = pids(&mut job);
    // QUIC has the port of the same number.
    let ports: Vec<SocketAddr> = workers.iter().flat_map(|pid| data_ports(*pid)).collect();
    assert_eq!(ports.len(), 4);
    let before: Vec<u64> = workers.iter().map(|pid| resident_kib(*pid)).collect();
    let protocol = format!("elastic-collectives/{VERSION}").into_bytes();
    let of_port = |port: &SocketAddr| HalfOpen::new(*port, protocol.clone(), "elastic-collectives");
    let mut strangers: Vec<HalfOpen> = ports.iter().map(of_port).collect();
    let mut begin = |job: &Job, each: usize| {
        for _ in 0..each / 250 {
            strangers.iter_mut().for_each(|strangers| strangers.begin(250));
            job.pass_ms(20);
        }
        strangers.iter().map(|strangers| strangers.begun).min()
    };
    begin(&job, EACH / 2);
    job.wait_for_steps();
    signal(workers[3], Signal::SIGKILL);
    // The next generation forms among the strangers.
    assert_eq!(begin(&job, EACH / 2), Some(EACH));
    wait_for_next_worker(&mut job);
    for (pid, before) in workers[..3].iter().zip(before) {
        let after = resident_kib(*pid);
        assert!(after < before + 32_000, "{before} KiB, then {after} KiB");
    }
    end_with_one_warning_each(&mut job);
}

/// The slot of the worker that was killed has its next one, within few resets.
fn wait_for_next_worker(job: &mut Job) {
    job.wait("the slot's next worker", |job| {
        (job.sizes().len() > 1 && job.sizes().ends_with(&[4])).then_some(())
    });
    job.wait_for_progress();
    assert!(job.events_of("reset_decided").len() < 4, "{:?}", job.sizes());
}

/// The job ends well, and each of the workers that lived has told of the strangers once.
fn end_with_one_warning_each(job: &mut Job) {
    assert_eq!(job.finish(), 0);
    job.assert_exact();
    let stderr = job.stderr();
    let of_each = ["a:0", "a:1", "b:0"].map(|it| stderr.matches(&warning_of(it)).count());
    assert_eq!(of_each, [1; 3], "one warning a worker that lives: {stderr}");
}

/// The beginning of the line that tells of strangers at a worker's port, after the count of their connections.
fn warning_of(worker: &str) -> String {
    format!("WARN {worker}: ")
}
