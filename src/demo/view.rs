//! The demo as it is seen: a table that lives where stderr is a terminal, plain lines where it is none.

use std::io::Write as _;
use std::time::Duration;

use elastic_protocol::messages::StatusReport;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::describe_status;

/// Plain lines are at least so many steps apart, unless something else changes.
const STEPS_APART: u64 = 25;

/// Shows the cluster.
pub(crate) struct View {
    table: Option<ProgressBar>,
    shown: (String, u64, u32),
    shown_step: u64,
}

impl View {
    /// Of a terminal, or of a plain stream.
    pub(crate) fn new(is_terminal: bool) -> Self {
        let table = is_terminal.then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}");
            let table = ProgressBar::new_spinner();
            // The template is a literal; if it were wrong, the default would do.
            if let Ok(style) = style {
                table.set_style(style);
            }
            table.enable_steady_tick(Duration::from_millis(100));
            table
        });
        Self { table, shown: (String::new(), 0, 0), shown_step: 0 }
    }

    /// Something happens.
    pub(crate) fn say(&self, text: &str) {
        match &self.table {
            Some(table) => table.println(text),
            // Nobody is left to tell that stderr is closed.
            None => drop(writeln!(anstream::stderr(), "{text}")),
        }
    }

    /// How it stands.
    pub(crate) fn show(&mut self, status: &StatusReport) {
        if let Some(table) = &self.table {
            table.set_message(describe_status(status));
            return;
        }
        let now = (status.phase.clone(), status.generation, status.world_size);
        let first = status.workers.iter().find(|worker| worker.rank == Some(0));
        let (step, note) = first.map_or((0, ""), |worker| (worker.step, worker.note.as_str()));
        if now == self.shown && step < self.shown_step + STEPS_APART {
            return;
        }
        let (phase, generation, world_size) = &now;
        self.say(&format!(
            "{phase}: generation {generation}, {world_size} workers, step {step} {note}"
        ));
        self.shown_step = if now == self.shown { step } else { step.max(self.shown_step) };
        self.shown = now;
    }

    /// No more is shown.
    pub(crate) fn finish(&self) {
        if let Some(table) = &self.table {
            table.finish();
        }
    }
}
