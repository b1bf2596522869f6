//! The times of the steps that have passed: wall-clock time and processor time. Processor times stay about the same
//! while other work runs beside. `steps` adds to them, `lane` hands those of another process over, and the tasks
//! print all of them at their end.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};

/// The time of a step that has passed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct StepTime {
    name: String,
    /// Time by the clock, in seconds.
    pub(crate) clock_s: f64,
    /// Time of processors, of the system too, in seconds: of this process, and of the processes that it has started and
    /// waited for.
    processor_s: f64,
}

/// The times of this process's steps, and of the lanes that have ended.
static TIMES: Mutex<Vec<StepTime>> = Mutex::new(Vec::new());

/// Measures a step.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
    processor_s: f64,
}

impl Stopwatch {
    /// Starts to measure.
    ///
    /// # Errors
    /// The system does not tell the time of processors.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Ok(Self { started: now(), processor_s: processor_s()? })
    }

    /// The time since the start, under this name.
    ///
    /// # Errors
    /// The system does not tell the time of processors.
    pub(crate) fn stop(&self, name: &str) -> anyhow::Result<StepTime> {
        Ok(StepTime {
            name: name.to_owned(),
            clock_s: self.started.elapsed().as_secs_f64(),
            processor_s: processor_s()? - self.processor_s,
        })
    }
}

/// Adds the time of a step that has passed.
pub(crate) fn add(time: StepTime) {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).push(time);
}

/// Prints all times to stderr, those that took the most of a processor first.
///
/// # Errors
/// stderr is closed.
pub(crate) fn print() -> anyhow::Result<()> {
    let times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::io::stderr().write_all(table(&times).as_bytes())?)
}

/// Writes the times of this process's steps to a file, for the process that has started it.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn store(file: &Path) -> anyhow::Result<()> {
    let times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(fs::write(file, serde_json::to_vec(&*times)?)?)
}

/// Adds the times that another process has written.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn add_stored(file: &Path) -> anyhow::Result<()> {
    let times: Vec<StepTime> = serde_json::from_slice(&fs::read(file)?)?;
    times.into_iter().for_each(add);
    Ok(())
}

fn table(times: &[StepTime]) -> String {
    let mut times: Vec<&StepTime> = times.iter().collect();
    times.sort_by(|one, other| other.processor_s.total_cmp(&one.processor_s));
    let mut text = String::from("\n  clock  processors  step (seconds)\n");
    for StepTime { name, clock_s, processor_s } in &times {
        text.push_str(&format!("{clock_s:>7.0} {processor_s:>11.0}  {name}\n"));
    }
    let sum: f64 = times.iter().map(|time| time.processor_s).sum();
    text.push_str(&format!("        {sum:>11.0}  of processors in all\n"));
    text
}

fn processor_s() -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for of in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(of)?;
        let time = usage.user_time() + usage.system_time();
        sum += time.num_microseconds() as f64 / 1e6;
    }
    Ok(sum)
}

#[expect(clippy::disallowed_methods, reason = "tells a person how long a step took")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_waited_for_counts() {
        let stopwatch = Stopwatch::start().expect("the system tells");
        let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let ended = std::process::Command::new("sh").args(["-c", spin]).status();
        assert!(ended.expect("sh runs").success());
        let time = stopwatch.stop("spin").expect("the system tells");
        assert!(time.processor_s > 0.0, "{time:?}");
    }

    #[test]
    fn the_times_of_another_process_are_added() {
        let file = std::env::temp_dir().join(format!("elastic-step-times-{}", std::process::id()));
        add(StepTime { name: "of a lane".to_owned(), clock_s: 2.0, processor_s: 1.5 });
        store(&file).expect("written");
        add_stored(&file).expect("read");
        fs::remove_file(&file).expect("it is there");
        let times = TIMES.lock().expect("no test panics with it");
        let of_lane: Vec<&StepTime> =
            times.iter().filter(|time| time.name == "of a lane").collect();
        assert_eq!(of_lane.len(), 2);
        assert_eq!(of_lane[0], of_lane[1]);
    }

    #[test]
    fn the_most_of_a_processor_stands_first() {
        let time = |name: &str, clock_s, processor_s| StepTime {
            name: name.to_owned(),
            clock_s,
            processor_s,
        };
        let table = table(&[
            time("tests", 600.4, 300.0),
            time("lints", 90.0, 170.0),
            time("soak", 120.0, 310.2),
        ]);
        let expected = "\n  clock  processors  step (seconds)\n\
                        \x20   120         310  soak\n\
                        \x20   600         300  tests\n\
                        \x20    90         170  lints\n\
                        \x20               780  of processors in all\n";
        assert_eq!(table, expected);
    }
}
