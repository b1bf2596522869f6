//! `--mode restart` over several hosts: losses, changes and ends of processes that do not use the library.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::support::{Job, is_running, signal, wait_until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/script.py");

/// Starts a driver of the script.
fn start(flags: &[&str]) -> Job {
    let program = [SCRIPT, "CONTROL", "LOG"].map(ToOwned::to_owned);
    Job::start_program(&[flags, &["--mode", "restart"]].concat(), &program)
}

impl Job {
    /// Waits until the members of the `number`th generation, of this size, have met; returns the report of each.
    fn wait_for_meeting(&mut self, number: usize, size: usize) -> Vec<Value> {
        self.wait(&format!("{size} members of generation {number}"), |job| {
            let formed = job.events_of("generation_formed");
            let members = formed.get(number - 1)?["members"].as_array()?.len();
            assert_eq!(members, size, "generation {number}");
            let mut met = job.log_of("met");
            met.retain(|line| {
                let peers: Vec<&Value> = line["peers"].as_array().into_iter().flatten().collect();
                let run = |peer: &&Value| {
                    peer.as_i64().and_then(|pid| i32::try_from(pid).ok()).is_some_and(is_running)
                };
                peers.len() == size && peers.iter().all(run)
            });
            (met.len() == size && formed.len() == number).then_some(met)
        })
    }

    fn log_of(&self, event: &str) -> Vec<Value> {
        let mut lines = self.log();
        lines.retain(|line| line["event"] == event);
        lines
    }

    /// The values of a variable, by rank, in the processes that met.
    fn variable(&self, met: &[Value], name: &str) -> Vec<String> {
        let started = self.log_of("start");
        let mut values: Vec<(u64, String)> = met
            .iter()
            .filter_map(|line| {
                let start = started.iter().find(|start| start["pid"] == line["pid"])?;
                Some((line["rank"].as_u64()?, start["environment"][name].as_str()?.to_owned()))
            })
            .collect();
        values.sort();
        values.into_iter().map(|(_, value)| value).collect()
    }
}

fn pid(line: &Value) -> i32 {
    line["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process id")
}

#[test]
fn t_1_environment_of_two_hosts_of_four() {
    let mut job = start(&["-n", "8"]);
    job.agent("a", 4);
    job.wait("host a", |job| (job.events_of("host_joined").len() == 1).then_some(()));
    job.agent("b", 4);
    let met = job.wait_for_meeting(1, 8);
    let all = |name: &str| job.variable(&met, name).join(" ");
    assert_eq!(all("RANK"), "0 1 2 3 4 5 6 7");
    assert_eq!(all("LOCAL_RANK"), "0 1 2 3 0 1 2 3");
    assert_eq!(all("GROUP_RANK"), "0 0 0 0 1 1 1 1");
    assert_eq!(all("ROLE_RANK"), "0 1 2 3 4 5 6 7");
    assert_eq!(all("LOCAL_WORLD_SIZE"), "4 4 4 4 4 4 4 4");
    assert_eq!(all("WORLD_SIZE"), "8 8 8 8 8 8 8 8");
    assert_eq!(all("GROUP_WORLD_SIZE"), "2 2 2 2 2 2 2 2");
    assert_eq!(all("TORCHELASTIC_USE_AGENT_STORE"), ["True"; 8].join(" "));
    assert_eq!(all("MASTER_ADDR"), ["127.0.0.1"; 8].join(" "), "T-11: an address, and no name");
    assert_eq!(job.finish(), 0);
}

#[test]
fn t_1_role_ranks_are_prefix_sums_over_unequal_hosts() {
    let mut job = start(&["-n", "6"]);
    for (index, (host, slots, role)) in
        [("a", 1, "ps"), ("b", 2, "trainer"), ("c", 3, "ps")].into_iter().enumerate()
    {
        let mut command = job.agent_command(host, slots);
        let child = command.args(["--role-name", role]).spawn().expect("the agent starts");
        job.agents.insert(host.to_owned(), child);
        job.wait("the host", |job| (job.events_of("host_joined").len() == index + 1).then_some(()));
    }
    let met = job.wait_for_meeting(1, 6);
    let all = |name: &str| job.variable(&met, name).join(" ");
    assert_eq!(all("ROLE_NAME"), "ps trainer trainer ps ps ps");
    assert_eq!(all("ROLE_RANK"), "0 0 1 1 2 3");
    assert_eq!(all("ROLE_WORLD_SIZE"), "4 2 2 4 4 4");
    assert_eq!(all("LOCAL_RANK"), "0 0 1 0 1 2");
    assert_eq!(all("GROUP_RANK"), "0 1 1 2 2 2");
    assert_eq!(job.finish(), 0);
}

#[test]
fn t_4_a_host_that_comes_is_no_restart_and_logs_are_kept() {
    let mut job =
        start(&["-n", "1", "--max-np", "2", "--max-job-restarts", "0", "--output-dir", "DIR/out"]);
    job.agent("a", 1);
    job.wait_for_meeting(1, 1);
    job.agent("b", 1);
    let met = job.wait_for_meeting(2, 2);
    assert_eq!(job.variable(&met, "TORCHELASTIC_RESTART_COUNT"), ["0", "0"]);
    assert_eq!(job.finish(), 0);
    for (generation, rank) in [(1, 0), (2, 0), (2, 1)] {
        let file = job.path(&format!("out/generation_{generation}/{rank}/stdout.log"));
        let text = std::fs::read_to_string(file).expect("a log of every generation");
        assert_eq!(text, format!("out of rank {rank}\n"));
    }
}

#[test]
fn t_5_t_8_the_host_of_rank_0_is_lost_and_nobody_waits_for_more() {
    let mut job = start(&[
        "-n",
        "3",
        "--min-np",
        "1",
        "--max-job-restarts",
        "0",
        "--last-call-timeout",
        "500",
    ]);
    for host in ["a", "b", "c"] {
        job.agent(host, 1);
    }
    let met = job.wait_for_meeting(1, 3);
    let first = met.iter().find(|line| line["rank"] == 0).map(pid).expect("rank 0");
    let status = job.status().expect("a status");
    let host = status["workers"][0]["host"].as_str().expect("a name").to_owned();
    job.agents.get_mut(&host).expect("an agent").kill().expect("it is ours");
    wait_until("T-9: the end of the lost agent's worker", || (!is_running(first)).then_some(()));
    job.wait_for_meeting(2, 2);
    assert_eq!(job.finish(), 0);
}

#[test]
fn t_6_a_killed_worker_costs_one_restart_and_leaves_no_stale_address() {
    let mut job = start(&["-n", "3"]);
    job.agent("a", 2);
    job.agent("b", 1);
    job.wait_for_meeting(1, 3);
    job.control("wait.0");
    job.control("ignore-sigterm");
    job.control("kill.1.0");
    job.wait("the end of a wait of a dead generation", |job| job.log_of("wait-failed").pop());
    std::fs::remove_file(job.path("control/wait.0")).expect("it was there");
    let met = job.wait_for_meeting(2, 3);
    assert_eq!(job.variable(&met, "TORCHELASTIC_RESTART_COUNT"), ["1", "1", "1"]);
    assert_eq!(job.finish(), 0);
}

#[test]
fn t_6_each_generation_meets_at_a_port_of_its_own() {
    let mut job = start(&["-n", "3"]);
    job.agent("a", 2);
    job.agent("b", 1);
    let mut ports = Vec::new();
    for generation in 1..=3 {
        let met = job.wait_for_meeting(generation, 3);
        let told = job.variable(&met, "ELASTIC_MEETING_ADDRESS");
        assert_eq!(told, [told[0].as_str(); 3], "one for all ranks");
        ports.push(told[0].clone());
        job.control(&format!("kill.1.{}", generation - 1));
    }
    // A port may still be held, and a process of a former generation may still dial it.
    assert!(ports[0] != ports[1] && ports[1] != ports[2], "{ports:?}");
    let met = job.wait_for_meeting(4, 3);
    assert_eq!(job.variable(&met, "TORCHELASTIC_RESTART_COUNT"), ["3", "3", "3"]);
    assert_eq!(job.finish(), 0);
}

#[test]
fn t_7_a_frozen_host_is_left_behind() {
    let mut job = start(&["-n", "2", "--min-np", "1"]);
    for host in ["a", "b"] {
        job.agent(host, 1);
    }
    job.wait_for_meeting(1, 2);
    let frozen = i32::try_from(job.agents["b"].id()).expect("a process id");
    signal(frozen, Signal::SIGSTOP);
    job.wait_for_meeting(2, 1);
    signal(frozen, Signal::SIGCONT);
    job.wait_for_meeting(3, 2);
    assert_eq!(job.finish(), 0);
}

#[test]
fn t_10_a_host_that_is_to_go_gives_its_workers_the_grace_period() {
    let mut job = start(&["-n", "2", "--min-np", "1", "--grace-period", "20"]);
    for host in ["a", "b"] {
        job.agent(host, 1);
    }
    job.wait_for_meeting(1, 2);
    signal(i32::try_from(job.agents["b"].id()).expect("a process id"), Signal::SIGTERM);
    job.wait_for_meeting(2, 1);
    assert!(job.agent_end("b").success());
    assert_eq!(job.log_of("sigterm").len(), 2, "everybody's group was stopped");
    let exits = job.events_of("worker_exited");
    let codes: Vec<&Value> = exits.iter().map(|exit| &exit["status"]).collect();
    assert_eq!(codes, ["exit code 0", "exit code 0"]);
    signal(i32::try_from(job.driver.id()).expect("a process id"), Signal::SIGTERM);
    assert_eq!(job.end(), 143);
    assert_eq!(job.log_of("sigterm").len(), 3);
}

#[test]
fn d_3_a_new_driver_takes_a_group_over_that_knows_of_none() {
    let mut job = start(&["-n", "3", "--start-timeout", "1"]);
    job.agent("a", 2);
    job.agent("b", 1);
    let met = job.wait_for_meeting(1, 3);
    for term in 2..=3 {
        job.kill_driver();
        job.start_driver_again();
        job.wait(&format!("the takeover of term {term}"), |job| {
            job.events_of("takeover_done").into_iter().find(|event| event["term"] == term)
        });
    }
    // Longer than the start timeout of 1 s, which must not apply to these programs.
    job.pass_ms(1_500);
    assert!(met.iter().map(pid).all(is_running), "D-3");
    assert!(job.events_of("reset_decided").is_empty(), "D-3");
    job.control("kill.1.0");
    let met = job.wait_for_meeting(2, 3);
    assert_eq!(job.variable(&met, "TORCHELASTIC_RESTART_COUNT"), ["1", "1", "1"]);
    assert_eq!(job.finish(), 0);
}
