//! Counts of outcomes, as rows of the report. Used by `report`.

use std::collections::BTreeMap;

use super::hunt::MutantOutcome;
use super::suites::SuiteKind;

/// Counts of mutants, and of those that each kind of suite found.
#[derive(Clone, Debug, Default)]
pub(crate) struct MutantsRow {
    pub(crate) mutants: usize,
    pub(crate) by_kind: BTreeMap<SuiteKind, usize>,
    pub(crate) reached_by_simulation: usize,
    pub(crate) by_oracle: usize,
    pub(crate) by_simulation: usize,
    pub(crate) without_comparisons: usize,
    pub(crate) by_all: usize,
}

impl MutantsRow {
    /// The row of these outcomes.
    pub(crate) fn of<'a>(outcomes: impl IntoIterator<Item = &'a MutantOutcome>) -> Self {
        let mut row = Self::default();
        for outcome in outcomes {
            row.mutants += 1;
            for kind in outcome.found.keys() {
                *row.by_kind.entry(*kind).or_default() += 1;
            }
            row.reached_by_simulation += usize::from(outcome.is_reached_by_simulation());
            row.by_oracle += usize::from(outcome.is_found_by_oracle());
            row.without_comparisons += usize::from(outcome.is_found_without_comparisons());
            row.by_simulation += usize::from(outcome.is_found_by_simulation());
            row.by_all += usize::from(!outcome.found.is_empty());
        }
        row
    }

    /// The share that the rules of the simulation's oracle find, in per cent.
    pub(crate) fn oracle_share(&self) -> f64 {
        share(self.by_oracle, self.mutants)
    }

    /// The share that rules and tests find, without the comparisons with recorded runs, in per cent.
    pub(crate) fn share_without_comparisons(&self) -> f64 {
        share(self.without_comparisons, self.mutants)
    }

    /// The share that the simulation alone finds, in per cent.
    pub(crate) fn simulation_share(&self) -> f64 {
        share(self.by_simulation, self.mutants)
    }

    /// The share that all suites together find, in per cent.
    pub(crate) fn share(&self) -> f64 {
        share(self.by_all, self.mutants)
    }

    /// The cells behind the row's name.
    pub(crate) fn cells(&self) -> Vec<String> {
        let of_kind = |kind: &SuiteKind| self.by_kind.get(kind).copied().unwrap_or(0).to_string();
        let kinds = SuiteKind::ALL.iter().map(of_kind);
        let with_share = |count, share: f64| format!("{count} ({share:.0} %)");
        [self.mutants.to_string()]
            .into_iter()
            .chain(kinds)
            .chain([
                self.reached_by_simulation.to_string(),
                with_share(self.by_oracle, self.oracle_share()),
                with_share(self.by_simulation, self.simulation_share()),
                with_share(self.by_all, self.share()),
            ])
            .collect()
    }
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 100.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// The heads of the columns.
pub(crate) fn heads(first: &str) -> Vec<String> {
    let kinds = SuiteKind::ALL.iter().map(|kind| kind.name().to_owned());
    [first.to_owned(), "mutants".to_owned()]
        .into_iter()
        .chain(kinds)
        .chain(["simulated", "rules", "simulation", "all"].map(ToOwned::to_owned))
        .collect()
}

/// A table in Markdown; the columns are as wide as their cells.
pub(crate) fn markdown(heads: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| {
            let missing = width(column) - cell.chars().count();
            format!(" {cell}{} ", " ".repeat(missing))
        });
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let dashes: Vec<String> = (0..heads.len()).map(|column| "-".repeat(width(column))).collect();
    [line(heads), line(&dashes)].into_iter().chain(rows.iter().map(|row| line(row))).collect()
}
