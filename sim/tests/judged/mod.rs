//! The verdict that every sweep asks of a run: it breaks no rule. Called by the tests beside this folder.

use sim::{Recording, RunReport, RunVerdict};

/// The report of a run that broke no rule.
///
/// # Panics
/// It broke one. The text has the last events in words, the rule, and the command that repeats the run.
pub(crate) fn clean(report: RunReport) -> RunReport {
    if report.verdict() == RunVerdict::Ok {
        return report;
    }
    let recording = Recording { keep: 60, words: true, ..Recording::default() };
    let again = sim::run(&report.options, recording);
    panic!(
        "{}\nseed {} failed ({}): {}\nrepeat: {}",
        again.last_events.join("\n"),
        report.options.seed,
        report.verdict().name(),
        report.reason().unwrap_or_default(),
        report.options.command()
    );
}
