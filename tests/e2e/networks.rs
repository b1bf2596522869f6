//! Networks that are not the usual one: IPv6 alone, packets that are too short for the protocol, NAT, paths of one
//! direction, a loopback that is down, and a host that answers for another.

use std::fs;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use crate::data_path::{agent_at, agent_in, agent_of};
use crate::network::{HERE, Network};
use crate::support::{Job, signal, wait_until};

/// A router between the nodes and the driver of a job; it ends with this value.
struct Router(Child);

impl Router {
    const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/nat.py");

    /// Starts one. From here on the job's agents find their driver behind it.
    fn before(job: &mut Job) -> Self {
        let file = job.path("router");
        let port = job.address.rsplit(':').next().expect("HOST:PORT");
        let mut command = Command::new("python3");
        command.arg(Self::PROGRAM).arg(port).arg(&file).stdin(Stdio::null());
        let router = Self(command.spawn().expect("Python is installed"));
        let inside = wait_until("the router's port", || fs::read_to_string(&file).ok());
        job.address = format!("127.0.0.1:{inside}");
        router
    }

    /// Gives each node another port.
    fn forget(&self) {
        signal(i32::try_from(self.0.id()).expect("a process id"), Signal::SIGUSR1);
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn s_14_a_router_that_gives_each_connection_another_port_disturbs_nobody() {
    let mut job = Job::start(&["-n", "2"], &[]);
    let router = Router::before(&mut job);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    for _ in 0..3 {
        router.forget();
        // Longer than a silent host is waited for.
        job.pass_ms(2_500);
    }
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "{}", job.stderr());
    assert!(job.events_of("reset_decided").is_empty());
    job.assert_exact();
}

/// A command before an agent's own that puts these files over the system's in `/etc`.
fn with_files(job: &Job, tag: &str, files: &[(&str, String)]) -> Vec<String> {
    let mut script = String::new();
    for (name, text) in files {
        let path = job.path(&format!("{name}{tag}"));
        fs::write(&path, text).expect("a file");
        script.push_str(&format!("mount --bind {} /etc/{name} && ", path.display()));
    }
    script.push_str("exec \"$0\" \"$@\"");
    ["unshare", "--mount", "/bin/sh", "-c", &script].map(Into::into).to_vec()
}

#[test]
fn s_3_an_agent_that_comes_to_its_own_machine_over_the_loopback_is_reached_by_other_hosts() {
    // The head's own name leads to its loopback there, as Debian's installer writes it.
    for join in ["127.0.0.1:7070", "headnode:7070"] {
        let Some(network) = Network::enter(1) else { return };
        let address = ["--bind", "0.0.0.0:7070", "--advertise", "headnode:7070"];
        let mut job = Job::start(&[&["-n", "2", "--min-np", "2"], &address[..]].concat(), &[]);
        let names = |ip: &str| {
            let switch = ("nsswitch.conf", "hosts: files\n".to_owned());
            [("hosts", format!("127.0.0.1 localhost\n{ip} headnode\n")), switch]
        };
        let of_head = with_files(&job, ".head", &names("127.0.1.1"));
        let elsewhere = with_files(&job, ".other", &names(&HERE.to_string()));
        job.address = join.to_owned();
        agent_in(&mut job, "head", 1, &of_head);
        job.address = "headnode:7070".to_owned();
        agent_in(&mut job, "other", 1, &[network.place(0).wrapper(), elsewhere].concat());
        job.wait_for_sizes(&[2]);
        assert_eq!(job.finish(), 0, "{}", job.stderr());
        assert!(job.events_of("host_unreachable").is_empty(), "{}", job.stderr());
        job.assert_exact();
    }
}

#[test]
fn s_5_a_name_server_that_hangs_keeps_no_node_from_a_driver_that_is_started_again() {
    let Some(network) = Network::enter(1) else { return };
    let mut job = Job::start(&["-n", "1", "--bind", &format!("{HERE}:0")], &[]);
    // The host's own files lie over the system's in a mount namespace.
    let files = [
        ("hosts", format!("{HERE} driver.test\n")),
        ("resolv.conf", format!("nameserver {HERE}\noptions timeout:30 attempts:5\n")),
        ("nsswitch.conf", "hosts: files dns\n".to_owned()),
    ];
    let wrapper = [network.place(0).wrapper(), with_files(&job, "", &files)];
    let address = job.address.clone();
    job.address = address.replace(&HERE.to_string(), "driver.test");
    agent_in(&mut job, "a", 1, &wrapper.concat());
    job.address = address;
    job.wait_for_sizes(&[1]);
    // It takes questions, and does not answer.
    let _hangs = UdpSocket::bind((HERE, 53)).expect("root may");
    fs::write(job.path("hosts"), "127.0.0.1 localhost\n").expect("a file");
    job.kill_driver();
    job.start_driver_again();
    job.wait_for_term(2);
    job.wait("its host and its worker", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["hosts"][0]["state"] == "active").then_some(())
    });
    assert!(job.events_of("reset_decided").is_empty());
    // A new process finds the driver, too.
    let victim = job.pid("a", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("another process trains", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["workers"][0]["pid"] != victim).then_some(())
    });
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_14_a_host_that_hears_its_driver_and_is_not_heard_is_left_out_until_it_is() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = Job::start_at(network.place(0), &["-n", "2", "--min-np", "1"]);
    agent_at(&mut job, "a", network.place(1));
    agent_at(&mut job, "b", network.place(2));
    job.wait_for_sizes(&[2]);
    network.place(2).silence("udp");
    job.wait("the other host trains alone", |job| (job.sizes() == [2, 1]).then_some(()));
    network.place(2).hear("udp");
    job.wait("both train again", |job| (job.sizes() == [2, 1, 2]).then_some(()));
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_14_a_host_that_answers_for_another_costs_that_one_until_it_stops() {
    let Some(network) = Network::enter(4) else { return };
    let mut job = Job::start_at(network.place(0), &["-n", "2", "--min-np", "1"]);
    agent_at(&mut job, "a", network.place(1));
    agent_at(&mut job, "b", network.place(2));
    job.wait_for_sizes(&[2]);
    // Packets for host b go to a machine that knows nothing of the job, and says so.
    for place in [0, 1] {
        network.place(place).mistake(network.place(2), network.place(3));
    }
    job.wait("the other host trains alone", |job| (job.sizes().last() == Some(&1)).then_some(()));
    job.wait_for_steps();
    for place in [0, 1] {
        network.place(place).know(network.place(2));
    }
    job.wait("both train again", |job| (job.sizes().last() == Some(&2)).then_some(()));
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_14_a_host_whose_loopback_is_down_is_left_out_and_no_other() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = Job::start_at(network.place(0), &["-n", "4", "--min-np", "2"]);
    agent_of(&mut job, "a", 2, network.place(1));
    agent_of(&mut job, "b", 2, network.place(2));
    job.wait_for_sizes(&[4]);
    // Workers of one host reach each other by the host's own address, and its packets pass the loopback.
    network.place(1).set_loopback("down");
    signal(job.pid("a", 0), Signal::SIGKILL);
    job.wait("the other host trains alone", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["world_size"] == 2).then_some(())
    });
    let hosts = job.status().expect("the driver is there")["hosts"].clone();
    let state = |name: &str| {
        let hosts = hosts.as_array().expect("a list");
        hosts.iter().find(|host| host["name"] == name).expect("a host")["state"].clone()
    };
    assert_eq!((state("a"), state("b")), ("blacklisted".into(), "active".into()));
    let stderr = job.stderr();
    assert!(stderr.contains("workers of host a do not reach each other"), "{stderr}");
    assert!(stderr.contains("is its loopback interface up?"), "{stderr}");
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_14_a_network_of_ipv6_alone_is_enough() {
    let Some(network) = Network::enter(2) else { return };
    let bind = format!("[{}]:0", network.use_ipv6_alone());
    let mut job = Job::start(&["-n", "2", "--min-np", "1", "--bind", &bind], &[]);
    agent_at(&mut job, "a", network.place(0));
    agent_at(&mut job, "b", network.place(1));
    job.wait_for_sizes(&[2]);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("both train again", |job| {
        let status = job.status()?;
        let is_back = status["phase"] == "run" && status["world_size"] == 2;
        (is_back && status["resets"].as_u64() > Some(0)).then_some(())
    });
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_14_an_interface_whose_packets_are_too_short_is_named() {
    let Some(network) = Network::enter(2) else { return };
    let job = Job::start_at(network.place(1), &["-n", "1"]);
    network.place(0).set_mtu(1_200);
    let agent = job.agent_command("a", 1);
    let wrapper = network.place(0).wrapper();
    let mut command = Command::new(&wrapper[0]);
    command.args(&wrapper[1..]).arg(agent.get_program()).args(agent.get_args());
    // It looks for a driver for as long as it may.
    let output = command.output().expect("the agent starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("MTU of 1200"), "{stderr}");
}

#[test]
fn s_14_a_host_with_few_free_ports_trains() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = Job::start_at(network.place(0), &["-n", "2"]);
    let _holder = network.place(1).leave_few_ports();
    agent_at(&mut job, "a", network.place(1));
    agent_at(&mut job, "b", network.place(2));
    job.wait_for_sizes(&[2]);
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    assert_eq!(job.events_of("worker_started").len(), 2, "each worker found a port at once");
    job.assert_exact();
}

/// Whether a worker has written this into a file of its output.
fn has_written(job: &Job, text: &str) -> bool {
    let files = fs::read_dir(job.path("out")).into_iter().flatten().flatten();
    files.filter_map(|it| fs::read_to_string(it.path()).ok()).any(|it| it.contains(text))
}

#[test]
fn s_14_a_worker_that_finds_no_free_port_waits_for_one() {
    let Some(network) = Network::enter(3) else { return };
    let flags = ["-n", "2", "--min-np", "1", "--output-dir", "DIR/out"];
    let mut job = Job::start_at(network.place(0), &flags);
    agent_at(&mut job, "a", network.place(1));
    agent_at(&mut job, "b", network.place(2));
    job.wait_for_sizes(&[2]);
    let holder = network.place(1).leave_no_ports();
    let victim = job.pid("a", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("a worker that waits", |job| {
        has_written(job, "Address already in use (os error 98); this worker tries again")
            .then_some(())
    });
    // Four failures of its slot would have cost the host its place.
    job.pass_ms(4_000);
    drop(holder);
    job.wait("both train again", |job| {
        (job.sizes().last() == Some(&2) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    assert_eq!(job.events_of("worker_started").len(), 3, "{}", job.stderr());
    job.assert_exact();
}
