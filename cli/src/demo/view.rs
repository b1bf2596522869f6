//! The display of the demo: a bar with a few live lines where stderr is a terminal, else plain lines. Used by `demo`.

use elastic_protocol::counted;
use std::io::Write as _;
use std::time::Duration;

use elastic_observe::with_short_names;
use elastic_protocol::messages::{JobPhase, StatusReport};
use indicatif::{ProgressBar, ProgressStyle};
use ratatui::crossterm::terminal::size;

use super::cluster::EPOCHS;
use crate::command_line::{describe_goodput, program_words};
use crate::process::bar;

/// Least number of steps between two plain lines, unless something else changes.
const STEPS_APART: u64 = 25;

/// Shows the cluster.
pub(crate) struct DemoView {
    table: Option<ProgressBar>,
    shown: Option<(JobPhase, u64, u32)>,
    shown_step: u64,
}

impl DemoView {
    /// A view for a terminal, or for a plain stream.
    pub(crate) fn new(is_terminal: bool) -> Self {
        let table = is_terminal.then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}");
            let table = ProgressBar::new_spinner();
            // The template is a literal; if it were wrong, the default style would do.
            if let Ok(style) = style {
                table.set_style(style);
            }
            table.enable_steady_tick(Duration::from_millis(100));
            table
        });
        Self { table, shown: None, shown_step: 0 }
    }

    /// Shows a line about something that happens.
    pub(crate) fn say(&self, text: &str) {
        match &self.table {
            Some(table) => table.println(text),
            // A closed stderr leaves nobody to report its failure to.
            None => drop(writeln!(anstream::stderr(), "{text}")),
        }
    }

    /// Shows the status of the cluster.
    pub(crate) fn show(&mut self, status: &StatusReport) {
        if let Some(table) = &self.table {
            table.set_message(fitted(&lines_of(status)));
            return;
        }
        let now = (status.phase, status.generation, status.world_size);
        let first = status.workers.iter().find(|worker| worker.rank == Some(0));
        let step = first.map_or(0, |worker| worker.step);
        if Some(now) == self.shown && step < self.shown_step + STEPS_APART {
            return;
        }
        let (phase, generation, world_size) = &now;
        let words = first.map(program_words).unwrap_or_default();
        let workers = counted(*world_size, "worker");
        let epoch = epoch_of(status)
            .map_or_else(String::new, |epoch| format!(", epoch {epoch} of {EPOCHS}"));
        self.say(&format!(
            "{phase}: generation {generation}, {workers}, step {step}{epoch} {words}"
        ));
        self.shown_step = if Some(now) == self.shown { step } else { step.max(self.shown_step) };
        self.shown = Some(now);
    }

    /// Ends the live table.
    pub(crate) fn finish(&self) {
        if let Some(table) = &self.table {
            table.finish_and_clear();
        }
    }
}

/// The epoch that rank 0 is in, which its program shows as its note.
fn epoch_of(status: &StatusReport) -> Option<u64> {
    let first = status.workers.iter().find(|worker| worker.rank == Some(0))?;
    first.note.strip_prefix("epoch ")?.parse().ok()
}

/// The demo in a few lines: how far it is, what it has lost, and a line for each worker.
fn lines_of(status: &StatusReport) -> Vec<String> {
    let step = status.workers.iter().map(|worker| worker.step).max().unwrap_or_default();
    let epoch = epoch_of(status).unwrap_or_default().min(EPOCHS);
    let (workers, resets) = (counted(status.world_size, "worker"), counted(status.resets, "reset"));
    let mut lines = vec![format!(
        "{} epoch {epoch} of {EPOCHS}, step {step}, {workers}, {resets}",
        bar(epoch, EPOCHS)
    )];
    lines.extend(status.goodput.as_ref().map(|it| describe_goodput(it).trim_end().to_owned()));
    lines.extend(status.last_reset.as_ref().map(|reset| format!("last reset: {}", reset.cause)));
    lines.extend(status.waiting_for.as_ref().map(|waiting| format!("waiting: {waiting}")));
    lines.extend(status.workers.iter().map(|worker| {
        let rank = worker.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        let (name, words) = (format!("{}:{}", worker.host, worker.slot), program_words(worker));
        format!("rank {rank}  {name}  {:<9} step {:<5} {words}", worker.state.name(), worker.step)
    }));
    lines
}

/// As much of these lines as the terminal has room for.
fn fitted(lines: &[String]) -> String {
    let (width, height) = size().map_or((80, 24), |(width, height)| (width.into(), height.into()));
    // The first line has a spinner before it; the last row is the cursor's.
    let (width, height) = (usize::saturating_sub(width, 3), usize::saturating_sub(height, 1));
    let cut = |line: &String| with_short_names(line).chars().take(width).collect::<String>();
    lines.iter().take(height.max(1)).map(cut).collect::<Vec<_>>().join("\n")
}
