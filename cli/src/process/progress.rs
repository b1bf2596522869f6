//! The progress of a job for the operator: one live line where stderr is a terminal, else a line of the log now and
//! then. Called by the driver's process.
//!
//! Other writers share the terminal: the log, and agents of this machine with their workers' output. Each clears the
//! line on which it begins (see `FreshLine`), so that no rest of the live line stands before its text.

use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskGlance, Driver, Glance};
use elastic_observe::with_short_names;
use elastic_protocol::Time;
use elastic_protocol::messages::{JobPhase, MovedBytes};
use elastic_runtime::{BlockingLane, NodeHandle, OffloadPort};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{sleep, timeout};

use super::step_rate::StepRate;

/// Interval between two updates of the live line.
const LIVE_EVERY: Duration = Duration::from_millis(500);

/// Timeout for clearing the live line.
const CLEARED_WITHIN: Duration = Duration::from_millis(100);

/// Interval between two lines of the log before training has begun, if anything has changed.
const PLAIN_BEFORE_EVERY: Duration = Duration::from_secs(10);

/// Interval between two lines of the log; events have lines of their own.
const PLAIN_EVERY: Duration = Duration::from_secs(60);

/// Shows the progress until the job is over or the driver is gone.
pub(super) async fn show(node: NodeHandle, driver: Addr<Driver>, is_live: bool) {
    let lane = OffloadPort::lane(BlockingLane::TERMINAL);
    let line = is_live.then(live_line);
    let (mut plain, began, mut rate) =
        (PlainLines::new(node.now()), node.now(), StepRate::default());
    while let Ok(glance) = driver.send(AskGlance).await {
        // The end has lines of its own.
        if matches!(glance.phase, JobPhase::Succeeded | JobPhase::Failed) {
            break;
        }
        let ran = node.now() - began;
        rate.handle_step(ran, glance.step);
        let text = || {
            with_short_names(&super::progress_text::line(&glance, rate.per_second(), ran))
                .into_owned()
        };
        match &line {
            Some(line) => {
                let line = line.clone();
                // A terminal that hangs keeps the old line.
                let text = text();
                drop(lane.run("draw", move || line.set_message(text)));
            }
            None if plain.is_due(node.now(), &glance) => tracing::info!("{}", text()),
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
    if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
        line.set_style(style);
    }
    line
}

/// The schedule of the lines of the log.
#[derive(Debug)]
struct PlainLines {
    said_at: Time,
    said: (u64, u32, Option<MovedBytes>),
}

impl PlainLines {
    const fn new(now: Time) -> Self {
        Self { said_at: now, said: (0, 0, None) }
    }

    /// Whether a line is due: after the interval, if training has made progress; sooner while it has not begun.
    fn is_due(&mut self, now: Time, glance: &Glance) -> bool {
        let is_training = glance.phase == JobPhase::Run;
        let interval = if is_training { PLAIN_EVERY } else { PLAIN_BEFORE_EVERY };
        // While training goes on, bytes that are moved beside it are worth no line of their own.
        let moved = glance.moved.filter(|_| !is_training);
        let news = (glance.step, glance.gather.there, moved);
        let is_new = if is_training { news.0 != self.said.0 } else { news != self.said };
        let is_due = now >= self.said_at + interval && is_new;
        if is_due {
            *self = Self { said_at: now, said: news };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::{GatherStatus, ReportedValues};

    use super::*;

    #[test]
    fn a_line_of_the_log_comes_now_and_then_and_only_when_the_job_has_come_further() {
        let at = |seconds: u64| Time::from_ms(seconds * 1000);
        let glance = |phase, step, workers_there| Glance {
            phase,
            generation: 1,
            world_size: 4,
            step,
            resets: 0,
            gather: GatherStatus { there: workers_there, needed: 4 },
            hosts_there: 1,
            hosts_listed: 2,
            last_cause: None,
            awaited: None,
            moved: None,
            reported: ReportedValues::default(),
        };
        let mut lines = PlainLines::new(at(0));
        let mut is_due = |now, glance: &Glance| lines.is_due(at(now), glance);
        let gather = |workers| glance(JobPhase::Gather, 0, workers);
        assert!(!is_due(9, &gather(1)));
        assert!(is_due(10, &gather(1)));
        assert!(!is_due(100, &gather(1)), "nobody has come");
        assert!(is_due(101, &gather(2)));
        let run = |step| glance(JobPhase::Run, step, 4);
        assert!(!is_due(160, &run(10)));
        assert!(is_due(161, &run(10)));
        assert!(!is_due(500, &run(10)), "it stands still");
        assert!(is_due(501, &run(11)));
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
}
