//! How a job stands, for whoever sits before it: one line that lives where stderr is a terminal, and else a line of the
//! log now and then. Called by the driver's process.
//!
//! Others write to the same terminal: the log, and agents of this machine with their workers' output. Each clears
//! the line that it begins on (see `FreshLine`), so that what is left of this one never stands before theirs.

use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskGlance, Driver, Glance};
use elastic_protocol::Time;
use elastic_runtime::NodeHandle;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::sleep;

/// How often the live line is drawn anew.
const LIVE_EVERY: Duration = Duration::from_millis(500);

/// How far lines of the log are apart; events have lines of their own.
const PLAIN_EVERY: Duration = Duration::from_secs(60);

/// Shows it until the driver is gone.
pub(super) async fn show(node: NodeHandle, driver: Addr<Driver>, is_live: bool) {
    let line = is_live.then(live_line);
    let mut plain = PlainLines::new(node.now());
    while let Ok(glance) = driver.send(AskGlance).await {
        match &line {
            Some(line) => line.set_message(text(&glance)),
            None if plain.is_due(node.now(), glance.step) => tracing::info!("{}", text(&glance)),
            None => {}
        }
        sleep(LIVE_EVERY).await;
    }
}

/// Gone without a trace when dropped.
fn live_line() -> ProgressBar {
    let line = ProgressBar::new_spinner();
    // The template is a literal; if it were wrong, the default would do.
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        line.set_style(style);
    }
    line
}

fn text(glance: &Glance) -> String {
    let Glance { phase, generation, world_size, step, resets } = glance;
    format!("{phase}: generation {generation}, {world_size} workers, step {step}, {resets} resets")
}

/// When a line of the log is due.
#[derive(Debug)]
struct PlainLines {
    next_at: Time,
    last_step: u64,
}

impl PlainLines {
    fn new(now: Time) -> Self {
        Self { next_at: now + PLAIN_EVERY, last_step: 0 }
    }

    /// One in a while, if training has come further.
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
    fn it_says_where_training_is() {
        let phase = "run".to_owned();
        let glance = Glance { phase, generation: 3, world_size: 4, step: 120, resets: 2 };
        assert_eq!(text(&glance), "run: generation 3, 4 workers, step 120, 2 resets");
    }
}
