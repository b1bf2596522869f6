//! A job of many processes that do nothing, and the CPU time of its driver. Used by `page`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::process::{now, pause};

/// Most time for the processes to start.
const PATIENCE: Duration = Duration::from_secs(300);

/// Interval between looks at files.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The job; dropped, it is stopped.
pub(super) struct PageJob {
    driver: Child,
    folder: TempDir,
    page: SocketAddr,
}

impl PageJob {
    /// Starts it, and waits until all workers are in a generation.
    pub(super) fn start(program: &Path, workers: u32, hosts: u32) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("elastic-node-bench-")?;
        let file = |name: &str| File::create(folder.path().join(name));
        let slots = workers / hosts;
        let listed: Vec<String> = (0..hosts).map(|host| format!("host-{host}:{slots}")).collect();
        let np = workers.to_string();
        let driver = Command::new(program)
            .args(["run", "--mode", "restart", "--hosts", &listed.join(","), "--np", &np])
            .args(["--dashboard", "127.0.0.1:0", "--start-timeout", "300"])
            .args(["--form-timeout", "280", "--state-dir"])
            .arg(folder.path().join("state"))
            .args(["--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?)
            .spawn()
            .context("elastic-node cannot be started")?;
        let mut job = Self { driver, folder, page: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let deadline = now() + PATIENCE;
        loop {
            let log = job.read("stderr");
            let ended = job.driver.try_wait()?;
            ensure!(ended.is_none() && now() < deadline, "the workers did not start\n{log}");
            if let Some(page) = page_in(&log) {
                job.page = page;
            }
            let events = job.read("state/events.jsonl");
            if events.contains("\"generation_running\"") && job.page.port() > 0 {
                // The start's own work is over after this pause.
                pause(Duration::from_secs(5));
                return Ok(job);
            }
            pause(LOOK_EVERY);
        }
    }

    /// The page's address.
    pub(super) const fn page(&self) -> SocketAddr {
        self.page
    }

    /// CPU time of all threads of the driver's process, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> anyhow::Result<u64> {
        let mut all = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.driver.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            let spent = text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
            all += spent.context("schedstat begins with nanoseconds")?;
        }
        Ok(all)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }
}

/// The page's address as the driver's log has it.
fn page_in(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("http://")?;
    rest.split_once('/')?.0.parse().ok()
}

impl Drop for PageJob {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to stop.
        let _ = Command::new("kill").args(["-INT", &self.driver.id().to_string()]).status();
        let _ = self.driver.wait();
    }
}
