//! Tests of hosts that do not reach each other while the driver hears both (G-9): one of them is left out.

use std::time::Duration;

use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};
use elastic_protocol::Stamp;
use elastic_protocol::messages::{AgentToDriver, LaneStatus, UnreachableHost, WorkerToDriver};

use super::cluster::{Cluster, host};
use crate::core::DriverConfig;

fn of(hosts: &[&str], min_np: u32) -> Cluster {
    with(hosts, |config| config.min_np = Some(min_np))
}

fn with(hosts: &[&str], change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(change);
    for name in hosts {
        cluster.add_host(name, 2);
    }
    cluster.pass(Duration::from_secs(2));
    // Drops the sizes of generations formed while the hosts joined.
    cluster.sizes.drain(..cluster.sizes.len() - 1);
    cluster
}

impl Cluster {
    /// Breaks the generation between these hosts: the first worker of `reporter` cannot reach that of `peer`.
    fn break_between(&mut self, reporter: &str, peer: &str) {
        let (reporter, peer) = (self.worker(reporter, 0), self.worker(peer, 0));
        self.accuse(&reporter, &peer);
        self.settle();
        self.pass(Duration::from_secs(1));
    }
}

#[test]
fn g_9_generations_that_break_between_two_hosts_go_on_without_the_younger_one() {
    let mut cluster = of(&["a", "b", "c"], 2);
    assert_eq!(cluster.sizes, [6]);
    cluster.break_between("c", "b");
    cluster.break_between("b", "c");
    assert_eq!(cluster.sizes, [6, 6, 6], "twice may be chance");
    assert!(cluster.failed_hosts.is_empty());
    cluster.break_between("c", "b");
    assert_eq!(cluster.failed_hosts, [host("c")]);
    assert_eq!(cluster.sizes, [6, 6, 6, 4]);
}

#[test]
fn g_9_hosts_that_are_no_longer_listed_and_train_on_are_parted_too() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let members = cluster.members();
    let blacklisted =
        HostEntry { name: host("c"), slots: 0, state: HostState::Blacklisted { until: None } };
    for unlisted in [Vec::new(), vec![blacklisted]] {
        let snapshot = HostsSnapshot { unlisted, ..HostsSnapshot::default() };
        cluster.core.handle_hosts(cluster.now, snapshot);
        cluster.settle();
    }
    let stopped: Vec<_> = cluster.stops.iter().map(|(worker, _)| worker.host.clone()).collect();
    assert_eq!(members.len(), 6);
    assert_eq!(stopped, [host("c"), host("c")], "its workers stop at once");
}

#[test]
fn g_9_two_hosts_whose_generation_broke_and_whose_next_one_does_not_form_are_parted_at_once() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let cut_off = cluster.worker("c", 0);
    cluster.unconnected.insert(cut_off);
    cluster.break_between("c", "b");
    assert!(cluster.failed_hosts.is_empty(), "a path may fail once");
    cluster.break_between("c", "b");
    assert_eq!(cluster.failed_hosts, [host("c")]);
    assert_eq!(cluster.sizes, [6, 4]);
}

/// A cluster whose host c is to be left out, which the host manager has not done yet, and the stamp that broke last.
fn to_be_left_out() -> (Cluster, Stamp) {
    let mut cluster = of(&["a", "b", "c"], 2);
    cluster.host_manager_is_slow = true;
    let cut_off = cluster.worker("c", 0);
    cluster.unconnected.insert(cut_off);
    cluster.break_between("c", "b");
    let broken = cluster.stamp();
    cluster.break_between("c", "b");
    (cluster, broken)
}

#[test]
fn nothing_is_formed_with_a_host_that_is_to_be_left_out_until_the_host_manager_has_done_so() {
    let (mut cluster, broken) = to_be_left_out();
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.failed_hosts, [host("c")]);
    assert_eq!(cluster.stamp(), broken, "c is still listed");
    cluster.blacklist("c");
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.failed_hosts, [host("c")], "it was named once");
    assert_eq!(cluster.sizes, [6, 4]);
}

#[test]
fn a_host_that_is_to_be_left_out_is_awaited_however_the_other_hosts_change() {
    let (mut cluster, broken) = to_be_left_out();
    assert_eq!(cluster.failed_hosts, [host("c")]);
    cluster.add_host("d", 2);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.stamp(), broken, "c is still listed");
}

#[test]
fn g_10_a_host_that_is_left_out_after_the_elastic_timeout_does_not_end_the_job() {
    let mut cluster = with(&["a", "b", "c"], |config| {
        config.min_np = Some(2);
        config.deadlines.elastic = Duration::from_secs(3);
    });
    cluster.host_manager_is_slow = true;
    // From now on the pauses between generations are longer than the elastic timeout.
    cluster.fail_always(Duration::from_secs(25));
    while cluster.failed_hosts.is_empty() && cluster.result.is_none() {
        if cluster.active() == 6 {
            let (reporter, peer) = (cluster.worker("c", 0), cluster.worker("b", 0));
            cluster.accuse(&reporter, &peer);
            cluster.settle();
        }
        cluster.pass(Duration::from_millis(10));
    }
    cluster.pass(Duration::from_millis(100));
    assert_eq!(cluster.result, None, "it waits for the host manager, not for workers");
    cluster.blacklist("c");
    cluster.pass(Duration::from_secs(2));
    assert_eq!((cluster.result, cluster.sizes.last()), (None, Some(&4)));
}

#[test]
fn who_quarrels_with_most_is_left_out() {
    let mut cluster = of(&["a", "b", "c", "d"], 2);
    for _ in 0..3 {
        let (cut_off, others) = (cluster.worker("b", 0), ["a", "c", "d"]);
        for other in others {
            let reporter = cluster.worker(other, 0);
            cluster.accuse(&reporter, &cut_off);
        }
        cluster.settle();
        cluster.pass(Duration::from_secs(1));
    }
    assert_eq!(cluster.failed_hosts, [host("b")]);
    assert_eq!(cluster.sizes.last(), Some(&6));
}

#[test]
fn g_8_a_host_that_reaches_nobody_is_left_out_and_not_the_one_whose_path_to_it_broke_most_often() {
    let mut cluster = of(&["a", "b", "c", "d"], 2);
    cluster.break_between("d", "a");
    let cut_off = cluster.worker("a", 0);
    for other in ["b", "c", "d"] {
        let reporter = cluster.worker(other, 0);
        cluster.accuse(&reporter, &cut_off);
    }
    cluster.settle();
    cluster.pass(Duration::from_secs(1));
    assert!(cluster.failed_hosts.is_empty());
    cluster.break_between("d", "a");
    assert_eq!(cluster.failed_hosts, [host("a")]);
    assert_eq!(cluster.sizes.last(), Some(&6));
}

#[test]
fn who_only_passes_a_report_on_is_no_witness_and_its_host_has_no_part_in_the_quarrel() {
    let mut cluster = of(&["a", "b", "c", "d"], 2);
    for _ in 0..3 {
        let worker = |name: &str| cluster.worker(name, 0);
        let (one, two, three, four) = (worker("a"), worker("b"), worker("c"), worker("d"));
        // The last one learns it from a member that was told itself, and reports it before that member does.
        cluster.pass_on(&four, &three, &two);
        cluster.pass_on(&three, &one, &two);
        cluster.accuse(&one, &two);
        cluster.settle();
        cluster.pass(Duration::from_secs(1));
        let told = std::mem::take(&mut cluster.unreachable);
        let paths: Vec<_> = told.iter().map(|it| (it.from.as_str(), it.to.as_str())).collect();
        assert_eq!(paths, [("a", "b")]);
    }
    assert_eq!(cluster.failed_hosts, [host("b")]);
}

#[test]
fn a_witness_whose_own_report_does_not_come_is_known_by_those_who_pass_it_on() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let worker = |name: &str| cluster.worker(name, 0);
    let (one, two, three) = (worker("a"), worker("b"), worker("c"));
    cluster.pass_on(&three, &one, &two);
    cluster.settle();
    let told = &cluster.unreachable;
    let paths: Vec<_> = told.iter().map(|it| (it.from.as_str(), it.to.as_str())).collect();
    assert_eq!(paths, [("a", "b")]);
}

/// Breaks a generation before it has formed: the workers of `apart` do not reach each other, and the first of `other`
/// waits for them.
fn part_workers_of(cluster: &mut Cluster, apart: &str, other: &str) {
    let (one, two) = (cluster.worker(apart, 0), cluster.worker(apart, 1));
    let reporter = cluster.worker(other, 0);
    cluster.accuse(&reporter, &one);
    cluster.accuse(&two, &one);
    cluster.settle();
    cluster.pass(Duration::from_secs(1));
}

#[test]
fn g_9_a_host_whose_workers_do_not_reach_each_other_is_left_out_and_not_those_who_wait_for_them() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let cut_off = cluster.worker("b", 0);
    cluster.unconnected.insert(cut_off);
    part_workers_of(&mut cluster, "b", "c");
    assert!(cluster.failed_hosts.is_empty(), "it had formed");
    part_workers_of(&mut cluster, "b", "c");
    assert!(cluster.failed_hosts.is_empty(), "forming may fail once");
    part_workers_of(&mut cluster, "b", "c");
    assert_eq!(cluster.failed_hosts, [host("b")]);
    assert_eq!(cluster.sizes, [6, 4]);
}

#[test]
fn what_workers_of_one_host_report_of_each_other_while_they_train_is_no_quarrel() {
    let mut cluster = of(&["a", "b"], 2);
    for _ in 0..4 {
        let (one, two) = (cluster.worker("b", 0), cluster.worker("b", 1));
        cluster.accuse(&two, &one);
        cluster.settle();
        cluster.pass(Duration::from_secs(1));
    }
    assert!(cluster.failed_hosts.is_empty());
    assert_eq!(cluster.sizes, [4; 5]);
}

#[test]
fn a_host_that_was_left_out_is_tried_once_more_when_it_is_back() {
    let mut cluster = of(&["a", "b", "c"], 2);
    for _ in 0..3 {
        cluster.break_between("c", "b");
    }
    assert_eq!(cluster.sizes, [6, 6, 6, 4]);
    for entry in &mut cluster.hosts {
        entry.state = HostState::Listed;
    }
    cluster.list_hosts();
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.sizes.last(), Some(&6));
    cluster.break_between("b", "c");
    assert_eq!(cluster.failed_hosts, [host("c"), host("c")]);
    assert_eq!(cluster.sizes.last(), Some(&4));
}

#[test]
fn breaks_between_which_training_gets_on_are_not_counted_together() {
    let mut cluster = of(&["a", "b"], 2);
    for _ in 0..5 {
        cluster.train(3);
        cluster.break_between("b", "a");
    }
    assert!(cluster.failed_hosts.is_empty());
    assert_eq!(cluster.sizes, [4; 6]);
}

#[test]
fn a_peer_that_turns_out_to_be_dead_is_no_quarrel() {
    let mut cluster = of(&["a", "b"], 2);
    for _ in 0..3 {
        let (reporter, victim) = (cluster.worker("a", 0), cluster.worker("b", 0));
        cluster.deaf.insert(victim.clone());
        cluster.accuse(&reporter, &victim);
        cluster.settle();
        cluster.kill(&victim);
        cluster.pass(Duration::from_secs(40));
    }
    assert!(cluster.failed_hosts.is_empty());
}

#[test]
fn nobody_is_left_out_whom_the_job_needs() {
    let mut cluster = of(&["a", "b"], 4);
    for _ in 0..6 {
        cluster.break_between("b", "a");
    }
    assert!(cluster.failed_hosts.is_empty());
    assert_eq!(cluster.sizes, [4; 7], "it tries again for as long as the limits let it");
}

#[test]
fn s_3_who_does_not_reach_whom_is_in_the_status_until_both_train_together() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let told = |cluster: &Cluster| {
        let status = cluster.core.status(cluster.now, &|_| String::new());
        let pair =
            |it: &UnreachableHost| format!("{}>{} {} {}", it.from, it.to, it.breaks, it.error);
        status.unreachable.iter().map(pair).collect::<Vec<_>>()
    };
    cluster.break_between("c", "b");
    assert_eq!(told(&cluster), ["c>b 1 no route to it"]);
    cluster.break_between("b", "c");
    assert_eq!(told(&cluster), ["b>c 2 no route to it", "c>b 2 no route to it"]);
    let events: Vec<_> = cluster
        .unreachable
        .iter()
        .map(|it| (it.from.as_str(), it.to.as_str(), it.breaks))
        .collect();
    assert_eq!(events, [("c", "b", 1), ("b", "c", 2), ("c", "b", 2)]);
    let member = cluster.worker("a", 0);
    cluster.say_step(&member, 3);
    assert_eq!(told(&cluster), [""; 0], "they reach each other again");
}

#[test]
fn s_2_a_worker_s_warnings_are_passed_on_with_its_name_and_within_their_bounds() {
    let mut cluster = of(&["a", "b"], 2);
    let worker = cluster.worker("b", 0);
    cluster.say(&worker, WorkerToDriver::Warning { text: "the port is flooded".to_owned() });
    cluster.settle();
    assert_eq!(cluster.warnings, [format!("{worker}: the port is flooded")]);
    for _ in 0..WorkerToDriver::WARNINGS_MAX * 2 {
        let text = "x".repeat(1 << 20);
        cluster.say(&worker, WorkerToDriver::Warning { text });
    }
    cluster.settle();
    assert_eq!(cluster.warnings.len(), WorkerToDriver::WARNINGS_MAX);
    assert!(cluster.warnings.iter().all(|text| text.len() < 1_000));
}

#[test]
fn a_dead_peer_is_not_called_unreachable() {
    let mut cluster = of(&["a", "b"], 2);
    let (reporter, victim) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.accuse(&reporter, &victim);
    cluster.kill(&victim);
    cluster.pass(Duration::from_secs(40));
    assert_eq!(cluster.unreachable, []);
}

#[test]
fn s_6_a_lane_of_an_agent_that_hangs_is_shown_with_its_host_and_grows_older() {
    let mut cluster = of(&["a", "b"], 2);
    let hanging = LaneStatus {
        name: "output file".to_owned(),
        answers_within_ms: 1_000,
        hanging_ms: Some(1_500),
        dropped_lines: 7,
    };
    let changed = |hanging| AgentToDriver::HostChanged { meeting: None, hanging };
    cluster.hear_agent("b", changed(vec![hanging.clone()]));
    cluster.pass(Duration::from_secs(3));
    let lanes = |cluster: &Cluster| {
        let status = cluster.core.status(cluster.now, &|_| String::new());
        status.hosts.into_iter().map(|host| host.lanes).collect::<Vec<_>>()
    };
    let older = LaneStatus { hanging_ms: Some(4_500), ..hanging };
    assert_eq!(lanes(&cluster), [vec![], vec![older]]);
    cluster.hear_agent("b", changed(Vec::new()));
    assert_eq!(lanes(&cluster), [vec![], vec![]]);
}
