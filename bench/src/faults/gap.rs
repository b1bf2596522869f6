//! The longest time without a committed step, from the records of the workers. Used by `faults`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::FaultsJob;
use crate::monotonic::now_ns;
use crate::process::pause;
use crate::record::CommitRecord;

/// Least time for which a job is observed: a fault may show only after a deadline, such as that of a silent host.
pub(super) const WATCHED: Duration = Duration::from_secs(6);

/// Time since the last step within which a job counts as training.
const FRESH: Duration = Duration::from_millis(1_000);

/// Interval between reads of the records.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The times of the steps that all members of their generation committed, in order.
fn commits(records: &[CommitRecord]) -> Vec<u64> {
    let mut steps: BTreeMap<(u64, u64), (u32, u64)> = BTreeMap::new();
    for record in records {
        let entry = steps.entry((record.generation, record.step)).or_default();
        *entry = (entry.0 + 1, entry.1.max(record.at_ns));
    }
    let worlds: BTreeMap<u64, u32> =
        records.iter().map(|record| (record.generation, record.world_size)).collect();
    let whole = steps.iter().filter(|((generation, _), (ranks, _))| worlds[generation] == *ranks);
    let mut times: Vec<u64> = whole.map(|(_, (_, at_ns))| *at_ns).collect();
    times.sort_unstable();
    times
}

/// The longest time without a commit that ended after `struck_ns`, counted from then on.
pub(super) fn longest_gap_ns(commits: &[u64], struck_ns: u64) -> Option<u64> {
    let after = commits.iter().position(|at| *at > struck_ns)?;
    let mut last = struck_ns;
    commits[after..]
        .iter()
        .map(|at| {
            let gap = at - last;
            last = *at;
            gap
        })
        .max()
}

/// Watches a job for `watched`, and then on until it trains. The longest standstill in milliseconds; none if it did not
/// train again within `patience`.
pub(super) fn observe(
    job: &mut FaultsJob,
    struck_ns: u64,
    watched: Duration,
    patience: Duration,
) -> anyhow::Result<Option<f64>> {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    loop {
        pause(LOOK_EVERY);
        job.tend()?;
        let (now, times) = (now_ns()?, commits(&job.records()));
        let is_fresh = times.last().is_some_and(|at| *at > struck_ns && at + ns(FRESH) > now);
        if now > struck_ns + ns(watched) && is_fresh {
            return Ok(longest_gap_ns(&times, struck_ns).map(|gap| gap as f64 / 1e6));
        }
        if now > struck_ns + ns(watched + patience) {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at_ns: u64, generation: u64, step: u64, world_size: u32, rank: u32) -> CommitRecord {
        CommitRecord { at_ns, generation, step, world_size, rank }
    }

    #[test]
    fn a_step_counts_once_all_members_have_committed_it() {
        let records = [
            record(10, 1, 1, 2, 0),
            record(12, 1, 1, 2, 1),
            record(20, 1, 2, 2, 0),
            record(50, 2, 2, 1, 0),
        ];
        assert_eq!(
            commits(&records),
            [12, 50],
            "step 2 of generation 1 was not committed by rank 1"
        );
    }

    #[test]
    fn the_longest_gap_begins_with_the_fault_or_with_a_step_behind_it() {
        assert_eq!(longest_gap_ns(&[10, 20, 90, 100], 15), Some(70));
        assert_eq!(longest_gap_ns(&[10, 20, 90, 100], 30), Some(60));
        assert_eq!(longest_gap_ns(&[10, 20], 30), None);
    }
}
