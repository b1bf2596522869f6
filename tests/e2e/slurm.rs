//! Agents as tasks of a Slurm job: with its environment variables alone, and within a real Slurm where the test is
//! allowed to run one.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use crate::ports::free_port;
use crate::slurm_cluster::{NODES, SlurmCluster};
use crate::support::{Job, binary, program, wait_until};

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
    let nodes = &NODES[..2];
    for node in nodes {
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
    for node in nodes {
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
        let seen = fs::read_to_string(folder.path().join(rank.to_string())).expect("written");
        assert_eq!(seen.trim(), "none none none none none 7");
    }
}

/// A job of the documented script that trains digits on three nodes and stores the parameters.
struct BatchJob<'a> {
    cluster: &'a SlurmCluster,
    name: &'static str,
    id: String,
}

impl<'a> BatchJob<'a> {
    const SCRIPT: &'static str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/slurm/elastic-node.sh");

    fn submit(
        cluster: &'a SlurmCluster,
        name: &'static str,
        limits: &[&str],
        step_ms: &str,
    ) -> Self {
        let own = Path::new(binary()).parent().expect("a folder");
        let path = std::env::var("PATH").expect("there is one");
        let digits = program("digits");
        let output = cluster
            .command("sbatch")
            .args(["--parsable", "--job-name", name, "--output"])
            .arg(cluster.path(&format!("{name}.out")))
            .args(limits)
            .arg(Self::SCRIPT)
            .arg(digits)
            .args(["--epochs", "40", "--step-ms", step_ms, "--save"])
            .arg(cluster.path(&format!("{name}.weights")))
            .env("PATH", format!("{}:{path}", own.display()))
            .env("TRAINING_FOLDER", cluster.path("jobs"))
            .env("TRAINING_PORT", free_port(Ipv4Addr::LOCALHOST).to_string())
            .env("TRAINING_SAVE_EVERY", "10")
            .output()
            .expect("sbatch runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Self { cluster, name, id }
    }

    /// Slurm's record of the job, by field.
    fn field(&self, name: &str) -> String {
        let shown = self.cluster.command("scontrol").args(["show", "job", &self.id]).output();
        let text = String::from_utf8_lossy(&shown.expect("it runs").stdout).into_owned();
        let words = text.split_whitespace().filter_map(|word| word.split_once('='));
        words
            .into_iter()
            .find(|(field, _)| *field == name)
            .map_or_else(String::new, |it| it.1.into())
    }

    fn output(&self) -> String {
        fs::read_to_string(self.cluster.path(&format!("{}.out", self.name))).unwrap_or_default()
    }

    /// The step of the newest checkpoint.
    fn saved(&self) -> Option<u64> {
        let folder = self.cluster.path("jobs").join(&self.id).join("checkpoints");
        let steps = fs::read_dir(folder)
            .ok()?
            .flatten()
            .filter(|entry| entry.path().join("manifest.json").exists());
        let names = steps.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(|name| name.rsplit('-').next()?.parse().ok()).max()
    }

    /// Waits until Slurm has started it again, so many times in all.
    #[expect(clippy::print_stderr, reason = "what Slurm says, for a test that fails")]
    fn wait_for_restart(&self, restarts: u32) {
        let mut seen = String::new();
        wait_until(&format!("start {restarts} of {}: {}", self.name, self.output()), || {
            let (state, reason) = (self.field("JobState"), self.field("Reason"));
            let now = format!("{state} {reason}");
            if now != seen {
                eprintln!("{}: {now}", self.name);
                seen = now;
            }
            let is_there = self.field("Restarts") == restarts.to_string();
            (is_there && ["RUNNING", "COMPLETED"].contains(&state.as_str())).then_some(())
        });
    }

    fn wait_for_success(&self) -> Vec<u8> {
        wait_until(&format!("the end of {}", self.name), || {
            let state = self.field("JobState");
            let is_over = ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"].contains(&state.as_str());
            is_over.then_some(state)
        });
        assert_eq!(self.field("JobState"), "COMPLETED", "{}", self.output());
        fs::read(self.cluster.path(&format!("{}.weights", self.name))).expect("the parameters")
    }
}

#[test]
fn a_batch_job_that_is_cut_off_twice_ends_with_the_same_parameters_as_one_that_is_not() {
    let Some(cluster) = SlurmCluster::start() else { return };
    let undisturbed = BatchJob::submit(&cluster, "undisturbed", &[], "0");
    let expected = undisturbed.wait_for_success();

    // The time limit announces itself between 0 s and 60 s after the start: Slurm is that coarse.
    let cut = BatchJob::submit(&cluster, "cut", &["--time=2", "--signal=B:TERM@70"], "120");
    let before = wait_until("a checkpoint", || cut.saved());
    // As at a preemption.
    let signal = ["--batch", "--signal=TERM", &cut.id];
    assert!(cluster.command("scancel").args(signal).status().expect("it runs").success());
    cut.wait_for_restart(1);
    wait_until("a checkpoint of the second run", || cut.saved().filter(|step| *step > before));
    cut.wait_for_restart(2);
    // This run may take as long as it does.
    let (id, long) = (format!("JobId={}", cut.id), "TimeLimit=30");
    assert!(
        cluster
            .command("scontrol")
            .args(["update", &id, long])
            .status()
            .expect("it runs")
            .success()
    );
    assert_eq!(cut.wait_for_success(), expected, "the same digits of the same numbers");
    let output = cut.output();
    let resumed = output.matches("training goes on from the checkpoint of step").count();
    assert_eq!(resumed, 2, "{output}");
}
