//! Reading a job: its status, events and trainer's log, and waits for them. Used by all end-to-end tests.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Job, PATIENCE, binary, now, pause};

impl Job {
    /// The answer of `elastic-node status --json`.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = Command::new(binary())
            .args(["status", "--json", "--driver", &self.address, "--token-file"])
            .arg(self.path("state/token"))
            .stdin(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The event logs of all drivers so far, in the order of time.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events = self.events_in("state");
        for name in self.standbys.keys() {
            events.extend(self.events_in(&format!("state-{name}")));
        }
        events.sort_by_key(|event| event["t"].as_str().map(ToOwned::to_owned));
        events
    }

    /// The event log in this state directory.
    pub(crate) fn events_in(&self, state: &str) -> Vec<Value> {
        lines_of(&self.path(state).join("events.jsonl"))
    }

    pub(crate) fn events_of(&self, kind: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["kind"] == kind).collect()
    }

    /// The report of the first reset that is over.
    pub(crate) fn first_reset(&mut self) -> Value {
        self.wait("a reset's report", |job| job.events_of("reset_done").into_iter().next())
    }

    /// The number of the current generation, as the driver reports it.
    pub(crate) fn generation(&self) -> u64 {
        self.status().and_then(|status| status["generation"].as_u64()).unwrap_or_default()
    }

    /// World sizes of the generations that ran.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let running = self.events_of("generation_running");
        running.iter().filter_map(|event| event["world_size"].as_u64()).collect()
    }

    /// All lines that the trainers have logged.
    pub(crate) fn log(&self) -> Vec<Value> {
        let Ok(folder) = fs::read_dir(self.path("log")) else { return Vec::new() };
        folder.flatten().flat_map(|entry| lines_of(&entry.path())).collect()
    }

    /// Waits until `count` worker processes have ended; returns their events.
    pub(crate) fn wait_for_exits(&mut self, count: usize) -> Vec<Value> {
        self.wait(&format!("{count} exits"), |job| {
            let exits = job.events_of("worker_exited");
            (exits.len() == count).then_some(exits)
        })
    }

    /// Waits until the world sizes of the generations that ran are these, and the last one has committed.
    pub(crate) fn wait_for_sizes(&mut self, sizes: &[u64]) {
        self.wait(&format!("world sizes {sizes:?}"), |job| (job.sizes() == sizes).then_some(()));
        self.wait_for_progress();
    }

    /// Waits until every member of the current generation has committed in it.
    pub(crate) fn wait_for_progress(&mut self) {
        self.wait("commits of all members", |job| {
            let last = job.events_of("generation_running").pop()?;
            let (generation, size) = (last["generation"].as_u64()?, last["world_size"].as_u64()?);
            let mut ranks: Vec<u64> = job
                .log()
                .iter()
                .filter(|line| line["event"] == "commit" && line["generation"] == generation)
                .filter_map(|line| line["rank"].as_u64())
                .collect();
            ranks.sort_unstable();
            ranks.dedup();
            (ranks.len() as u64 == size).then_some(())
        });
    }

    /// Waits until the workers have made further commits.
    pub(crate) fn wait_for_steps(&mut self) {
        let before = self.log().len();
        self.wait("more commits", |job| (job.log().len() > before + 10).then_some(()));
    }

    /// Asserts that the committed state has trained each sample exactly once per epoch (H-23).
    pub(crate) fn assert_exact(&self) {
        let log = self.log();
        let inexact: Vec<&Value> = log.iter().filter(|line| line["event"] == "inexact").collect();
        assert!(inexact.is_empty(), "samples were lost or repeated: {inexact:?}");
        assert!(log.iter().any(|line| line["event"] == "epoch"), "no epoch was completed");
    }

    /// Waits for a condition (level-triggered); after the timeout it panics with a description of the job.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let deadline = now() + PATIENCE;
        loop {
            if let Some(value) = condition(self) {
                return value;
            }
            if now() > deadline {
                panic!("waited in vain for {what}\n{}", self.describe());
            }
            pause();
        }
    }

    fn describe(&self) -> String {
        let status = self.status().map(|status| status.to_string()).unwrap_or_default();
        let events: Vec<String> = self.events().iter().map(ToString::to_string).collect();
        let mut text = format!("status: {status}\nevents:\n{}\n", events.join("\n"));
        text += &format!("driver's stderr:\n{}\n", self.stderr());
        for name in self.standbys.keys() {
            let stderr = fs::read(self.path(&format!("{name}.stderr"))).unwrap_or_default();
            text += &format!("stderr of {name}:\n{}\n", String::from_utf8_lossy(&stderr));
        }
        for host in self.agents.keys() {
            let stderr = fs::read(self.path(&format!("agent.{host}.stderr"))).unwrap_or_default();
            text += &format!("stderr of agent {host}:\n{}\n", String::from_utf8_lossy(&stderr));
        }
        text
    }
}

fn lines_of(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
