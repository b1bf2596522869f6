//! The progress of a job for the operator: one live line where stderr is a terminal, else a line of the log now and
//! then. Called by the driver's process.
//!
//! Other writers share the terminal: the log, and agents of this machine with their workers' output. Each clears the
//! line on which it begins (see `FreshLine`), so that no rest of the live line stands before its text.

use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskGlance, Driver, Glance};
use elastic_protocol::messages::JobPhase;
use elastic_protocol::{Time, counted};
use elastic_runtime::{BlockingLane, NodeHandle, OffloadPort};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{sleep, timeout};

/// Interval between two updates of the live line.
const LIVE_EVERY: Duration = Duration::from_millis(500);

/// Timeout for clearing the live line.
const CLEARED_WITHIN: Duration = Duration::from_millis(100);

/// Interval between two lines of the log; events have lines of their own.
const PLAIN_EVERY: Duration = Duration::from_secs(60);

/// Shows the progress until the job is over or the driver is gone.
pub(super) async fn show(node: NodeHandle, driver: Addr<Driver>, is_live: bool) {
    let lane = OffloadPort::lane(BlockingLane::TERMINAL);
    let line = is_live.then(live_line);
    let mut plain = PlainLines::new(node.now());
    while let Ok(glance) = driver.send(AskGlance).await {
        // The end has lines of its own.
        if matches!(glance.phase, JobPhase::Succeeded | JobPhase::Failed) {
            break;
        }
        match &line {
            Some(line) => {
                let line = line.clone();
                // A terminal that hangs keeps the old line.
                drop(lane.run("draw", move || line.set_message(text(&glance))));
            }
            None if plain.is_due(node.now(), glance.step) => tracing::info!("{}", text(&glance)),
            None => {}
        }
        sleep(LIVE_EVERY).await;
    }
    if let Some(line) = line {
        clear(&lane, move || line.finish_and_clear()).await;
    }
}

/// Clears the live line. A terminal that hangs keeps the old line.
async fn clear(lane: &OffloadPort, clear: impl FnOnce() + Send + 'static) {
    drop(timeout(CLEARED_WITHIN, lane.run("clear", clear)).await);
}

/// The live line, which clears itself when dropped.
fn live_line() -> ProgressBar {
    let line = ProgressBar::new_spinner();
    // The template is a literal; if it were wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        line.set_style(style);
    }
    line
}

fn text(glance: &Glance) -> String {
    let Glance { phase, generation, world_size, step, resets, .. } = glance;
    let resets =
        if *resets == 0 { String::new() } else { format!(", {}", counted(*resets, "reset")) };
    let workers = counted(u64::from(*world_size), "worker");
    match phase {
        JobPhase::Gather => {
            let Glance { workers_there, workers_needed, .. } = glance;
            format!("waiting for workers: {workers_there} of {workers_needed}{resets}")
        }
        JobPhase::Form | JobPhase::Sync => {
            format!("starting: generation {generation}, {workers}{resets}")
        }
        JobPhase::Run => format!("run: generation {generation}, {workers}, step {step}{resets}"),
        JobPhase::Succeeded | JobPhase::Failed => {
            format!("{phase}: generation {generation}, step {step}{resets}")
        }
    }
}

/// The schedule of the lines of the log.
#[derive(Debug)]
struct PlainLines {
    next_at: Time,
    last_step: u64,
}

impl PlainLines {
    fn new(now: Time) -> Self {
        Self { next_at: now + PLAIN_EVERY, last_step: 0 }
    }

    /// Whether a line is due: after the interval, if training has made progress.
    fn is_due(&mut self, now: Time, step: u64) -> bool {
        let is_due = now >= self.next_at && step != self.last_step;
        if is_due {
            *self = Self { next_at: now + PLAIN_EVERY, last_step: step };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_comes_now_and_then_and_only_when_training_has_come_further() {
        let at = |seconds: u64| Time::from_ms(seconds * 1000);
        let mut lines = PlainLines::new(at(0));
        assert!(!lines.is_due(at(59), 10));
        assert!(lines.is_due(at(60), 10));
        assert!(!lines.is_due(at(119), 20));
        assert!(!lines.is_due(at(500), 10), "it stands still");
        assert!(lines.is_due(at(501), 11));
    }

    #[test]
    fn g_9_a_terminal_that_hangs_does_not_hold_up_the_end() {
        let (terminal_answers, answered) = std::sync::mpsc::channel::<()>();
        elastic_runtime::system::run(async move {
            let lane = OffloadPort::lane(BlockingLane::TERMINAL);
            clear(&lane, move || {
                let _ = answered.recv();
            })
            .await;
            assert!(terminal_answers.send(()).is_ok(), "the line is still being cleared");
        })
        .expect("a runtime");
    }

    #[test]
    fn it_says_where_training_is() {
        let glance = |phase, resets| Glance {
            phase,
            generation: 3,
            world_size: 4,
            step: 120,
            resets,
            workers_there: 2,
            workers_needed: 3,
        };
        let said = |phase, resets| text(&glance(phase, resets));
        assert_eq!(said(JobPhase::Run, 2), "run: generation 3, 4 workers, step 120, 2 resets");
        assert_eq!(said(JobPhase::Run, 0), "run: generation 3, 4 workers, step 120");
        assert_eq!(said(JobPhase::Gather, 1), "waiting for workers: 2 of 3, 1 reset");
        assert_eq!(said(JobPhase::Form, 0), "starting: generation 3, 4 workers");
    }
}
