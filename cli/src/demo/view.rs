//! The display of the demo: a live table where stderr is a terminal, else plain lines. Used by `demo`.

use elastic_protocol::counted;
use std::io::Write as _;
use std::time::Duration;

use elastic_protocol::messages::{JobPhase, StatusReport};
use indicatif::{ProgressBar, ProgressStyle};

use crate::command_line::{describe_status, program_words};

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
            table.set_message(describe_status(status));
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
        self.say(&format!("{phase}: generation {generation}, {workers}, step {step} {words}"));
        self.shown_step = if Some(now) == self.shown { step } else { step.max(self.shown_step) };
        self.shown = Some(now);
    }

    /// Ends the live table.
    pub(crate) fn finish(&self) {
        if let Some(table) = &self.table {
            table.finish();
        }
    }
}
