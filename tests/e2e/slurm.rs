//! Agents as tasks of a Slurm job: with its environment variables alone, and within a real Slurm where the test is
//! allowed to run one.

use std::process::Command;

use crate::slurm_cluster::{NODES, SlurmCluster};
use crate::support::{Job, binary, wait_until};

#[test]
fn an_agent_takes_its_name_and_slots_from_slurm() {
    let mut job = Job::start(&["-n", "3", "--min-np", "1"], &[]);
    for (node, tasks) in [("n1", "2"), ("n2", "1")] {
        let mut command = Command::new(binary());
        command
            .args(["--role", "worker", "--join", &job.address, "--token-file"])
            .arg(job.path("state/token"))
            .env("SLURM_JOB_ID", "7")
            .env("SLURMD_NODENAME", node)
            .env("SLURM_LOCALID", "0")
            .env("SLURM_NTASKS_PER_NODE", tasks)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        job.agents.insert(node.to_owned(), command.spawn().expect("the agent starts"));
    }
    job.wait_for_sizes(&[3]);
    let status = job.status().expect("a status");
    let mut hosts: Vec<(String, u64)> = status["hosts"]
        .as_array()
        .expect("hosts")
        .iter()
        .map(|host| {
            (host["name"].as_str().unwrap_or("").into(), host["slots"].as_u64().unwrap_or(0))
        })
        .collect();
    hosts.sort();
    assert_eq!(hosts, [("n1".to_owned(), 2), ("n2".to_owned(), 1)]);
    // The other tasks of a node have nothing to do, and say so.
    let other = Command::new(binary())
        .args(["--role", "worker", "--join", &job.address])
        .envs([("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n1"), ("SLURM_LOCALID", "1")])
        .output()
        .expect("it runs");
    assert_eq!(other.status.code(), Some(0), "{}", String::from_utf8_lossy(&other.stderr));
    assert_eq!(job.finish(), 0);
    for host in ["n1", "n2"] {
        assert_eq!(job.agent_end(host).code(), Some(0), "agent {host}");
    }
}

#[test]
fn within_a_real_slurm_each_node_is_a_host_and_a_step_that_is_cancelled_leaves_in_order() {
    let Some(cluster) = SlurmCluster::start() else { return };
    let mut job = Job::start(&["-n", "4", "--min-np", "2"], &[]);
    let mut steps = Vec::new();
    for node in NODES {
        let step = cluster
            .command("srun")
            .args(["--nodelist", node, "--ntasks-per-node=2", "--ntasks=2"])
            .args([&format!("--job-name={node}"), binary(), "--role", "worker"])
            .args(["--join", &job.address, "--token-file"])
            .arg(job.path("state/token"))
            .spawn();
        steps.push(step.expect("srun starts"));
    }
    job.wait_for_sizes(&[4]);
    let hosts = job.status().expect("a status")["hosts"].to_string();
    for node in NODES {
        assert!(hosts.contains(&format!("\"{node}\"")), "{hosts}");
    }
    // As at preemption: SIGTERM, then time to leave.
    let cancelled = cluster.command("scancel").args(["--name", NODES[1], "--signal=TERM"]).status();
    assert!(cancelled.expect("scancel").success());
    job.wait_for_sizes(&[4, 2]);
    wait_until("the end of its step", || steps[1].try_wait().expect("ours"));
    assert_eq!(job.finish(), 0);
    let status = wait_until("the end of the other step", || steps[0].try_wait().expect("ours"));
    assert_eq!(status.code(), Some(0));
    job.assert_exact();
}

#[test]
fn workers_do_not_find_their_agent_s_task() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let names = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_GTIDS", "PMI_RANK"];
    let shown = names.map(|name| format!("${{{name}-none}}")).join(" ");
    let output = Command::new(binary())
        .args(["run", "-n", "3", "--mode", "restart", "--state-dir"])
        .arg(folder.path().join("state"))
        .args(["--", "sh", "-c", &format!("echo {shown} $SLURM_JOB_ID > $RANK")])
        .envs(names.map(|name| (name, "0")))
        .env("SLURM_JOB_ID", "7")
        .current_dir(folder.path())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for rank in 0..3 {
        let seen = std::fs::read_to_string(folder.path().join(rank.to_string())).expect("written");
        assert_eq!(seen.trim(), "none none none none none 7");
    }
}
