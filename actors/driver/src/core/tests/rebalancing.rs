//! Tests of shards that are dealt anew for slow members (L-4, C-2): the number of shards of each rank, conditions and time
//! of a deal, and the knowledge of a driver's successor.

use elastic_protocol::{ResetCause, WorkerId};

use super::hangs::seconds;
use super::stragglers::{PacedJob, slow_on};
use crate::core::{DriverConfig, EventKind, OnStraggler};

/// Time after which a slow member is named, and the shards are dealt anew.
const DEALT_WITHIN: u64 = 20;
/// Time after which a member that is as fast as the others is known to be.
const FAST_WITHIN: u64 = 20;

const THREE: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

fn nine(config: &mut DriverConfig) {
    config.on_straggler = OnStraggler::Rebalance;
    config.shards = Some(9);
}

/// The number of shards of each rank, as the members deal them.
fn carried(job: &PacedJob) -> Vec<u32> {
    job.cluster.members().iter().map(|worker| job.shards_of(worker)).collect()
}

/// The deals: the numbers of shards before and after.
fn deals(job: &PacedJob) -> Vec<(Vec<u32>, Vec<u32>)> {
    let dealt = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::ShardsRebalanced { counts_before, shard_counts, .. } => {
            Some((counts_before.clone(), shard_counts.clone()))
        }
        _ => None,
    });
    dealt.collect()
}

/// Reasons for which shards were not dealt anew.
fn refusals(job: &PacedJob) -> Vec<&str> {
    let refused = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::NotRebalanced { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    refused.collect()
}

#[test]
fn l_4_a_slow_member_carries_fewer_shards_and_gets_them_back() {
    let mut job = PacedJob::begin(&THREE, nine);
    job.seconds(10, |_| 10);
    assert_eq!(carried(&job), [3, 3, 3]);
    let (members, slow) = (job.cluster.members(), job.cluster.worker("b", 0));
    job.seconds(DEALT_WITHIN, slow_by_shard("b", 20));
    assert_eq!(carried(&job), [4, 2, 3]);
    assert_eq!(job.cluster.members(), members, "nobody has come or left");
    let cause =
        ResetCause::ShardsRebalanced { workers: vec![slow.clone()], shard_counts: vec![4, 2, 3] };
    assert_eq!(job.cluster.resets, std::slice::from_ref(&cause));
    assert!(cause.is_planned());
    assert_eq!(
        cause.to_string(),
        format!("shards are dealt anew for the pace of {slow}: 4, 2, 3 by rank")
    );
    let dealt = job.cluster.stragglers.iter().find_map(|event| match event {
        EventKind::ShardsRebalanced {
            workers, ranks, factors, before_ms, predicted_ms, ..
        } => Some((workers.clone(), ranks.clone(), factors.clone(), *before_ms, *predicted_ms)),
        _ => None,
    });
    let expected = (vec![slow], vec![1], vec![2.0], 62.0, 42.0);
    assert_eq!(dealt, Some(expected));

    job.seconds(60, slow_by_shard("b", 20));
    assert_eq!((carried(&job), deals(&job).len()), (vec![4, 2, 3], 1), "once");
    let effect = job.cluster.stragglers.iter().find_map(|event| match event {
        EventKind::RebalanceTook { before_ms, predicted_ms, after_ms, .. } => {
            Some((*before_ms, *predicted_ms, *after_ms))
        }
        _ => None,
    });
    assert_eq!(effect, Some((62.0, 42.0, 42.0)));
    assert_eq!(job.named().len(), 1, "its host is still slow");
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    let shown: Vec<Option<u32>> = status.workers.iter().map(|worker| worker.shards).collect();
    assert_eq!(shown, [Some(4), Some(2), Some(3)]);
    let text = status.stragglers.first().expect("it is shown").to_string();
    assert!(text.contains("computes 2.0 times as long as its peers: 60.0 ms"), "{text}");
    assert!(text.ends_with("; it carries 2 shards"), "{text}");

    job.seconds(FAST_WITHIN, |_| 10);
    assert_eq!(carried(&job), [3, 3, 3]);
    assert_eq!(deals(&job).len(), 2);
    assert_eq!(job.cluster.resets.len(), 2);
    assert_eq!(refusals(&job), [""; 0]);
}

/// As `slow_on`, with 10 ms a shard elsewhere.
fn slow_by_shard(host: &'static str, slow_ms: u64) -> impl Fn(&WorkerId) -> u64 {
    let of = slow_on(host, 0);
    move |worker| if of(worker) == 0 { slow_ms } else { 10 }
}

#[test]
fn a_member_that_becomes_still_slower_carries_still_fewer_and_one_that_is_hardly_faster_as_many() {
    let mut job = PacedJob::begin(&THREE, nine);
    job.seconds(10, |_| 10);
    job.seconds(60, slow_by_shard("b", 20));
    job.seconds(60, slow_by_shard("b", 60));
    assert_eq!(carried(&job), [4, 1, 4]);
    job.seconds(200, slow_by_shard("b", 55));
    assert_eq!((carried(&job), deals(&job).len()), (vec![4, 1, 4], 2));
}

#[test]
fn shards_are_dealt_anew_only_after_a_cool_down_and_a_few_times_an_hour() {
    let mut job = PacedJob::begin(&THREE, nine);
    job.seconds(10, |_| 10);
    let mut at = Vec::new();
    for _ in 0..3_600 / 40 {
        for slow_ms in [20, 10] {
            for _ in 0..FAST_WITHIN {
                job.second(|worker| slow_by_shard("b", slow_ms)(worker));
                if deals(&job).len() > at.len() {
                    at.push(job.cluster.now);
                }
            }
        }
    }
    assert_eq!(at.len(), 6);
    let pauses: Vec<u64> = at.windows(2).map(|pair| pair[1].since(pair[0]).as_secs()).collect();
    let least = [30, 60, 120, 240, 360];
    assert!(pauses.iter().zip(least).all(|(pause, least)| *pause >= least), "{pauses:?}");
    let bound = "they were dealt anew 6 times within an hour, which is the bound";
    assert!(refusals(&job).contains(&bound), "{:?}", refusals(&job));
}

#[test]
fn without_shards_a_slow_member_is_told_and_why_it_carries_no_fewer() {
    let mut job = PacedJob::begin(&THREE, |config| config.on_straggler = OnStraggler::Rebalance);
    job.seconds(10, |_| 100);
    job.seconds(120, slow_on("b", 300));
    assert_eq!((job.named().len(), deals(&job)), (1, Vec::new()));
    let [reason] = refusals(&job)[..] else { panic!("{:?}", refusals(&job)) };
    assert!(reason.starts_with("the driver was given no --shards"), "{reason}");

    let mut job = PacedJob::begin(&THREE, nine);
    job.carries = false;
    job.seconds(10, |_| 100);
    job.seconds(120, slow_on("b", 300));
    let [reason] = refusals(&job)[..] else { panic!("{:?}", refusals(&job)) };
    assert!(reason.starts_with("its program does not deal its steps by shards"), "{reason}");
    assert!(job.cluster.resets.is_empty());
}

#[test]
fn shards_are_not_dealt_anew_where_steps_would_be_as_long() {
    // Of 3, 3 and 2 shards the last rank may be slower by half: another deal is none the shorter.
    let mut job = PacedJob::begin(&THREE, |config| {
        nine(config);
        config.shards = Some(8);
    });
    job.seconds(10, |_| 10);
    job.seconds(120, slow_by_shard("c", 20));
    assert_eq!((job.named().len(), carried(&job)), (1, vec![3, 3, 2]));
    let [reason] = refusals(&job)[..] else { panic!("{:?}", refusals(&job)) };
    assert!(reason.starts_with("no other deal of 8 shards to 3 ranks"), "{reason}");
}

#[test]
fn who_carries_more_shards_by_an_uneven_deal_is_not_named() {
    let mut job = PacedJob::begin(&THREE, |config| {
        nine(config);
        config.shards = Some(4);
    });
    job.seconds(60, |_| 100);
    assert_eq!((carried(&job), job.cluster.stragglers.len()), (vec![2, 1, 1], 0));
}

#[test]
fn the_last_reset_that_is_allowed_is_not_used_up_for_another_deal() {
    let mut job = PacedJob::begin(&THREE, |config| {
        nine(config);
        config.reset_limit = Some(0);
    });
    job.seconds(10, |_| 10);
    job.seconds(60, slow_by_shard("b", 20));
    assert_eq!((carried(&job), job.cluster.result.is_none()), (vec![3, 3, 3], true));
    assert_eq!(refusals(&job), ["it takes a planned reset, and --reset-limit is 0"]);
}

#[test]
fn a_process_keeps_its_pace_in_later_generations_and_the_next_process_of_its_slot_begins_anew() {
    let mut job = PacedJob::begin(&THREE, nine);
    job.seconds(10, |_| 10);
    job.seconds(40, slow_by_shard("b", 20));
    let other = job.cluster.worker("c", 0);
    job.cluster.kill(&other);
    job.cluster.pass(seconds(1));
    let rank = |job: &PacedJob| {
        let slow = job.cluster.worker("b", 0);
        job.rank_of(&slow) as usize
    };
    job.cluster.pass(seconds(30));
    assert_eq!(job.cluster.members().len(), 3);
    assert_eq!(carried(&job)[rank(&job)], 2, "{:?}", carried(&job));
    let slow = job.cluster.worker("b", 0);
    job.cluster.kill(&slow);
    job.cluster.pass(seconds(30));
    assert_eq!(carried(&job), [3, 3, 3]);
}

#[test]
fn the_next_driver_knows_paces_and_cool_downs() {
    let mut job = PacedJob::begin(&THREE, nine);
    job.seconds(10, |_| 10);
    job.seconds(40, slow_by_shard("b", 20));
    assert_eq!(carried(&job), [4, 2, 3]);
    let stamp = job.cluster.stamp();
    job.cluster.restart_driver();
    job.cluster.come_back(&["a", "b", "c"]);
    job.cluster.pass(seconds(10));
    assert_eq!((job.cluster.stamp(), carried(&job)), (stamp, vec![4, 2, 3]), "it is left alone");
    let began = job.cluster.now;
    let other = job.cluster.worker("c", 0);
    job.cluster.kill(&other);
    job.cluster.pass(seconds(12));
    let rank = job.rank_of(&job.cluster.worker("b", 0)) as usize;
    assert_eq!(carried(&job)[rank], 2, "{:?}", carried(&job));
    // Its host has recovered: the deal of the former driver counts, and the cool-down after it.
    let mut second = 0;
    while carried(&job) != [3, 3, 3] {
        job.seconds(1, |_| 10);
        second += 1;
        assert!(second < 60, "{:?}", job.cluster.stragglers);
    }
    assert!(job.cluster.now.since(began) >= seconds(20), "{second}");
}
