//! Runs one program, with limits on its time and memory. Used by `suites` and `hunt`.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Memory limit of a run, in KiB (6 GiB): a mutant may allocate without end.
const MEMORY_KIB: u64 = 6 << 20;

/// Most wall-clock time of a run, as a multiple of its limit on CPU time: the machine may do other work, too.
const WALL_PER_CPU: u32 = 4;

/// Interval between two looks at a run.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The way in which a run ends.
#[derive(Debug)]
pub(crate) enum RunEnd {
    Well,
    Badly,
    /// The run did not end in time.
    Late,
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ended: RunEnd,
    pub(crate) seconds: f64,
    pub(crate) stdout: String,
}

/// Runs a program to its end, or until it has computed for longer than `limit`.
pub(crate) fn run(
    program: &Path,
    arguments: &[String],
    folder: &Path,
    environment: &[(&str, String)],
    limit: Duration,
) -> anyhow::Result<Run> {
    let limits =
        format!("ulimit -c 0; ulimit -v {MEMORY_KIB}; ulimit -t {}", limit.as_secs().max(1));
    let started = now();
    let mut child = Command::new("sh")
        .args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")])
        .arg(program)
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_MANIFEST_DIR", folder)
        .env("RUST_BACKTRACE", "0")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    let mut pipe = child.stdout.take().context("stdout is a pipe")?;
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut text = Vec::new();
            // A failure only leaves a gap in a text for people.
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut ended = None;
        while started.elapsed() < limit * WALL_PER_CPU {
            match child.try_wait() {
                Ok(None) => pause(),
                Ok(Some(status)) => {
                    ended = Some(status);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // The whole process group is killed, with all that the run has started.
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        child.wait()?;
        Ok((ended, reader.join().unwrap_or_default()))
    });
    let (status, stdout) = reader?;
    let ended = match status {
        Some(status) if status.success() => RunEnd::Well,
        Some(status) if is_out_of_time(status) => RunEnd::Late,
        Some(_) => RunEnd::Badly,
        None => RunEnd::Late,
    };
    Ok(Run { ended, seconds: started.elapsed().as_secs_f64(), stdout })
}

fn is_out_of_time(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    const SIGXCPU: i32 = 24;
    status.signal() == Some(SIGXCPU)
}

#[expect(clippy::disallowed_methods, reason = "measures how long a suite takes to find a mutant")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waits for a process in real time")]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}
