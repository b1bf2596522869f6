//! `bench start`: from the command to the first line of a trivial Python script, through `elastic-node run` and by
//! itself, in turns; and the memory of the agent.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use crate::monotonic::now_ns;
use crate::process::{elastic_node, terminate};
use crate::statistics::median;

/// Says a line, and stays until it is told to go.
const SCRIPT: &str = "import signal\nprint('here')\nsignal.pause()\n";

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct StartOptions {
    /// How often each is started.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// The interpreter.
    #[arg(long, env = "ELASTIC_BENCH_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Medians.
#[derive(Debug, Serialize)]
struct StartReport {
    runs: usize,
    python_ms: f64,
    ours_ms: f64,
    /// The time that ours takes more.
    over_ms: f64,
    /// Resident memory of the agent at that moment.
    agent_mib: f64,
}

/// Measures and prints.
pub(crate) fn run(options: &StartOptions) -> anyhow::Result<()> {
    ensure!(options.runs > 0, "--runs must be at least 1");
    let binary = elastic_node()?;
    let folder = TempDir::with_prefix("elastic-node-bench-")?;
    let script = folder.path().join("script.py");
    fs::write(&script, SCRIPT)?;
    let (mut python_ms, mut ours_ms, mut agent_mib) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..options.runs {
        let mut python = Command::new(&options.python);
        python_ms.push(first_line(python.arg("-u").arg(&script), |_child| Ok(()))?.0);
        let mut ours = Command::new(&binary);
        // As users start it: without a state directory of its own, and so without a journal.
        ours.arg("run").arg(&script).env("XDG_STATE_HOME", folder.path());
        let (ms, mib) = first_line(ours.env("PYTHON_EXEC", &options.python), agent_memory_mib)?;
        ours_ms.push(ms);
        agent_mib.push(mib);
        if !options.json {
            let line = format!("run {}: {:.1} ms, {ms:.1} ms", number + 1, python_ms[number]);
            writeln!(std::io::stderr(), "{line}, agent {mib:.1} MiB")?;
        }
    }
    let of = |values: &[f64]| median(values).context("there are measurements");
    let (python_ms, ours_ms) = (of(&python_ms)?, of(&ours_ms)?);
    let over_ms = ours_ms - python_ms;
    let report =
        StartReport { runs: options.runs, python_ms, ours_ms, over_ms, agent_mib: of(&agent_mib)? };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// Milliseconds until its first line, and what `look` sees then; it is ended afterwards.
fn first_line<T>(
    command: &mut Command,
    look: impl FnOnce(&Child) -> anyhow::Result<T>,
) -> anyhow::Result<(f64, T)> {
    let started_ns = now_ns()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("it cannot be started")?;
    let mut line = String::new();
    let stdout = child.stdout.take().context("its output is piped")?;
    BufReader::new(stdout).read_line(&mut line)?;
    let ms = (now_ns()? - started_ns) as f64 / 1e6;
    let seen = look(&child);
    terminate(child.id())?;
    child.wait()?;
    ensure!(line.trim_end().ends_with("here"), "the script did not start: {line:?}");
    Ok((ms, seen?))
}

/// Resident memory of the agent that this driver has started, in MiB.
fn agent_memory_mib(driver: &Child) -> anyhow::Result<f64> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let folder = entry.path();
        if parent_of(&folder) != Some(driver.id()) {
            continue;
        }
        let line = fs::read(folder.join("cmdline"))?;
        if line.split(|byte| *byte == 0).any(|word| word == b"worker") {
            let status = fs::read_to_string(folder.join("status"))?;
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = resident.and_then(|text| text.split_whitespace().next());
            let kib: f64 = kib.context("a process has memory")?.parse()?;
            return Ok(kib / 1024.0);
        }
    }
    anyhow::bail!("the driver has no agent")
}

fn parent_of(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
