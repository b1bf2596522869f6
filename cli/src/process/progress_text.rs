//! The job in one line: the text of the driver's own line, with a bar for work that has an end. Without I/O; called by
//! `progress`, and its bars by the commands.

use std::time::Duration;

use elastic_driver::Glance;
use elastic_protocol::counted;
use elastic_protocol::messages::{GatherStatus, JobPhase, MovedBytes};

/// Width of a bar, in characters.
const BAR_WIDTH: u64 = 16;

/// Most reported numbers that the line has room for.
const NUMBERS_SHOWN_MAX: usize = 2;

/// A bar that is filled as far as the work is done.
pub(crate) fn bar(done: u64, total: u64) -> String {
    let filled = match total {
        0 => 0,
        total => (u128::from(done.min(total)) * u128::from(BAR_WIDTH) / u128::from(total)) as u64,
    };
    let cells = |count: u64, cell: &str| cell.repeat(usize::try_from(count).unwrap_or_default());
    format!("[{}{}]", cells(filled, "█"), cells(BAR_WIDTH - filled, "░"))
}

/// Bytes that are moved, with a bar.
pub(crate) fn moved_text(moved: &MovedBytes) -> String {
    const MIB: f64 = (1_u64 << 20) as f64;
    let MovedBytes { work, done, total } = moved;
    let mib = |bytes: u64| bytes as f64 / MIB;
    format!("{work} {} {:.0} of {:.0} MiB", bar(*done, *total), mib(*done), mib(*total))
}

/// The workers that are there for the next generation, with a bar.
pub(crate) fn gather_text(gather: &GatherStatus) -> String {
    let GatherStatus { there, needed } = gather;
    format!("{there} of {needed} {}", bar(u64::from(*there), u64::from(*needed)))
}

/// The line. `rate` is steps a second, `ran` how long the driver has been there.
pub(super) fn line(glance: &Glance, rate: Option<f64>, ran: Duration) -> String {
    let Glance { phase, generation, world_size, step, resets, .. } = glance;
    let reset_words = match (resets, &glance.last_cause) {
        (0, _) => String::new(),
        (resets, Some(cause)) => format!(", {} (the last: {cause})", counted(*resets, "reset")),
        (resets, None) => format!(", {}", counted(*resets, "reset")),
    };
    let workers = counted(u64::from(*world_size), "worker");
    let moved = glance.moved.as_ref().map(|moved| format!(", {}", moved_text(moved)));
    let moved = moved.unwrap_or_default();
    match phase {
        JobPhase::Gather => {
            let Glance { gather, hosts_there, hosts_listed, awaited, .. } = glance;
            let workers = gather_text(gather);
            let awaited = awaited.as_ref().map_or_else(String::new, |whom| format!(", for {whom}"));
            // If hosts come by joining, none is known before.
            let hosts = match hosts_listed {
                0 => String::new(),
                listed => format!(", hosts: {hosts_there} of {listed}"),
            };
            format!("waiting for workers: {workers}{hosts}{awaited}{reset_words}")
        }
        JobPhase::Form | JobPhase::Sync => {
            format!("starting: generation {generation}, {workers}{moved}{reset_words}")
        }
        JobPhase::Run => {
            let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1} steps/s"));
            let numbers = glance.reported.iter().take(NUMBERS_SHOWN_MAX);
            let numbers: String =
                numbers.map(|(name, value)| format!(", {name} {}", rounded(value))).collect();
            let clock = clock(ran);
            format!(
                "run: generation {generation}, {workers}, step {step}{rate}{numbers}, {clock}{moved}{reset_words}"
            )
        }
        JobPhase::Succeeded | JobPhase::Failed => {
            format!("{phase}: generation {generation}, step {step}{reset_words}")
        }
    }
}

/// A number with the digits that matter to a person.
fn rounded(value: f64) -> String {
    if value == 0.0 || (0.001..1e6).contains(&value.abs()) {
        format!("{value:.4}")
    } else {
        format!("{value:.2e}")
    }
}

/// A time as `m:ss`, or `h:mm:ss`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3_600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::{BulkWork, ReportedValues};

    use super::*;

    fn glance(phase: JobPhase, resets: u64) -> Glance {
        Glance {
            phase,
            generation: 3,
            world_size: 4,
            step: 120,
            resets,
            gather: GatherStatus { there: 2, needed: 3 },
            hosts_there: 1,
            hosts_listed: 2,
            last_cause: (resets > 0).then(|| "a[1]#4 ended: signal 9 (SIGKILL)".to_owned()),
            awaited: None,
            moved: None,
            reported: ReportedValues::default(),
        }
    }

    fn said(glance: &Glance) -> String {
        line(glance, None, Duration::from_secs(65))
    }

    #[test]
    fn it_says_where_training_is() {
        let mut run = glance(JobPhase::Run, 2);
        run.reported.set("loss", 0.031_25).expect("a number");
        assert_eq!(
            line(&run, Some(16.44), Duration::from_secs(3_725)),
            "run: generation 3, 4 workers, step 120, 16.4 steps/s, loss 0.0312, 1:02:05, 2 resets (the last: a[1]#4 \
             ended: signal 9 (SIGKILL))"
        );
        assert_eq!(said(&glance(JobPhase::Run, 0)), "run: generation 3, 4 workers, step 120, 1:05");
        assert_eq!(said(&glance(JobPhase::Form, 0)), "starting: generation 3, 4 workers");
    }

    #[test]
    fn the_gather_says_how_many_of_how_many_and_who_is_awaited() {
        let mut waiting = glance(JobPhase::Gather, 0);
        waiting.awaited = Some("host b (no agent)".to_owned());
        assert_eq!(
            said(&waiting),
            "waiting for workers: 2 of 3 [██████████░░░░░░], hosts: 1 of 2, for host b (no agent)"
        );
    }

    #[test]
    fn state_and_checkpoints_that_are_moved_have_a_bar() {
        let (done, total) = (3 << 20, 12 << 20);
        let mut sync = glance(JobPhase::Sync, 0);
        sync.moved = Some(MovedBytes { work: BulkWork::TakesState, done, total });
        assert_eq!(
            said(&sync),
            "starting: generation 3, 4 workers, takes the state over [████░░░░░░░░░░░░] 3 of 12 MiB"
        );
        let mut run = glance(JobPhase::Run, 0);
        run.moved = Some(MovedBytes { work: BulkWork::SavesCheckpoint, done: total, total });
        let text = said(&run);
        assert!(text.ends_with("saves a checkpoint [████████████████] 12 of 12 MiB"), "{text}");
        assert_eq!(bar(7, 0), "[░░░░░░░░░░░░░░░░]");
    }
}
