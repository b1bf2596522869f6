//! The result of a run of mutants: the table, the survivors by cause, and two shares. Used by `mutants`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::json;
use xshell::{Shell, cmd};

use super::MutantsOptions;
use super::hunt::{HuntOutcomes, MutantOutcome};
use super::mutant::Operator;
use super::suites::{Suite, SuiteKind};
use super::table::{MutantsRow, heads, markdown};

/// Fewest mutants that a share is judged by. Those of fewer, which a busy machine gets through, scatter too much.
const JUDGED_MIN: usize = 20;

/// The report of a run.
#[derive(Debug)]
pub(crate) struct MutantsReport {
    commit: String,
    drawn: String,
    suites: Vec<String>,
    outcomes: HuntOutcomes,
}

impl MutantsReport {
    pub(crate) fn of(
        root: &Path,
        options: &MutantsOptions,
        suites: &[Suite],
        outcomes: HuntOutcomes,
    ) -> Self {
        let drawn = match (options.sample, &options.changed_since) {
            (None, None) => "all".to_owned(),
            (Some(sample), None) => format!("a sample of {sample}, seed {}", options.seed),
            (None, Some(since)) => format!("what has changed since {since}"),
            (Some(sample), Some(since)) => {
                format!("what has changed since {since}, and {sample} more, seed {}", options.seed)
            }
        };
        let suites = suites.iter().map(|suite| format!("{} ({:.1} s)", suite.name, suite.seconds));
        Self { commit: commit(root), drawn, suites: suites.collect(), outcomes }
    }

    /// Prints the report to stdout.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        Ok(write!(std::io::stdout(), "{}", self.markdown())?)
    }

    /// Stores the complete results as JSON, for programs.
    pub(crate) fn store(&self, file: &Path) -> anyhow::Result<()> {
        let outcomes = self.outcomes.outcomes.iter().map(|outcome| {
            let mutant = &outcome.mutant;
            json!({
                "file": mutant.file, "line": mutant.line, "column": mutant.column,
                "function": mutant.function, "operator": mutant.operator, "what": mutant.what,
                "reached": outcome.reached, "found": outcome.found,
            })
        });
        let whole = json!({
            "commit": self.commit,
            "drawn": self.drawn,
            "mutants": outcomes.collect::<Vec<_>>(),
            "do_not_compile": self.outcomes.taken_back,
            "left_out": self.outcomes.left_out,
        });
        std::fs::write(file, serde_json::to_string_pretty(&whole)?)
            .with_context(|| format!("{} cannot be written", file.display()))
    }

    /// The whole report in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let all = MutantsRow::of(&self.outcomes.outcomes);
        let mut text = format!(
            "Commit {}; mutants: {}; {} run in {:.0} s, {} do not compile{}.\n\n\
             **Simulation alone: {:.1} % ({:.1} % by its rules). All suites: {:.1} % ({:.1} % without recorded decisions and states).**\n\n",
            self.commit,
            self.drawn,
            all.mutants,
            self.outcomes.seconds,
            self.outcomes.taken_back,
            match self.outcomes.left_out {
                0 => String::new(),
                left_out => format!(", {left_out} left out for want of time"),
            },
            all.simulation_share(),
            all.oracle_share(),
            all.share(),
            all.share_without_comparisons(),
        );
        text += &self.table("room", &all, |outcome| room(&outcome.mutant.file));
        text.push('\n');
        let order = |outcome: &MutantOutcome| {
            let operator = outcome.mutant.operator;
            let place = Operator::ALL.iter().position(|other| *other == operator);
            format!("{}{}", place.unwrap_or_default(), operator.name())
        };
        text += &self.table("mistake", &all, order);
        text += &self.speed();
        text += &self.survivors();
        let _ = writeln!(
            text,
            "\nSuites, with their time without a mutant: {}.",
            self.suites.join(", ")
        );
        text
    }

    fn table(
        &self,
        first: &str,
        all: &MutantsRow,
        name: impl Fn(&MutantOutcome) -> String,
    ) -> String {
        let mut groups: BTreeMap<String, Vec<&MutantOutcome>> = BTreeMap::new();
        for outcome in &self.outcomes.outcomes {
            groups.entry(name(outcome)).or_default().push(outcome);
        }
        let with_name = |name: &str, row: &MutantsRow| {
            let name = name.trim_start_matches(|first: char| first.is_ascii_digit());
            [vec![name.to_owned()], row.cells()].concat()
        };
        let mut rows: Vec<Vec<String>> = groups
            .iter()
            .map(|(name, own)| with_name(name, &MutantsRow::of(own.iter().copied())))
            .collect();
        rows.push(with_name("total", all));
        markdown(&heads(first), &rows)
    }

    /// The time that the suites needed to find mutants.
    fn speed(&self) -> String {
        let mut text = String::from("\n");
        for kind in SuiteKind::ALL {
            let found =
                self.outcomes.outcomes.iter().filter_map(|outcome| outcome.found.get(&kind));
            let (mut seeds, mut seconds, mut late) = (Vec::new(), Vec::new(), 0);
            for finding in found {
                seconds.push(finding.seconds);
                seeds.extend(finding.seed.map(|seed| seed + 1));
                late += usize::from(finding.is_late);
            }
            seeds.sort_unstable();
            seconds.sort_by(f64::total_cmp);
            let Some(half) = seconds.get(seconds.len() / 2) else { continue };
            let _ = write!(text, "{}: found after {half:.2} s", kind.name());
            if let (Some(half), Some(most)) = (seeds.get(seeds.len() / 2), seeds.last()) {
                let _ = write!(text, " and {half} seeds (median; most: {most} seeds)");
            }
            let _ = writeln!(text, "; {late} did not end.");
        }
        text
    }

    /// The surviving mutants, by how far the suites came.
    fn survivors(&self) -> String {
        let mut causes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for outcome in &self.outcomes.outcomes {
            if outcome.found.is_empty() {
                causes.entry(cause(outcome)).or_default().push(outcome.mutant.to_string());
            }
        }
        let mut text = String::new();
        for (cause, mutants) in causes {
            let _ = writeln!(text, "\nSurvivors, {cause}: {}\n", mutants.len());
            for mutant in mutants {
                let _ = writeln!(text, "- {mutant}");
            }
        }
        text
    }

    /// Fails if a share is below its floor, unless too few mutants were run to tell.
    pub(crate) fn hold_floors(&self, simulation: f64, all: f64) -> anyhow::Result<()> {
        let row = MutantsRow::of(&self.outcomes.outcomes);
        if row.mutants < JUDGED_MIN {
            let has_floors = simulation > 0.0 || all > 0.0;
            let (run, of) = (row.mutants, row.mutants + self.outcomes.left_out);
            let text = format!(
                "{run} of {of} mutants were run: the floors hold for {JUDGED_MIN} and more, and are not applied"
            );
            return if has_floors { Ok(writeln!(std::io::stdout(), "{text}")?) } else { Ok(()) };
        }
        ensure!(
            row.simulation_share() >= simulation,
            "simulation finds {:.1} % of the mutants; the floor is {simulation} %",
            row.simulation_share()
        );
        ensure!(
            row.share() >= all,
            "all suites find {:.1} % of the mutants; the floor is {all} %",
            row.share()
        );
        Ok(())
    }
}

fn cause(outcome: &MutantOutcome) -> &'static str {
    match (outcome.is_reached_by_simulation(), outcome.reached.is_empty()) {
        (true, _) => "simulated and not seen",
        (false, false) => "in tests alone, and not seen",
        (false, true) => "in no suite",
    }
}

/// The folder of a file, without the parts that all paths share.
fn room(file: &str) -> String {
    let file = file.trim_start_matches("actors/").replace("/src/", " ");
    let file = file.strip_suffix(".rs").unwrap_or(&file);
    let (package, path) = file.split_once(' ').unwrap_or((file, ""));
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{package} {folder}").trim_end().to_owned()
}

fn commit(root: &Path) -> String {
    let Ok(shell) = Shell::new() else { return "unknown".to_owned() };
    shell.change_dir(root);
    let commit = cmd!(shell, "git rev-parse --short HEAD").quiet().ignore_stderr().read();
    commit.unwrap_or_else(|_| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::find;
    use super::super::scope::SourceFile;
    use super::*;

    fn report(mutants: usize) -> MutantsReport {
        let file = SourceFile {
            path: "actors/a/src/core/a.rs".to_owned(),
            text: "fn a(b: u32) -> bool { b < 1 }".to_owned(),
        };
        let mutant = find::all(&[file], &BTreeSet::new()).swap_remove(0);
        let survivor = || MutantOutcome {
            mutant: mutant.clone(),
            reached: Vec::new(),
            found: BTreeMap::new(),
        };
        let outcomes = HuntOutcomes {
            outcomes: std::iter::repeat_with(survivor).take(mutants).collect(),
            taken_back: 0,
            left_out: 0,
            seconds: 0.0,
        };
        let (commit, drawn) = (String::new(), String::new());
        MutantsReport { commit, drawn, suites: Vec::new(), outcomes }
    }

    #[test]
    fn floors_hold_only_for_a_sample_that_is_large_enough() {
        assert!(report(JUDGED_MIN - 1).hold_floors(30.0, 45.0).is_ok());
        assert!(report(JUDGED_MIN).hold_floors(30.0, 45.0).is_err());
        assert!(report(JUDGED_MIN).hold_floors(0.0, 0.0).is_ok());
    }
}
