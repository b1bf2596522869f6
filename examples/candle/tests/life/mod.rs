//! A life of a job with durable checkpoints: a driver, and hosts of its own on this machine, until all of it is killed, or it ends.
//! Used by the tests of the example.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::{launcher, wait_for};

/// Commits between two checkpoints.
pub(crate) const EVERY: u64 = 10;

pub(crate) struct Life {
    folder: PathBuf,
    address: String,
    command: Vec<String>,
    driver: Option<Child>,
    agents: Vec<Child>,
}

impl Life {
    /// Starts the driver of a job of so many workers.
    pub(crate) fn start(
        folder: PathBuf,
        checkpoints: &Path,
        workers: u32,
        program: &[&str],
    ) -> Self {
        fs::create_dir_all(folder.join("state")).expect("a folder");
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
        let (address, np, every) = (free.to_string(), workers.to_string(), EVERY.to_string());
        let path = |path: &Path| path.display().to_string();
        let (state, checkpoints) = (path(&folder.join("state")), path(checkpoints));
        let mut command = vec!["--role", "driver", "--bind", &address, "--state-dir", &state];
        command.extend(["--mode", "in-process", "--min-np", "1", "--np", &np]);
        command.extend(["--checkpoint", &checkpoints, "--checkpoint-every", &every, "--"]);
        command.extend(program);
        let command = command.into_iter().map(ToOwned::to_owned).collect();
        let mut life = Self { folder, address, command, driver: None, agents: Vec::new() };
        life.start_driver();
        wait_for("the driver's token", || life.token().exists().then_some(()));
        life
    }

    fn token(&self) -> PathBuf {
        self.folder.join("state/token")
    }

    fn spawn(&self, name: &str, command: &mut Command) -> Child {
        let output = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("output-{name}")))
            .expect("a file");
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor"))
            .stderr(output)
            .spawn()
            .expect("the launcher starts")
    }

    /// Starts the driver, or, with the state of the one that was killed, its successor.
    pub(crate) fn start_driver(&mut self) {
        self.driver = Some(self.spawn("driver", Command::new(launcher()).args(&self.command)));
    }

    pub(crate) fn kill_driver(&mut self) {
        self.driver.take().iter_mut().for_each(kill);
    }

    pub(crate) fn add_host(&mut self, slots: u32) {
        let (name, slots) = (format!("h{}", self.agents.len()), slots.to_string());
        let mut command = Command::new(launcher());
        command.args(["--role", "worker", "--join", &self.address, "--host", &name]);
        command.args(["--slots", &slots, "--token-file"]).arg(self.token());
        let agent = self.spawn(&name, &mut command);
        self.agents.push(agent);
    }

    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("state/events.jsonl")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["kind"] == kind).collect()
    }

    pub(crate) fn wait_for_event(&self, kind: &str, count: usize) -> Value {
        wait_for(kind, || self.events(kind).into_iter().nth(count))
    }

    /// The sizes of the worlds that trained so far.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let running = self.events("generation_running");
        running.iter().filter_map(|event| event["world_size"].as_u64()).collect()
    }

    /// The processes of the workers that have made a commit.
    fn workers(&self) -> Vec<u64> {
        let output = Command::new(launcher())
            .args(["status", "--json", "--driver", &self.address, "--token-file"])
            .arg(self.token())
            .output();
        let status = output.ok().and_then(|it| serde_json::from_slice::<Value>(&it.stdout).ok());
        let workers = status.and_then(|status| status["workers"].as_array().cloned());
        let trained = |worker: &&Value| worker["step"].as_u64() > Some(0);
        let pids = |workers: Vec<Value>| {
            workers.iter().filter(trained).filter_map(|worker| worker["pid"].as_u64()).collect()
        };
        workers.map(pids).unwrap_or_default()
    }

    /// Kills the worker of the highest rank.
    pub(crate) fn kill_worker(&self) {
        let victim = wait_for("a worker that has committed", || self.workers().pop());
        let killed = Command::new("kill").args(["-9", &victim.to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()), "worker {victim} is gone already");
    }

    /// Kills the driver, all hosts, and the workers with them.
    pub(crate) fn kill_everything(mut self) {
        let workers = self.workers();
        self.kill_driver();
        self.agents.iter_mut().for_each(kill);
        for worker in workers {
            // It may have ended with its agent.
            let _ = Command::new("kill").args(["-9", &worker.to_string()]).output();
            let stat = format!("/proc/{worker}/stat");
            wait_for("the end of every worker", || {
                let stat = fs::read_to_string(&stat).unwrap_or_default();
                let is_alive = stat.rsplit(") ").next().is_some_and(|it| !it.is_empty());
                (!is_alive || stat.contains(") Z ")).then_some(())
            });
        }
        assert!(self.events("job_ended").is_empty(), "it was over before");
    }

    /// Waits for the end of the job. Returns all output of its processes.
    pub(crate) fn end(mut self) -> String {
        let mut driver = self.driver.take().expect("it runs");
        let ended = wait_for("the job's end", || driver.try_wait().expect("it is our child"));
        let files =
            fs::read_dir(&self.folder).expect("the folder").map(|file| file.expect("it").path());
        let outputs = files.filter(|file| file.is_file()).map(fs::read_to_string);
        let output: String = outputs.map(|output| output.expect("text")).collect();
        assert!(ended.success(), "{output}");
        output
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill_driver();
        self.agents.iter_mut().for_each(kill);
    }
}

fn kill(process: &mut Child) {
    // It may have ended by itself.
    let _ = process.kill();
    let _ = process.wait();
}
