//! Tests of a driver whose process was paused, and that finds deadlines passed as it goes on.

use std::time::Duration;

use super::Cluster;
use super::cluster::{lost, silence};
use super::failures::{forming_with_a_mute_member, two_by_two};

const ELASTIC: Duration = Duration::from_secs(5);

/// Longer than every deadline.
const PAUSE: Duration = Duration::from_secs(3_600);

/// Time after a pause in which no node counts as late: the silence of others is judged within it. 6 s and 2 s.
const PATIENCE: Duration = Duration::from_secs(8);

/// Longer than the delay of a review.
const MOMENT: Duration = Duration::from_millis(50);

fn go_on_after_pause(cluster: &mut Cluster) {
    cluster.now = cluster.now + PAUSE;
    cluster.core.handle_timeout(cluster.now);
    cluster.settle();
}

#[test]
fn g_5_nobody_is_late_for_a_generation_that_formed_during_the_pause() {
    let (mut cluster, late) = forming_with_a_mute_member();
    go_on_after_pause(&mut cluster);
    assert_eq!(cluster.stops_of(&late), 0, "its vote may be unread");
    cluster.pass(PATIENCE - MOMENT);
    assert_eq!(cluster.stops_of(&late), 0);
    cluster.pass(MOMENT);
    assert_eq!(cluster.stops_of(&late), 1, "it has not voted");
}

#[test]
fn who_is_late_for_an_interrupt_is_evicted_once_however_many_deadlines_passed_during_the_pause() {
    let mut cluster = two_by_two(|config| config.deadlines.elastic = ELASTIC);
    let mute = cluster.worker("a", 1);
    cluster.deaf.insert(mute.clone());
    cluster.add_host("c", 1);
    cluster.pass(Duration::from_secs(1));
    cluster.hold_verdicts = true;
    // The deadlines of its forming and of its sync have passed, too.
    go_on_after_pause(&mut cluster);
    assert_eq!(cluster.stops_of(&mute), 0);
    cluster.pass(PATIENCE);
    assert_eq!(cluster.stops_of(&mute), 1);
}

#[test]
fn g_5_a_worker_whose_session_was_lost_may_come_back_although_its_grace_period_passed_in_the_pause()
{
    let mut cluster = two_by_two(|_| {});
    let first = cluster.worker("a", 0);
    cluster.worker_link(&first, lost());
    go_on_after_pause(&mut cluster);
    cluster.pass(PATIENCE - MOMENT);
    assert_eq!(cluster.stops_of(&first), 0, "its attach may be unread");
    cluster.pass(2 * MOMENT);
    assert_eq!(cluster.stops_of(&first), 1);
}

#[test]
fn g_10_a_job_whose_elastic_timeout_passed_during_the_pause_waits_for_those_who_are_back() {
    let mut cluster = two_by_two(|config| {
        config.min_np = Some(4);
        config.deadlines.elastic = ELASTIC;
    });
    let agent = cluster.agent("b");
    cluster.core.handle_link(cluster.now, &agent, &silence(2000));
    let first = cluster.worker("a", 0);
    cluster.kill(&first);
    go_on_after_pause(&mut cluster);
    assert_eq!(cluster.result, None);
    cluster.pass(PATIENCE - MOMENT);
    assert_eq!(cluster.result, None);
    cluster.pass(Duration::from_secs(30));
    let reason = cluster.result.expect("the job has ended").reason;
    assert!(reason.starts_with("the elastic timeout of 5 s passed"), "{reason}");
}
