//! Jobs over several hosts, each with a network namespace of its own: the addresses that workers get, and the peers
//! that they meet there. Needs root; with torch, where `ELASTIC_TEST_PYTHON` names an interpreter that has one.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::network::{Network, Place};
use crate::sickness::Sickness;
use crate::support::{Job, binary};

const MEET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/meet.py");

fn argv(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

/// Starts a driver, at a place that others reach, whose program is restarted at each reset.
fn start(place: &Place, flags: &[&str], program: &[&str]) -> Job {
    let flags = [&["--mode", "restart"], flags].concat();
    Job::start_anywhere(Some(place.clone()), &[], &flags, &argv(program), Sickness::default())
}

/// Starts an agent at a place.
fn agent(job: &mut Job, host: &str, place: &Place, more: &[&str]) {
    let wrapper = place.wrapper();
    let mut command = Command::new(&wrapper[0]);
    let token = job.path("state/token");
    command.args(&wrapper[1..]).arg(binary());
    command.args(["--role", "worker", "--join", &job.address, "--host", host]);
    let slots = if more.contains(&"--slots") { &[][..] } else { &["--slots", "2"][..] };
    command.args(slots).arg("--token-file").arg(token).args(more);
    for variable in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let stderr = fs::File::create(job.path(&format!("agent.{host}.stderr"))).expect("a file");
    let child = command.stderr(stderr).spawn().expect("the agent starts");
    job.agents.insert(host.to_owned(), child);
}

/// The reports of the ranks of a world of this size, once all have met.
fn met(job: &mut Job, size: usize) -> Vec<Value> {
    job.wait(&format!("a meeting of {size}"), |job| {
        let read = |rank| fs::read(job.path(&format!("log/{size}.{rank}"))).ok();
        let texts: Option<Vec<Vec<u8>>> = (0..size).map(read).collect();
        let values = texts?.into_iter().map(|text| serde_json::from_slice(&text).ok());
        values.collect::<Option<Vec<Value>>>()
    })
}

#[test]
fn t_5_workers_of_all_hosts_meet_at_a_port_of_rank_0_s_host_whichever_that_is() {
    let Some(network) = Network::enter(3) else { return };
    let program = ["python3", MEET, "LOG", "CONTROL"];
    let flags = ["-n", "4", "--min-np", "2", "--max-restarts", "9"];
    let mut job = start(network.place(2), &flags, &program);
    agent(&mut job, "a", network.place(0), &[]);
    job.wait("host a", |job| (job.events_of("host_joined").len() == 1).then_some(()));
    agent(&mut job, "b", network.place(1), &["--interface", "cable"]);
    for seen in met(&mut job, 4) {
        assert_eq!(seen["met"], 4, "{seen}");
        assert_eq!(seen["MASTER_ADDR"], network.place(0).address.to_string(), "{seen}");
        assert_eq!(seen["TORCHELASTIC_USE_AGENT_STORE"], "False", "{seen}");
        for variable in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"] {
            assert_eq!(seen[variable], "cable", "{seen}");
        }
    }
    network.place(0).cut();
    for seen in met(&mut job, 2) {
        assert_eq!(seen["met"], 2, "{seen}");
        assert_eq!(seen["MASTER_ADDR"], network.place(1).address.to_string(), "{seen}");
    }
    assert_eq!(job.finish(), 0);
}

#[test]
fn an_interface_that_is_not_there_is_refused_with_those_that_are() {
    let mut job = start_here();
    let mut command = job.agent_command("a", 1);
    let output = command.args(["--interface", "nowhere7"]).stderr(Stdio::piped()).output();
    let output = output.expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--interface nowhere7") && stderr.contains("it has"), "{stderr}");
    job.agent("a", 1);
    assert_eq!(job.finish(), 0);
}

#[test]
fn run_refuses_an_interface_that_is_not_there_and_starts_nothing() {
    for name in ["nowhere7", ""] {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let output = Command::new(binary())
            .args(["run", "-n", "1", "--bind", "127.0.0.1:0", "--interface", name, "--state-dir"])
            .arg(folder.path())
            .args(["--", "true"])
            .output()
            .expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("error: --interface {name}:")), "{stderr}");
        assert!(stderr.contains("hint: it has"), "{stderr}");
    }
}

fn start_here() -> Job {
    Job::start_program(&["-n", "1", "--mode", "restart"], &argv(&["true"]))
}

/// The interpreter in `ELASTIC_TEST_PYTHON`, if it can run these imports; else the test says that it was skipped.
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
pub(crate) fn interpreter_with(imports: &str) -> Option<String> {
    let has_them = |python: &String| {
        let tried = Command::new(python).args(["-c", imports]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let python = std::env::var("ELASTIC_TEST_PYTHON").ok().filter(has_them);
    if python.is_none() {
        eprintln!("skipped: ELASTIC_TEST_PYTHON names no interpreter that can `{imports}`");
    }
    python
}

/// The interpreter with the packages of the backend: torch, and our package for "elastic".
fn torch(backend: &str) -> Option<String> {
    interpreter_with(if backend == "elastic" {
        "import torch, elastic_node"
    } else {
        "import torch"
    })
}

const TORCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/torch_hosts.py");

/// The results of all ranks, by rank, of a program that is restarted: on two hosts of two, or one of four. If `killed`, rank 2
/// is to kill itself once.
pub(crate) fn train(network: &Network, hosts: usize, program: &[&str], killed: bool) -> Vec<Value> {
    let flags = ["-n", "4", "--min-np", "4", "--max-restarts", "9"];
    let mut job = start(network.place(2), &flags, program);
    if killed {
        job.control("kill.2.0");
    }
    for (index, name) in ["a", "b"].into_iter().take(hosts).enumerate() {
        let slots = (4 / hosts).to_string();
        agent(&mut job, name, network.place(index), &["--slots", &slots]);
    }
    assert_eq!(job.end(), 0, "{}", job.stderr());
    let read = |rank| {
        let text = fs::read(job.path(&format!("log/result.{rank}"))).expect("a result");
        serde_json::from_slice(&text).expect("JSON")
    };
    (0..4).map(read).collect()
}

fn losses(results: &[Value]) -> Vec<f64> {
    results.iter().map(|result| result["loss"].as_f64().expect("a number")).collect()
}

fn assert_trains_as_on_one_host(backend: &str, kind: &str) {
    let Some(python) = torch(backend) else { return };
    let Some(network) = Network::enter(3) else { return };
    let program = [&python, TORCH, backend, kind, "LOG", "CONTROL"];
    let on_one = train(&network, 1, &program, false);
    let on_two = train(&network, 2, &program, true);
    assert_eq!(losses(&on_two), losses(&on_one), "{on_two:?}");
    for result in [&on_two[0], &on_two[3]] {
        assert_eq!(result["outermost"], 5.0, "the sub-group of the ends: {result}");
    }
    for result in &on_two {
        assert_eq!(result["restarts"], 1, "one was killed: {result}");
        assert_ne!(result["master"], "127.0.0.1");
    }
}

#[test]
fn t_12_ddp_over_gloo_trains_across_hosts_as_on_one() {
    assert_trains_as_on_one_host("gloo", "ddp");
}

#[test]
fn t_12_fsdp_over_gloo_trains_across_hosts_as_on_one() {
    assert_trains_as_on_one_host("gloo", "fsdp");
}

#[test]
fn t_14_ddp_over_elastic_trains_across_hosts_as_on_one() {
    assert_trains_as_on_one_host("elastic", "ddp");
}

#[test]
fn t_14_fsdp_over_elastic_trains_across_hosts_as_on_one() {
    assert_trains_as_on_one_host("elastic", "fsdp");
}

const IN_PROCESS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/torch_in_process.py");

/// The results of all ranks, by rank, of a job that is elastic in process, and what its driver said: on two hosts of two,
/// or one of four.
fn train_in_process(
    network: &Network,
    hosts: usize,
    kind: &str,
    killed: bool,
) -> (Vec<Value>, String) {
    let python = torch("elastic").expect("looked at before");
    let program = argv(&[&python, IN_PROCESS, kind, "LOG", "CONTROL"]);
    let flags = ["--mode", "in-process", "-n", "4", "--min-np", "4"];
    let place = Some(network.place(2).clone());
    let mut job = Job::start_anywhere(place, &[], &flags, &program, Sickness::default());
    if killed {
        job.control("kill");
    }
    for (index, name) in ["a", "b"].into_iter().take(hosts).enumerate() {
        let slots = (4 / hosts).to_string();
        agent(&mut job, name, network.place(index), &["--slots", &slots]);
    }
    assert_eq!(job.end(), 0, "{}", job.stderr());
    assert!(!killed || job.path("control/killed").exists(), "a rank was to be killed");
    let read = |rank| {
        let text = fs::read(job.path(&format!("log/result.{rank}"))).expect("a result");
        serde_json::from_slice(&text).expect("JSON")
    };
    ((0..4).map(read).collect(), job.stderr())
}

fn assert_survives_in_process_as_on_one_host(kind: &str) {
    if torch("elastic").is_none() {
        return;
    }
    let Some(network) = Network::enter(3) else { return };
    let (on_one, _) = train_in_process(&network, 1, kind, false);
    let (on_two, said) = train_in_process(&network, 2, kind, true);
    for result in &on_two {
        assert_eq!(result["losses"], on_one[0]["losses"], "one history: {result}");
    }
    for result in [&on_two[0], &on_two[3]] {
        assert_eq!(result["sub_group"], 5.0, "the sub-group of the ends: {result}");
    }
    let calls: Vec<u64> = on_two.iter().filter_map(|result| result["calls"].as_u64()).collect();
    // A worker that a loaded machine starves may cost a reset more.
    let survivors = calls.iter().filter(|calls| **calls >= 2).count();
    assert_eq!(survivors, 3, "three processes went on in a later generation: {calls:?}\n{said}");
}

#[test]
fn t_14_ddp_over_elastic_survives_a_rank_in_process_across_hosts() {
    assert_survives_in_process_as_on_one_host("ddp");
}

#[test]
fn t_14_fsdp_over_elastic_survives_a_rank_in_process_across_hosts() {
    assert_survives_in_process_as_on_one_host("fsdp");
}
