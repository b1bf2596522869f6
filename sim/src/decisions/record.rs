//! The committed decisions: a file with a line for each recorded run, which has hashes only, and a folder with the
//! decisions of some small runs in words. Written and compared by `sim decisions`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::words::PROGRESS;
use crate::fnv::{self, Fnv};
use crate::options::{JobKind, RunOptions, SimulationMode};
use crate::trace::Recording;

/// The file of hashes.
const HASHES: &str = "hashes.txt";

/// Decisions between two kept hashes: a change is found to lie within so many.
const STRETCH: usize = 64;

/// First lines of the file of hashes.
const HEAD: &str = "\
# What the simulation decides in these runs: number of decisions, their hash, and a short hash of each 64 of them.
# Written by `cargo xtask decisions --accept`. docs/simulation.md says what is recorded.
";

/// Recorded decisions that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file cannot be read or written.
    #[error("{} cannot be read or written", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A line is no recorded run.
    #[error("{}: {line:?} is no recorded run; `cargo xtask decisions --accept` writes the hashes anew", path.display())]
    Line {
        /// The path of the file.
        path: PathBuf,
        /// The line.
        line: String,
    },
}

/// The shape of a recorded run, as its line begins: `cores 4x2 30s seed 7 draws 1`.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// The options of the run.
    pub options: RunOptions,
    /// The rest of the line: the record; empty in a list of runs that were only chosen.
    recorded: String,
}

/// The decisions of a run as it is now.
#[derive(Clone, Debug)]
pub struct Decisions {
    lines: Vec<String>,
}

/// The first decision that differs from the recorded one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// The recorded decision, where it was recorded in words.
    pub old: Option<String>,
    /// Decisions as they are now: the one that differs, or those among which it is.
    pub new: Vec<String>,
    /// Number of the first of them, from 1.
    pub number: usize,
}

fn hash(lines: &[String]) -> u64 {
    let mut hash = Fnv::new();
    lines.iter().flat_map(|line| line.bytes().chain([b'\n'])).for_each(|byte| hash.take(byte));
    hash.value()
}

fn short(lines: &[String]) -> String {
    fnv::short(hash(lines))
}

impl Decisions {
    /// Runs the seed.
    pub fn of(options: &RunOptions) -> Self {
        let recording = Recording { decisions: true, ..Recording::default() };
        Self { lines: crate::run(options, recording).decisions }
    }

    /// All of them, one a line.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The entry of the decisions in the file of hashes.
    fn recorded(&self) -> String {
        let stretches: Vec<String> = self.lines.chunks(STRETCH).map(short).collect();
        format!("{} {:016x} {}", self.lines.len(), hash(&self.lines), stretches.join(" "))
    }

    /// The decisions that are recorded in words: all but reports of progress.
    fn told(&self) -> impl Iterator<Item = &String> {
        self.lines.iter().filter(|line| !line.contains(PROGRESS))
    }
}

impl RecordedRun {
    /// A run that is to be recorded.
    pub const fn new(options: RunOptions) -> Self {
        Self { options, recorded: String::new() }
    }

    /// The kind of the run: its mode, or `restart`.
    pub fn kind(&self) -> &'static str {
        let RunOptions { mode, job, .. } = &self.options;
        if job.is_in_process() { mode.name() } else { "restart" }
    }

    /// The run's name: of its line, and of its file of decisions in words.
    pub fn name(&self) -> String {
        let RunOptions { seed, hosts, slots, seconds, draws, .. } = &self.options;
        let kind = self.kind();
        format!("{kind} {hosts}x{slots} {seconds}s seed {seed} draws {draws}")
    }

    fn parse(line: &str) -> Option<Self> {
        let (name, recorded) = line.split_once(':').unwrap_or((line, ""));
        let words: Vec<&str> = name.split_whitespace().collect();
        let [kind, size, seconds, "seed", seed, "draws", draws] = words[..] else { return None };
        let (mode, job) = match kind {
            "cores" => (SimulationMode::Cores, JobKind::InProcess),
            "restart" => (SimulationMode::Cores, JobKind::Restart),
            "actors" => (SimulationMode::Actors, JobKind::InProcess),
            "training" => (SimulationMode::Training, JobKind::InProcess),
            "store" => (SimulationMode::Store, JobKind::InProcess),
            _ => return None,
        };
        let (hosts, slots) = size.split_once('x')?;
        let options = RunOptions {
            hosts: hosts.parse().ok()?,
            slots: slots.parse().ok()?,
            seconds: seconds.strip_suffix('s')?.parse().ok()?,
            mode,
            job,
            draws: draws.parse().ok()?,
            ..RunOptions::new(seed.parse().ok()?)
        };
        Some(Self { options, recorded: recorded.trim().to_owned() })
    }

    fn words_path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.txt", self.name().replace(' ', "-")))
    }

    /// Whether the run's decisions are recorded in words, too.
    pub fn is_told(&self, folder: &Path) -> bool {
        self.words_path(folder).exists()
    }

    /// The first decision that is not as it was recorded; none if all are.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn differs(
        &self,
        folder: &Path,
        now: &Decisions,
    ) -> Result<Option<Difference>, RecordError> {
        if now.recorded() == self.recorded {
            return Ok(None);
        }
        let path = self.words_path(folder);
        if path.exists() {
            let file = |source| RecordError::File { path: path.clone(), source };
            let text = fs::read_to_string(&path).map_err(file)?;
            let mut old = text.lines();
            let mut new = now.told();
            for number in 1.. {
                let (old, new) = (old.next(), new.next());
                if old.is_none() && new.is_none() {
                    break;
                }
                if old != new.map(String::as_str) {
                    let (old, new) = (old.map(ToOwned::to_owned), new.cloned());
                    return Ok(Some(Difference { old, new: new.into_iter().collect(), number }));
                }
            }
        }
        let mut stretches = self.recorded.split_whitespace().skip(2);
        let mut from = 0;
        for stretch in now.lines.chunks(STRETCH) {
            if stretches.next() != Some(&short(stretch)) {
                break;
            }
            from += stretch.len();
        }
        let new = now.lines[from..].iter().take(STRETCH).cloned().collect();
        Ok(Some(Difference { old: None, new, number: from + 1 }))
    }
}

/// Reads the recorded runs of a folder.
///
/// # Errors
/// [`RecordError`].
pub fn read(folder: &Path) -> Result<Vec<RecordedRun>, RecordError> {
    let path = folder.join(HASHES);
    let file = |source| RecordError::File { path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(file)?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let wrong = || RecordError::Line { path: path.clone(), line: line.to_owned() };
            RecordedRun::parse(line).ok_or_else(wrong)
        })
        .collect()
}

/// Writes the present decisions of the runs.
///
/// # Errors
/// [`RecordError::File`].
pub fn write(folder: &Path, runs: &[(RecordedRun, Decisions)]) -> Result<(), RecordError> {
    let mut text = HEAD.to_owned();
    for (run, now) in runs {
        let _infallible = writeln!(text, "{}: {}", run.name(), now.recorded());
        if run.is_told(folder) {
            let words: String = now.told().flat_map(|line| [line.as_str(), "\n"]).collect();
            let path = run.words_path(folder);
            fs::write(&path, words).map_err(|source| RecordError::File { path, source })?;
        }
    }
    let path = folder.join(HASHES);
    fs::write(&path, text).map_err(|source| RecordError::File { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Decisions {
        Decisions { lines: lines.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn a_line_names_its_run_and_the_first_stretch_that_differs() {
        let folder = Path::new("no such folder");
        let mut lines: Vec<String> = (0..200).map(|number| format!("decision {number}")).collect();
        let before = Decisions { lines: lines.clone() };
        let run = RecordedRun::new(RunOptions { draws: 1, ..RunOptions::new(7) });
        let line = format!("{}: {}", run.name(), before.recorded());
        let run = RecordedRun::parse(&line).expect("it was just written");
        assert_eq!(run.options, RunOptions { draws: 1, ..RunOptions::new(7) });
        assert_eq!(run.differs(folder, &before).expect("no file"), None);
        lines[130] = "another decision".to_owned();
        let differs = run.differs(folder, &Decisions { lines: lines.clone() }).expect("no file");
        let differs = differs.expect("one differs");
        assert_eq!((differs.number, differs.old), (129, None));
        assert_eq!(differs.new.len(), 64);
        assert!(differs.new.contains(&"another decision".to_owned()));
    }

    #[test]
    fn decisions_in_words_show_what_was_decided_before() {
        let folder = std::env::temp_dir().join(format!("elastic-decisions-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for a test");
        let run = RecordedRun::new(RunOptions::new(7));
        fs::write(run.words_path(&folder), "").expect("a file for a test");
        let before = of(&[
            "0 driver form 1.1",
            "1 h0[0] progress: 1.1 is at step 1",
            "2 driver go with 1.1",
        ]);
        write(&folder, &[(run, before.clone())]).expect("the folder exists");
        let run = read(&folder).expect("it was just written").remove(0);
        assert_eq!(run.differs(&folder, &before).expect("a file"), None);
        let now =
            of(&["0 driver form 1.1", "1 h0[0] progress: 1.1 is at step 1", "2 driver abort 1.1"]);
        let differs = run.differs(&folder, &now).expect("a file").expect("one differs");
        assert_eq!(differs.old.as_deref(), Some("2 driver go with 1.1"));
        assert_eq!(differs.new, ["2 driver abort 1.1"]);
        let now = of(&[
            "0 driver form 1.1",
            "1 h0[0] progress: 1.1 is at step 2",
            "2 driver go with 1.1",
        ]);
        let differs = run.differs(&folder, &now).expect("a file").expect("progress is hashed");
        assert_eq!((differs.old, differs.number), (None, 1));
        fs::remove_dir_all(&folder).expect("it was made above");
    }
}
