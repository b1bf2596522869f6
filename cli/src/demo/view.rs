//! The display of the demo: a bar with a few live lines where stderr is a terminal, else plain lines. Used by `demo`.

use elastic_protocol::counted;
use std::io::Write as _;
use std::time::Duration;

use elastic_observe::with_short_names;
use elastic_protocol::messages::{JobPhase, StatusReport, WorkerStatus};
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
            let room = room();
            table.set_message(fitted(&lines_of(status, room.0), room));
            return;
        }
        let now = (status.phase, status.generation, status.world_size);
        let step = first_rank(status).map_or(0, |worker| worker.step);
        if Some(now) == self.shown && step < self.shown_step + STEPS_APART {
            return;
        }
        self.say(&plain_line(status));
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

fn first_rank(status: &StatusReport) -> Option<&WorkerStatus> {
    status.workers.iter().find(|worker| worker.rank == Some(0))
}

/// The epoch that rank 0 is in, which its program shows as its note.
fn epoch_of(status: &StatusReport) -> Option<u64> {
    first_rank(status)?.note.strip_prefix("epoch ")?.parse().ok()
}

/// The cluster in a line, for a stream that is no terminal.
fn plain_line(status: &StatusReport) -> String {
    if let (JobPhase::Gather, Some(gather)) = (status.phase, &status.gather) {
        return format!("waiting for workers: {} of {}", gather.there, gather.needed);
    }
    let phase = status.phase;
    // The group of a job that is over is gone.
    let workers = match phase {
        JobPhase::Succeeded | JobPhase::Failed => String::new(),
        _ => format!("{}, ", counted(status.world_size, "worker")),
    };
    let first = first_rank(status);
    let step = first.map_or(0, |worker| worker.step);
    let epoch =
        epoch_of(status).map_or_else(String::new, |epoch| format!(", epoch {epoch} of {EPOCHS}"));
    let numbers = first.map(|worker| worker.reported.to_string()).filter(|it| !it.is_empty());
    let numbers = numbers.map_or_else(String::new, |numbers| format!(", {numbers}"));
    format!("{phase}: {workers}step {step}{epoch}{numbers}")
}

/// The demo in a few lines: its progress, its losses, and a line for each worker.
fn lines_of(status: &StatusReport, width: usize) -> Vec<String> {
    let step = status.workers.iter().map(|worker| worker.step).max().unwrap_or_default();
    let epoch = epoch_of(status).unwrap_or_default().min(EPOCHS);
    let (workers, resets) = (counted(status.world_size, "worker"), counted(status.resets, "reset"));
    let mut lines = vec![format!(
        "{} epoch {epoch} of {EPOCHS}, step {step}, {workers}, {resets}",
        bar(epoch, EPOCHS)
    )];
    lines.extend(status.goodput.as_ref().and_then(|it| describe_goodput(it, width)));
    lines.extend(status.last_reset.as_ref().map(|reset| format!("last reset: {}", reset.cause)));
    lines.extend(status.waiting_for.as_ref().map(|waiting| format!("waiting: {waiting}")));
    lines.extend(status.workers.iter().map(|worker| {
        let rank = worker.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        let (name, words) = (format!("{}:{}", worker.host, worker.slot), program_words(worker));
        format!("rank {rank}  {name}  {:<9} step {:<5} {words}", worker.state.name(), worker.step)
    }));
    lines
}

/// Columns and rows that the table may take.
fn room() -> (usize, usize) {
    let (width, height) = size().map_or((80, 24), |(width, height)| (width.into(), height.into()));
    // The first line has a spinner before it; the last row is the cursor's.
    (usize::saturating_sub(width, 3), usize::saturating_sub(height, 1))
}

/// As much of these lines as there is room for.
fn fitted(lines: &[String], (width, height): (usize, usize)) -> String {
    let cut = |line: &String| with_short_names(line).chars().take(width).collect::<String>();
    lines.iter().take(height.max(1)).map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(phase: &str, world_size: u32, step: u64, changed: Value) -> StatusReport {
        let worker = json!({ "rank": 0, "host": "a", "slot": 0, "pid": 7, "state": "running", "step": step,
            "note": "epoch 3", "reported": { "loss": 0.25 } });
        let mut status = json!({
            "job": "8c2294e4-bcfa-47d0-ac77-d9dac43fa755", "term": 1, "generation": 1, "phase": phase,
            "world_size": world_size, "min_np": 1, "max_np": null, "resets": 0, "hosts": [], "workers": [worker],
            "last_reset": null, "waiting_for": null, "warnings": [], "dropped_messages": 0,
        });
        for (name, value) in changed.as_object().expect("an object") {
            status[name] = value.clone();
        }
        serde_json::from_value(status).expect("a status")
    }

    #[test]
    fn a_plain_line_says_whom_it_waits_for_what_runs_and_how_far_it_came() {
        let waiting = json!({ "gather": { "there": 2, "needed": 4 }, "workers": [] });
        assert_eq!(plain_line(&status("gather", 0, 0, waiting)), "waiting for workers: 2 of 4");
        let running = plain_line(&status("run", 4, 25, json!({})));
        assert_eq!(running, "run: 4 workers, step 25, epoch 3 of 24, loss 0.25");
        let ended = plain_line(&status("succeeded", 0, 241, json!({})));
        assert_eq!(ended, "succeeded: step 241, epoch 3 of 24, loss 0.25");
    }
}
