//! The committed states: a file with a line for each part of the cores, over all recorded runs, and a line for each of these runs, with a
//! short hash of each of its looks. The runs are those of the recorded decisions. Written and compared by `sim states`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{KeptStates, StateLook};
use crate::dataset::mix;
use crate::decisions::record::RecordError;
use crate::fnv::short;
use crate::options::RunOptions;
use crate::trace::Recording;

/// The file.
const STATES: &str = "states.txt";

/// Prefix of the line of a part.
const PART: &str = "part ";

/// First lines of the file.
const HEAD: &str = "\
# What the nodes' cores hold in these runs: a hash of each of their fields over all runs, then for each run a short hash of each look.
# Written by `cargo xtask decisions --accept`. docs/simulation.md says what is recorded.
";

/// The states of a run, as hashes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RunStates {
    /// A hash of each field of the cores, over all looks.
    parts: BTreeMap<String, u64>,
    /// A short hash of each moment at which the cores were looked at, with the moment in nanoseconds.
    moments: Vec<(u64, String)>,
}

impl RunStates {
    /// Runs the seed.
    pub fn of(options: &RunOptions) -> Self {
        let recording = Recording { states: KeptStates::Digests, ..Recording::default() };
        Self::of_looks(&crate::run(options, recording).states)
    }

    fn of_looks(looks: &[StateLook]) -> Self {
        let mut states = Self::default();
        let mut at_moment: BTreeMap<u64, u64> = BTreeMap::new();
        for StateLook { at, place, parts } in looks {
            let place = place.code();
            let moment = at_moment.entry(*at).or_default();
            for part in parts {
                *moment = mix(mix(*moment, place), part.digest);
                let whole = states.parts.entry(part.name.clone()).or_default();
                *whole = mix(mix(*whole, place), part.digest);
            }
        }
        states.moments = at_moment.into_iter().map(|(at, hash)| (at, short(hash))).collect();
        states
    }

    fn recorded(&self) -> String {
        self.moments.iter().map(|(_, hash)| hash.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// World time in seconds of the first look that is not as recorded; none if all are.
    fn differs(&self, recorded: &str) -> Option<f64> {
        let mut recorded = recorded.split_whitespace();
        for (at, hash) in &self.moments {
            if recorded.next() != Some(hash) {
                return Some(*at as f64 / 1e9);
            }
        }
        let last = self.moments.last().map_or(0, |(at, _)| *at);
        recorded.next().map(|_| last as f64 / 1e9)
    }
}

/// The hashes of all runs' parts together. The order of the runs does not matter.
fn whole<'a>(runs: impl IntoIterator<Item = &'a RunStates>) -> BTreeMap<String, u64> {
    let mut whole: BTreeMap<String, u64> = BTreeMap::new();
    for (name, hash) in runs.into_iter().flat_map(|run| &run.parts) {
        let sum = whole.entry(name.clone()).or_default();
        *sum = sum.wrapping_add(*hash);
    }
    whole
}

/// The committed states.
#[derive(Clone, Debug, Default)]
pub struct RecordedStates {
    parts: BTreeMap<String, String>,
    runs: BTreeMap<String, String>,
}

impl RecordedStates {
    fn path(folder: &Path) -> PathBuf {
        folder.join(STATES)
    }

    /// Reads those of a folder.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(folder: &Path) -> Result<Self, RecordError> {
        let path = Self::path(folder);
        let text = fs::read_to_string(&path)
            .map_err(|source| RecordError::File { path: path.clone(), source })?;
        let mut states = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let wrong = || RecordError::Line { path: path.clone(), line: line.to_owned() };
            let (name, hashes) = line.split_once(':').ok_or_else(wrong)?;
            let hashes = hashes.trim().to_owned();
            match name.strip_prefix(PART) {
                Some(part) => states.parts.insert(part.to_owned(), hashes),
                None => states.runs.insert(name.to_owned(), hashes),
            };
        }
        Ok(states)
    }

    /// World time in seconds of the first look at a run that is not as recorded; none if all are.
    pub fn run_differs(&self, name: &str, now: &RunStates) -> Option<f64> {
        now.differs(self.runs.get(name).map_or("", String::as_str))
    }

    /// The fields that are not as recorded, over all runs.
    pub fn parts_that_differ<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a RunStates>,
    ) -> Vec<String> {
        let now = whole(runs);
        let mut differing: Vec<String> = now
            .iter()
            .filter(|(name, hash)| self.parts.get(*name) != Some(&format!("{hash:016x}")))
            .map(|(name, _)| name.clone())
            .collect();
        differing.extend(self.parts.keys().filter(|name| !now.contains_key(*name)).cloned());
        differing
    }

    /// Writes the present states of the cores.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn write(folder: &Path, runs: &[(String, RunStates)]) -> Result<(), RecordError> {
        let mut text = HEAD.to_owned();
        for (name, hash) in whole(runs.iter().map(|(_, states)| states)) {
            let _infallible = writeln!(text, "{PART}{name}: {hash:016x}");
        }
        for (name, states) in runs {
            let _infallible = writeln!(text, "{name}: {}", states.recorded());
        }
        let path = Self::path(folder);
        fs::write(&path, text).map_err(|source| RecordError::File { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::StatePart;
    use crate::trace::TracePlace;

    fn look(at: u64, digests: [u64; 2]) -> StateLook {
        let names = ["driver.roster", "driver.round"];
        let part =
            |(name, digest): (&str, u64)| StatePart { name: name.to_owned(), digest, text: None };
        let parts = names.into_iter().zip(digests).map(part).collect();
        StateLook { at: at * 1_000_000_000, place: TracePlace::DRIVER, parts }
    }

    #[test]
    fn the_first_look_and_the_fields_that_differ_are_named() {
        let folder = std::env::temp_dir().join(format!("elastic-states-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for a test");
        let before = RunStates::of_looks(&[look(1, [1, 2]), look(2, [1, 3]), look(3, [4, 5])]);
        let name = "cores 2x1 10s seed 7 draws 1";
        RecordedStates::write(&folder, &[(name.to_owned(), before.clone())])
            .expect("the folder exists");
        let recorded = RecordedStates::read(&folder).expect("it was just written");
        assert_eq!(recorded.run_differs(name, &before), None);
        assert_eq!(recorded.parts_that_differ([&before]), Vec::<String>::new());
        let now = RunStates::of_looks(&[look(1, [1, 2]), look(2, [1, 9]), look(3, [4, 5])]);
        assert_eq!(recorded.run_differs(name, &now), Some(2.0));
        assert_eq!(recorded.parts_that_differ([&now]), ["driver.round"]);
        let shorter = RunStates::of_looks(&[look(1, [1, 2]), look(2, [1, 3])]);
        assert_eq!(recorded.run_differs(name, &shorter), Some(2.0));
        assert_eq!(recorded.run_differs("another run", &before), Some(1.0));
        fs::remove_dir_all(&folder).expect("it was made above");
    }
}
