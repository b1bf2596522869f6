//! Finds members that have not entered the collective in which all others wait, by the counts of torch's flight recorder.
//! Called by the comparison of members.

use std::time::Duration;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Time, WorkerId};

use super::{ALONE_FACTOR, Grounds, Suspect, WatchedMember};

/// The members that are behind: they have entered fewer collectives than the others, wait in none themselves, and no count
/// has changed for `limit`. A member that works must be behind for longer: it may evaluate, or write a checkpoint.
///
/// A comparison needs the recorder of each member, and fewer members behind than not (of two, one). It finds nobody if
///
/// - the counts of the others differ: sends and receives count too, and in a pipeline each stage has its own number of them;
/// - the member that is behind waits in a collective itself: the last data may be lost on the way to it, while the others have
///   theirs and are in the next one.
pub(super) fn not_entered(
    now: Time,
    members: &[(&WorkerId, &WatchedMember)],
    limit: Duration,
) -> Vec<Suspect> {
    let counts: Option<Vec<u64>> =
        members.iter().map(|(_, it)| Some(it.sight.collectives?.entered)).collect();
    let counts = counts.filter(|_| !is_planted(Bug::RecorderIgnored)).unwrap_or_default();
    let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) else {
        return Vec::new();
    };
    let with = |count: &u64| counts.iter().filter(|it| *it == count).count();
    let others = with(most);
    let are_clear = least < most && with(least) + others == counts.len();
    let is_minority = with(least) < others || counts.len() == 2;
    let stand_since = members.iter().map(|(_, member)| member.collectives_at).max().unwrap_or(now);
    if !are_clear || !is_minority {
        return Vec::new();
    }
    let behind = members.iter().filter(|(_, it)| {
        it.sight.collectives.is_some_and(|it| it.entered == *least && it.completed >= it.entered)
    });
    let suspect = |(worker, member): &(&WorkerId, &WatchedMember)| {
        let (since, is_active) = (stand_since, member.is_active);
        let lasts = now.since(since);
        let is_long = match is_active {
            true => lasts >= limit * ALONE_FACTOR,
            false => lasts >= limit && now.since(member.active_at) >= limit,
        };
        let grounds = Grounds::NotEntered { others, counts: (*least, *most), is_active };
        is_long.then(|| Suspect { worker: (*worker).clone(), grounds, since })
    };
    behind.filter_map(suspect).collect()
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::{ProcessActivity, ProcessSight, RecordedCollectives};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Number of members found behind at the time `after` from `entered_at`. Both compute. The first has entered fewer
    /// collectives, and the other entered its last one at `entered_at`.
    fn behind_since(entered_at: Time, after: Duration) -> usize {
        let member = |entered, at| {
            let collectives = Some(RecordedCollectives { entered, completed: entered });
            let sight = ProcessSight::new(ProcessActivity::Working, 200);
            WatchedMember::new(at, ProcessSight { collectives, ..sight })
        };
        let (first, other) = (member(7, Time::from_ms(1)), member(8, entered_at));
        let workers: Vec<WorkerId> =
            ["a[0]#1", "b[0]#2"].map(|it| it.parse().expect("a worker")).into();
        let members = [(&workers[0], &first), (&workers[1], &other)];
        not_entered(entered_at + after, &members, LIMIT).len()
    }

    fn behind(after: Duration) -> usize {
        behind_since(Time::from_ms(1), after)
    }

    #[test]
    fn the_limit_begins_as_the_last_of_them_has_entered_its_collective() {
        let (limit, later) = (LIMIT * ALONE_FACTOR, Time::from_ms(90_000));
        assert_eq!(behind_since(later, limit - Duration::from_millis(1)), 0);
        assert_eq!(behind_since(later, limit), 1);
    }

    #[test]
    fn a_member_that_computes_is_behind_once_its_longer_limit_has_passed() {
        let limit = LIMIT * ALONE_FACTOR;
        assert_eq!(behind(limit - Duration::from_millis(1)), 0);
        assert_eq!(behind(limit), 1);
    }
}
