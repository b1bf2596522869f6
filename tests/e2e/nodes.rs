//! The same `elastic-node run` on every node of a job, as users of torchrun type it: in any order, with each kind of
//! secret, and with drivers that share an etcd. Each node is a network namespace; needs root.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::etcd::Etcd;
use crate::network::{HERE, Network, Place};
use crate::support::{binary, is_running, signal, wait_until};

const MEET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/meet.py");

/// A job whose nodes are started one by one.
struct Nodes {
    folder: TempDir,
    running: Vec<(usize, Child)>,
}

impl Nodes {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        for name in ["log", "control", "home"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        Self { folder, running: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the command at a place, which has a home directory of its own unless it is shared.
    fn start(
        &mut self,
        number: usize,
        place: &Place,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) {
        let home = match environment.iter().find(|(name, _)| *name == "HOME") {
            Some((_, home)) => self.path(home),
            None => self.path(&format!("home{number}")),
        };
        fs::create_dir_all(&home).expect("a folder");
        let wrapper = place.wrapper();
        let mut command = Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).arg(binary()).arg("run").args(flags);
        command.arg(MEET).arg(self.path("log")).arg(self.path("control"));
        let others = environment.iter().filter(|(name, _)| *name != "HOME");
        command.envs(others.copied()).env("HOME", home).env_remove("XDG_STATE_HOME");
        let stderr = File::create(self.path(&format!("stderr{number}"))).expect("a file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // A process group of its own, so that all processes of the node can be killed.
        command.process_group(0);
        self.running.push((number, command.spawn().expect("it starts")));
    }

    fn stderr(&self, number: usize) -> String {
        fs::read_to_string(self.path(&format!("stderr{number}"))).unwrap_or_default()
    }

    fn describe(&self) -> String {
        let texts = self
            .running
            .iter()
            .map(|(number, _)| format!("--- node {number}\n{}", self.stderr(*number)));
        texts.collect()
    }

    /// The reports of the ranks of a world of this size, once all have met.
    fn met(&self, size: usize) -> Vec<Value> {
        let read = |rank| {
            let text = fs::read(self.path(&format!("log/{size}.{rank}"))).ok()?;
            serde_json::from_slice(&text).ok()
        };
        wait_until(&format!("a meeting of {size}"), || (0..size).map(read).collect())
    }

    /// Sends SIGKILL to all processes of a node, and cuts its network.
    fn lose(&mut self, number: usize, place: &Place) {
        place.cut();
        let at = self.running.iter().position(|(it, _)| *it == number).expect("it runs");
        let (_, mut child) = self.running.remove(at);
        child.kill().expect("it runs");
        child.wait().expect("it was ours");
    }

    /// Waits until the first node has failed. Returns its stderr.
    fn failure(&mut self) -> String {
        let (number, child) = &mut self.running[0];
        let number = *number;
        let status = wait_until("its end", || child.try_wait().expect("ours"));
        assert_eq!(status.code(), Some(1), "{}", self.describe());
        self.stderr(number)
    }

    fn finish(&mut self) {
        fs::write(self.path("control/finish"), "").expect("a file");
        let mut ended = Vec::new();
        for (number, child) in &mut self.running {
            let status = wait_until(&format!("the end of node {number}"), || {
                child.try_wait().expect("ours")
            });
            ended.push((*number, status.code()));
        }
        assert!(ended.iter().all(|(_, code)| *code == Some(0)), "{ended:?}\n{}", self.describe());
    }
}

impl Drop for Nodes {
    #[expect(clippy::print_stderr, reason = "a test that fails says what it saw")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.describe());
        }
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn endpoint(place: &Place) -> String {
    SocketAddr::from((place.address, 29_400)).to_string()
}

fn assert_met(seen: &[Value]) {
    for it in seen {
        assert_eq!(it["met"], seen.len(), "{it}");
        assert_eq!(it["MASTER_ADDR"], seen[0]["MASTER_ADDR"], "{it}");
    }
}

#[test]
fn t_2_the_same_command_on_three_nodes_in_any_order_and_one_comes_late() {
    let Some(network) = Network::enter(3) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(1));
    let flags = ["--nnodes", "2:3", "--nproc-per-node", "2", "--rdzv-endpoint", &head];
    let flags = [&flags[..], &["--rdzv-backend", "c10d", "--max-restarts", "3"]].concat();
    let flags = [&flags[..], &["--rdzv-conf", "last_call_timeout=1"]].concat();
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    // The head is the second node.
    nodes.start(0, network.place(0), &flags, &secret);
    nodes.start(1, network.place(1), &flags, &secret);
    assert_met(&nodes.met(4));
    nodes.start(2, network.place(2), &flags, &secret);
    assert_met(&nodes.met(6));
    nodes.lose(2, network.place(2));
    fs::remove_dir_all(nodes.path("log")).expect("ours");
    fs::create_dir(nodes.path("log")).expect("a folder");
    assert_met(&nodes.met(4));
    nodes.finish();
}

/// The line of a node that has the driver.
const DRIVES: &str = "this node has a driver";

impl Nodes {
    fn drivers(&self) -> usize {
        self.running.iter().filter(|(number, _)| self.stderr(*number).contains(DRIVES)).count()
    }
}

#[test]
fn t_2_nodes_that_can_bind_any_address_have_one_driver_at_the_head() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "2", "--rdzv-endpoint", &head];
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    for number in [1, 0] {
        network.place(number).let_bind_any_address();
        nodes.start(number, network.place(number), &flags, &secret);
    }
    assert_met(&nodes.met(2));
    assert_eq!(nodes.drivers(), 1, "{}", nodes.describe());
    assert!(nodes.stderr(0).contains(DRIVES), "{}", nodes.describe());
    nodes.finish();
}

#[test]
fn t_2_of_two_commands_on_the_head_s_machine_one_drives() {
    let Some(network) = Network::enter(1) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "2", "--rdzv-endpoint", &head];
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    for number in [0, 1] {
        nodes.start(number, network.place(0), &flags, &secret);
    }
    assert_met(&nodes.met(2));
    assert_eq!(nodes.drivers(), 1, "{}", nodes.describe());
    nodes.finish();
}

#[test]
fn s_2_a_stranger_on_the_head_s_port_is_named_and_the_job_trains_once_it_has_left() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let stranger = network.place(0).hold_udp_port(29_400);
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "3", "--rdzv-endpoint", &head];
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    // Two commands on the head's machine, of which one becomes the driver.
    for (number, place) in [(0, 0), (1, 0), (2, 1)] {
        nodes.start(number, network.place(place), &flags, &secret);
    }
    let is_warned = |number| nodes.stderr(number).contains(&format!("port of {head} is in use"));
    wait_until("the warnings", || (is_warned(0) && is_warned(1)).then_some(()));
    assert!(!is_warned(2), "the port of the other node is free: {}", nodes.describe());
    assert_eq!(nodes.drivers(), 0, "{}", nodes.describe());
    drop(stranger);
    assert_met(&nodes.met(3));
    assert_eq!(nodes.drivers(), 1, "{}", nodes.describe());
    assert!(!nodes.stderr(2).contains(DRIVES), "{}", nodes.describe());
    nodes.finish();
}

#[test]
fn g_9_a_stranger_that_keeps_the_head_s_port_is_waited_for_no_longer_than_join_timeout() {
    let Some(network) = Network::enter(1) else { return };
    let mut nodes = Nodes::new();
    let _stranger = network.place(0).hold_udp_port(29_400);
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "2", "--rdzv-endpoint", &head, "--rdzv-conf", "join_timeout=3"];
    nodes.start(0, network.place(0), &flags, &[("ELASTIC_TOKEN", "a long random text")]);
    let said = nodes.failure();
    assert!(said.contains(&format!("port of {head} is in use")), "{said}");
    assert!(said.contains("give every node another port in --rdzv-endpoint"), "{said}");
}

#[test]
fn t_2_a_secret_of_a_shared_home_of_a_file_or_of_the_job_s_name() {
    let Some(network) = Network::enter(2) else { return };
    let head = endpoint(network.place(0));
    let file = TempDir::new().expect("a folder");
    let conf = format!("token_file={}", file.path().join("secret").display());
    let in_home = [("HOME", "home")];
    let own =
        [(&[][..], &in_home[..]), (&["--rdzv-conf", &conf], &[]), (&["--rdzv-id", "job7"], &[])];
    for (more, environment) in own {
        let mut nodes = Nodes::new();
        let flags = [&["--nnodes", "2", "--rdzv-endpoint", &head][..], more].concat();
        for number in [1, 0] {
            nodes.start(number, network.place(number), &flags, environment);
        }
        assert_met(&nodes.met(2));
        let is_warned = nodes.stderr(1).contains("whoever reaches this network");
        assert_eq!(is_warned, more.contains(&"--rdzv-id"), "{}", nodes.describe());
        nodes.finish();
    }
}

#[test]
fn t_11_a_node_of_another_job_is_refused_with_the_way_out() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "1:2", "--rdzv-endpoint", &head, "--rdzv-conf", "last_call_timeout=0"];
    nodes.start(0, network.place(0), &flags, &[("ELASTIC_TOKEN", "a secret of the first job")]);
    assert_met(&nodes.met(1));
    let mut other = Nodes::new();
    other.start(0, network.place(1), &flags, &[("ELASTIC_TOKEN", "a secret of the second job")]);
    let said = other.failure();
    assert!(said.contains("the same secret"), "{said}");
    nodes.finish();
}

#[test]
fn t_11_a_node_that_names_another_job_at_the_same_endpoint_is_refused() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = |id: &'static str| {
        let flags = ["--nnodes", "1:2", "--rdzv-endpoint", &head, "--rdzv-id", id, "--rdzv-conf"];
        [&flags[..], &["last_call_timeout=0"]].concat()
    };
    let secret = [("ELASTIC_TOKEN", "a secret of both jobs")];
    nodes.start(0, network.place(0), &flags("one"), &secret);
    assert_met(&nodes.met(1));
    let mut other = Nodes::new();
    other.start(0, network.place(1), &flags("two"), &secret);
    let said = other.failure();
    assert!(said.contains("this is the job one"), "{said}");
    nodes.finish();
}

#[test]
fn t_2_a_node_with_other_flags_and_another_program_is_refused_and_the_job_goes_on() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "1:2", "--rdzv-endpoint", &head, "--rdzv-conf", "last_call_timeout=0"];
    let secret = [("ELASTIC_TOKEN", "a secret of both nodes")];
    nodes.start(0, network.place(0), &flags, &secret);
    assert_met(&nodes.met(1));
    // Its program has other folders as arguments.
    let mut other = Nodes::new();
    let flags = [&flags[..], &["--max-restarts", "5"]].concat();
    other.start(0, network.place(1), &flags, &secret);
    let said = other.failure();
    assert!(said.contains("another --max-restarts and another program"), "{said}");
    nodes.finish();
}

#[test]
fn t_2_a_static_rendezvous_has_its_driver_at_node_0() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let master = network.place(0).address.to_string();
    for (number, rank) in [(1, "1"), (0, "0")] {
        let flags = ["--nnodes", "2", "--node-rank", rank, "--master-addr", &master];
        let flags = [&flags[..], &["--master-port", "29501"]].concat();
        let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
        nodes.start(number, network.place(number), &flags, &secret);
    }
    assert_met(&nodes.met(2));
    nodes.finish();
}

#[test]
fn t_5_with_etcd_the_job_outlives_the_node_of_its_driver() {
    let Some(network) = Network::enter(3) else { return };
    let Some(etcd) = Etcd::start_at(HERE) else { return };
    let mut nodes = Nodes::new();
    let endpoint = etcd.member();
    let flags = ["--nnodes", "2:3", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", &endpoint];
    let flags = [&flags[..], &["--rdzv-id", "job7", "--max-restarts", "9"]].concat();
    let flags =
        [&flags[..], &["--rdzv-conf", "last_call_timeout=2", "--lease-timeout", "2"]].concat();
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    for number in 0..3 {
        nodes.start(number, network.place(number), &flags, &secret);
    }
    assert_met(&nodes.met(3));
    let acts = (0..3).find(|number| nodes.stderr(*number).contains("INFO job "));
    let acts = acts.expect("one acts");
    // A node that knows only one driver could not find its successor.
    wait_until("both others in the list of drivers", || {
        let stderr = nodes.stderr(acts);
        let mut lists = stderr.lines().filter(|line| line.contains("drivers that stand by: "));
        lists.any(|line| line.contains(", ")).then_some(())
    });
    nodes.lose(acts, network.place(acts));
    assert_met(&nodes.met(2));
    nodes.finish();
}

/// The agent that a node's driver has started.
fn agent_beside(driver: u32) -> i32 {
    let is_ours = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(1);
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(&driver.to_string()) && String::from_utf8_lossy(&line).contains("--role")
    };
    wait_until("the agent", || {
        let pids = fs::read_dir("/proc").expect("Linux").flatten();
        pids.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok()).find(is_ours)
    })
}

/// Removes what the ranks have reported, so that the next meeting of as many is seen.
fn forget_meetings(nodes: &Nodes) {
    for entry in fs::read_dir(nodes.path("log")).expect("a folder").flatten() {
        fs::remove_file(entry.path()).expect("a file");
    }
}

#[test]
fn t_2_the_agent_beside_the_driver_is_started_again_when_it_is_killed() {
    let Some(network) = Network::enter(2) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "2", "--rdzv-endpoint", &head, "--max-restarts", "9"];
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    for number in 0..2 {
        nodes.start(number, network.place(number), &flags, &secret);
    }
    assert_met(&nodes.met(2));
    let agent = agent_beside(nodes.running[0].1.id());
    forget_meetings(&nodes);
    signal(agent, Signal::SIGKILL);
    assert_met(&nodes.met(2));
    let said = nodes.stderr(0);
    assert!(said.contains("the agent of this node ended and is started again"), "{said}");
    nodes.finish();
}

#[test]
fn d_3_a_run_that_is_killed_and_typed_again_goes_on_with_its_job() {
    let Some(network) = Network::enter(1) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "1:2", "--rdzv-endpoint", &head, "--rdzv-conf", "last_call_timeout=1"];
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    nodes.start(0, network.place(0), &flags, &secret);
    assert_met(&nodes.met(1));
    let agent = agent_beside(nodes.running[0].1.id());
    let (_, mut run) = nodes.running.remove(0);
    run.kill().expect("it runs");
    run.wait().expect("it was ours");
    forget_meetings(&nodes);
    nodes.start(0, network.place(0), &flags, &secret);
    wait_until("the end of the takeover", || nodes.stderr(0).contains(" are back").then_some(()));
    // The former agent leaves with its workers, and the one of this command takes its place.
    assert_met(&nodes.met(1));
    wait_until("the end of the former agent", || (!is_running(agent)).then_some(()));
    nodes.finish();
}

#[test]
fn d_4_nodes_whose_job_is_lost_to_etcd_stay_with_their_workers() {
    let Some(network) = Network::enter(2) else { return };
    let Some(etcd) = Etcd::start_at(HERE) else { return };
    let mut nodes = Nodes::new();
    let endpoint = etcd.member();
    let flags = ["--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", &endpoint];
    let flags = [&flags[..], &["--rdzv-id", "job7", "--lease-timeout", "2"]].concat();
    let secret = [("ELASTIC_TOKEN", "a long random text of all nodes")];
    for number in 0..2 {
        nodes.start(number, network.place(number), &flags, &secret);
    }
    assert_met(&nodes.met(2));
    let agents: Vec<i32> =
        nodes.running.iter().map(|(_, driver)| agent_beside(driver.id())).collect();
    // A driver that does not know yet whose standby it is would begin another job.
    wait_until("a standby that knows the job", || {
        let knows = |number| nodes.stderr(number).contains(" acts, with the job ");
        (0..2).any(knows).then_some(())
    });
    etcd.delete_keys();
    for number in 0..2 {
        wait_until("the reason", || {
            let said = nodes.stderr(number);
            (said.contains("has lost the job") && said.contains("stays with them")).then_some(())
        });
    }
    assert!(agents.iter().all(|agent| is_running(*agent)), "{}", nodes.describe());
    for (number, child) in &mut nodes.running {
        signal(i32::try_from(child.id()).expect("a process id"), Signal::SIGTERM);
        let status = wait_until("its end", || child.try_wait().expect("ours"));
        assert_eq!(status.code(), Some(1), "node {number}");
    }
    assert!(!agents.iter().any(|agent| is_running(*agent)), "{}", nodes.describe());
}

#[test]
fn g_9_a_frozen_agent_beside_its_driver_is_killed_when_the_driver_ends() {
    let Some(network) = Network::enter(1) else { return };
    let mut nodes = Nodes::new();
    let head = endpoint(network.place(0));
    let flags = ["--nnodes", "1:2", "--rdzv-endpoint", &head, "--rdzv-conf", "last_call_timeout=0"];
    nodes.start(0, network.place(0), &flags, &[("ELASTIC_TOKEN", "a long random text")]);
    assert_met(&nodes.met(1));
    let driver = nodes.running[0].1.id();
    let agent = agent_beside(driver);
    signal(agent, Signal::SIGSTOP);
    signal(i32::try_from(driver).expect("a process id"), Signal::SIGTERM);
    let (_, child) = &mut nodes.running[0];
    wait_until("its end", || child.try_wait().expect("ours"));
    assert!(!is_running(agent), "{}", nodes.describe());
    assert!(nodes.stderr(0).contains("did not end in time"), "{}", nodes.describe());
}
