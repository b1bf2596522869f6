//! Tests of hosts that come and go as planned.

use std::time::Duration;

use elastic_protocol::DataPlane;
use elastic_protocol::messages::{
    AgentToDriver, Ballot, UndoneTraining, WorkerCondition, WorkerToDriver,
};
use elastic_protocol::{CommitId, GenerationId, ResetCause, Step};

use super::cluster::lost;
use super::{Cluster, host};
use crate::core::phase::RoundPhase;

fn trained(hosts: &[(&str, u32)], min_np: u32) -> Cluster {
    let slots = hosts.iter().map(|(_, slots)| slots).sum();
    let mut cluster = Cluster::new(|config| {
        config.np = Some(slots);
        config.min_np = Some(min_np);
    });
    for (name, slots) in hosts {
        cluster.add_host(name, *slots);
    }
    cluster.train(10);
    cluster
}

#[test]
fn h_1_all_slots_take_part_host_by_host() {
    let cluster = trained(&[("h1", 2), ("h2", 2)], 2);
    assert_eq!(cluster.sizes, [4]);
    let names: Vec<String> =
        cluster.members().iter().map(|worker| format!("{}{}", worker.host, worker.slot)).collect();
    assert_eq!(names, ["h10", "h11", "h20", "h21"]);
}

#[test]
fn all_members_are_told_alike_what_carries_their_data() {
    for (data_plane, encrypt_data) in [(DataPlane::Auto, false), (DataPlane::ShmQuic, true)] {
        let mut cluster = Cluster::new(|config| {
            (config.data_plane, config.encrypt_data) = (data_plane, encrypt_data);
        });
        cluster.add_host("a", 2);
        cluster.train(10);
        assert_eq!(cluster.data_paths(), [(data_plane, encrypt_data); 2]);
    }
}

#[test]
fn h_3_the_slot_beyond_the_cap_is_spare_until_one_is_lost() {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(3);
        config.max_np = Some(3);
        config.min_np = Some(1);
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    assert_eq!(cluster.sizes, [3]);
    assert!(!cluster.has_worker("b", 1));
    let spare = |cluster: &Cluster| {
        let status = cluster.core.status(cluster.now, &|at| at.to_string());
        status.workers.iter().filter(|worker| worker.state == WorkerCondition::Spare).count()
    };
    assert_eq!(spare(&cluster), 1);
    let victim = cluster.worker("a", 1);
    cluster.kill(&victim);
    cluster.pass(Duration::from_millis(100));
    assert_eq!(cluster.sizes, [3, 2, 3], "the spare takes the lost one's place");
    assert!(cluster.has_worker("b", 1));
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.sizes, [3, 2, 3], "the slot's return displaces nobody");
}

#[test]
fn h_4_a_host_added_in_mid_run_interrupts_once_and_keeps_ranks() {
    let mut cluster = trained(&[("a", 2)], 1);
    let before = cluster.members();
    cluster.slow_start = true;
    cluster.add_host("b", 2);
    assert_eq!(cluster.sizes, [2], "training goes on while the newcomers start");
    assert!(cluster.resets.is_empty());
    let newcomers = [cluster.worker("b", 0), cluster.worker("b", 1)];
    cluster.attach(&newcomers[0]);
    cluster.settle();
    assert!(cluster.resets.is_empty(), "those who come together enter together");
    cluster.attach(&newcomers[1]);
    cluster.settle();
    assert_eq!(cluster.sizes, [2, 4]);
    assert_eq!(cluster.resets.len(), 1);
    assert_eq!(cluster.members()[..2], before[..]);
    assert_eq!(cluster.roots.last(), Some(&Some(0)), "G-6: a newcomer proves nothing");
}

#[test]
fn h_4_who_starts_slowly_is_waited_for_until_the_last_call_and_no_longer() {
    let mut cluster = trained(&[("a", 2)], 1);
    cluster.slow_start = true;
    cluster.add_host("b", 2);
    let first = cluster.worker("b", 0);
    cluster.attach(&first);
    cluster.settle();
    let since = cluster.core.round.change_is_pending(cluster.now);
    let wait = cluster.core.config.deadlines.last_call;
    let pauses =
        |cluster: &Cluster| matches!(cluster.core.round.phase(), RoundPhase::Pausing { .. });
    cluster.core.consider_interrupt(since + (wait - Duration::from_nanos(1)));
    assert!(!pauses(&cluster), "another one may come");
    cluster.core.consider_interrupt(since + wait);
    assert!(pauses(&cluster));
}

#[test]
fn h_5_a_host_removed_leaves_with_code_0_and_the_others_skip_the_sync() {
    let mut cluster = trained(&[("a", 2), ("b", 2)], 1);
    let leavers = [cluster.worker("b", 0), cluster.worker("b", 1)];
    cluster.remove_host("b");
    assert_eq!(cluster.sizes, [4, 2]);
    assert_eq!(cluster.left, leavers);
    assert_eq!(cluster.skipped_syncs, 1, "G-6: all hold one commit");
    assert!(matches!(&cluster.resets[..], [ResetCause::HostsChanged { removed, .. }]
        if removed.len() == 2));
}

#[test]
fn h_21_nobody_waits_for_the_pause_of_a_member_whose_function_has_returned() {
    let mut cluster = trained(&[("a", 1), ("b", 1), ("c", 1)], 1);
    let returned = cluster.worker("b", 0);
    // It does not answer: it has returned before the order came.
    cluster.deaf.insert(returned.clone());
    cluster.remove_host("c");
    assert_eq!(cluster.active(), 3, "two have paused");
    cluster.vote(&returned, Ballot::Success);
    cluster.settle();
    assert!(!cluster.left.is_empty(), "the interrupt goes on at once: {:?}", cluster.resets);
}

#[test]
fn g_5_members_that_miss_a_planned_stop_roll_back_and_keep_the_state() {
    let mut cluster = trained(&[("a", 1), ("b", 1), ("c", 1)], 2);
    cluster.slow_steps = true;
    cluster.remove_host("c");
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Stopping { .. }));
    let (elastic, form) =
        (cluster.core.config.deadlines.elastic, cluster.core.config.deadlines.form);
    let holders = [cluster.worker("a", 0), cluster.worker("b", 0)];
    cluster.unconnected.extend(holders.clone());
    cluster.pass(elastic);
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Form { .. }), "all have rolled back");
    // The next generation misses its deadline: the elastic timeout counts from the end of training.
    cluster.pass(form);
    cluster.unconnected.clear();
    cluster.pass(form);
    assert_eq!(cluster.sizes, [3, 2]);
    assert!(cluster.losses.is_empty());
    assert_eq!(holders.map(|holder| cluster.stops_of(&holder)), [0, 0]);
}

#[test]
fn h_6_the_state_goes_from_host_to_host() {
    let mut cluster = trained(&[("a", 1)], 1);
    cluster.add_host("b", 1);
    cluster.train(5);
    cluster.remove_host("a");
    assert_eq!(cluster.sizes, [1, 2, 1]);
    assert_eq!(cluster.members()[0].host, host("b"));
}

#[test]
fn a_host_replaced_at_once_hands_its_state_over_before_it_leaves() {
    let mut cluster = trained(&[("a", 1)], 1);
    cluster.hosts.clear();
    cluster.add_host("b", 1);
    assert_eq!(cluster.sizes, [1, 2, 1], "G-5: the only holder takes part once more");
    assert_eq!(cluster.members()[0].host, host("b"));
    assert_eq!(cluster.left.len(), 1);
}

#[test]
fn g_5_a_holder_that_is_not_wanted_stays_while_the_journal_cannot_be_written() {
    let mut cluster = trained(&[("a", 1), ("b", 1), ("c", 1)], 2);
    let [last, unwanted, victim] = ["a", "b", "c"].map(|host| cluster.worker(host, 0));
    cluster.disk_hangs = true;
    cluster.add_host("d", 1);
    cluster.remove_host("b");
    cluster.kill(&victim);
    cluster.pass(Duration::from_secs(1));
    cluster.kill(&last);
    cluster.disk_hangs = false;
    cluster.pass(Duration::from_secs(20));
    assert_eq!(cluster.left, [unwanted], "it has handed its commit over before");
    assert_eq!(cluster.losses, [], "the others went on from it");
}

#[test]
fn h_19_an_unused_host_comes_and_goes() {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(2);
        config.max_np = Some(2);
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    cluster.remove_host("b");
    cluster.pass(Duration::from_secs(5));
    assert!(cluster.resets.is_empty());
    assert_eq!(cluster.sizes, [2]);
}

#[test]
fn h_19_a_change_that_is_undone_before_it_took_effect_resets_nothing() {
    let mut cluster = trained(&[("a", 1), ("b", 1)], 1);
    cluster.remove_host_for_a_moment("b", |_cluster| ());
    assert!(cluster.resets.is_empty(), "called off");
    assert_eq!(cluster.sizes, [2]);
}

#[test]
fn h_20_each_change_is_one_reset() {
    let mut cluster = trained(&[("a", 1)], 1);
    for name in ["b", "c"] {
        cluster.add_host(name, 1);
        cluster.train(3);
    }
    for name in ["c", "b"] {
        cluster.remove_host(name);
        cluster.train(3);
    }
    assert_eq!(cluster.sizes, [1, 2, 3, 2, 1]);
    assert_eq!(cluster.resets.len(), 4);
}

#[test]
fn x_5_a_removal_below_min_waits_and_goes_on() {
    let mut cluster = trained(&[("a", 1), ("b", 1)], 2);
    cluster.remove_host("b");
    assert_eq!(cluster.sizes, [2]);
    cluster.pass(Duration::from_secs(5));
    cluster.add_host("c", 1);
    assert_eq!(cluster.sizes, [2, 2]);
    assert_eq!(cluster.roots.last(), Some(&Some(0)), "no skip with a newcomer (Horovod #3494)");
}

#[test]
fn x_17_an_agent_without_workers_that_asks_to_leave_and_ends_has_left_and_is_not_lost() {
    let mut cluster = trained(&[("a", 1), ("b", 1)], 1);
    cluster.drain("b", true);
    cluster.pass(Duration::from_secs(1));
    assert!(!cluster.has_worker("b", 0));
    let agent = cluster.agent("b");
    let asks = AgentToDriver::Drain { reason: "SIGTERM".to_owned() };
    cluster.core.handle_agent(cluster.now, &agent, asks);
    cluster.core.handle_link(cluster.now, &agent, &lost());
    cluster.hosts.retain(|entry| entry.name != host("b"));
    cluster.list_hosts();
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    let hosts: Vec<_> = status.hosts.iter().map(|host| host.name.to_string()).collect();
    assert_eq!(hosts, ["a"], "it is not shown as lost");
}

#[test]
fn x_11_a_worker_that_leaves_on_notice_loses_nothing() {
    let mut cluster = trained(&[("a", 2)], 1);
    let leaver = cluster.worker("a", 1);
    cluster.say(&leaver, WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() });
    cluster.settle();
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.sizes, [2, 1], "and its slot is not refilled");
    assert_eq!(cluster.left, [leaver]);
    assert!(matches!(&cluster.resets[..], [ResetCause::WorkerLeaves { .. }]));
}

#[test]
fn g_9_a_job_that_waits_for_a_slot_whose_worker_was_told_to_leave_says_so() {
    let mut cluster = trained(&[("a", 2)], 2);
    let leaver = cluster.worker("a", 1);
    cluster.say(&leaver, WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() });
    cluster.settle();
    cluster.pass(Duration::from_secs(1));
    let waiting_for = cluster.core.status(cluster.now, &|at| at.to_string()).waiting_for;
    let waiting_for = waiting_for.unwrap_or_default();
    assert!(waiting_for.contains("a[1] (its worker was told to leave"), "{waiting_for}");
}

#[test]
fn g_8_the_root_holds_the_highest_commit_whatever_its_rank() {
    let mut cluster = trained(&[("a", 1), ("b", 1), ("c", 1)], 1);
    let (first, ahead) = (cluster.worker("a", 0), cluster.worker("c", 0));
    cluster.deaf.extend([first.clone(), ahead.clone()]);
    let victim = cluster.worker("b", 0);
    cluster.kill(&victim);
    let stamp = cluster.stamp();
    for (worker, step) in [(first, 10), (ahead, 11)] {
        let commit = CommitId { generation: GenerationId(1), step: Step(step), digest: step };
        cluster.deaf.clear();
        let arrived = WorkerToDriver::Arrived {
            stamp,
            commit: Some(commit),
            undone: UndoneTraining::default(),
        };
        cluster.say(&worker, arrived);
        cluster.settle();
    }
    assert_eq!(cluster.roots.get(1), Some(&Some(1)), "rank 1 of the new generation is c");
}

#[test]
fn g_2_an_arrival_from_an_older_generation_is_dropped() {
    let mut cluster = trained(&[("a", 1)], 1);
    let old = cluster.stamp();
    cluster.add_host("b", 1);
    let worker = cluster.worker("a", 0);
    cluster.say(
        &worker,
        WorkerToDriver::Arrived { stamp: old, commit: None, undone: UndoneTraining::default() },
    );
    cluster.settle();
    assert_eq!(cluster.sizes, [1, 2], "nothing happened");
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    assert!(status.dropped_messages > 0, "and it was counted");
}

fn three_hosts() -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(6);
        config.min_np = Some(1);
    });
    for name in ["a", "b", "c"] {
        cluster.add_host(name, 2);
    }
    cluster
}

#[test]
fn who_was_in_the_generation_before_is_told_what_has_changed_and_a_newcomer_everything() {
    let mut cluster = three_hosts();
    assert_eq!(cluster.deltas, 0, "nobody has a table yet");
    cluster.remove_host("b");
    assert_eq!((cluster.sizes.last(), cluster.deltas), (Some(&4), 4));
    cluster.add_host("d", 2);
    assert_eq!((cluster.sizes.last(), cluster.deltas), (Some(&6), 8), "not to the two of d");
    let order: Vec<String> =
        cluster.members().iter().map(|worker| worker.host.to_string()).collect();
    assert_eq!(order, ["a", "a", "c", "c", "d", "d"]);
}

#[test]
fn who_holds_another_table_than_it_was_taken_to_hold_is_told_the_full_one() {
    let mut cluster = three_hosts();
    let forgetful = cluster.worker("a", 0);
    cluster.forget_table(&forgetful);
    cluster.remove_host("b");
    assert_eq!((cluster.sizes.last(), cluster.members().len()), (Some(&4), 4));
}

#[test]
fn who_asks_for_the_table_of_a_generation_that_is_broken_by_then_is_told_the_next_one_in_full() {
    for asks in [false, true] {
        let mut cluster = three_hosts();
        let (late, slow) = (cluster.worker("a", 0), cluster.worker("b", 0));
        let broken = cluster.stamp();
        cluster.deaf.insert(slow.clone());
        let victim = cluster.worker("c", 1);
        cluster.kill(&victim);
        if asks {
            cluster.say(&late, WorkerToDriver::TableWanted { stamp: broken });
        }
        cluster.deaf.clear();
        cluster.arrive(&slow, 0);
        cluster.settle();
        assert_eq!((cluster.sizes[1], cluster.deltas), (5, if asks { 4 } else { 5 }));
    }
}

#[test]
fn g_9_a_host_with_fewer_slots_than_listed_is_named() {
    let mut cluster = Cluster::new(|config| (config.np, config.min_np) = (Some(2), Some(2)));
    let name = host("b");
    cluster.join(&name, 1, Vec::new());
    cluster.list_host("b", 2);
    cluster.pass(Duration::from_secs(5));
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    let warning =
        "host b has 1 slot, and 2 are listed: start its agent with --slots 2, or list 1".to_owned();
    assert_eq!(status.warnings, [warning]);
    let waits = status.waiting_for.expect("it waits");
    assert!(waits.ends_with("waiting for host b (has 1 slot of 2)"), "{waits}");
    cluster.pass(cluster.core.config.deadlines.elastic);
    let reason = cluster.result.clone().expect("the elastic timeout has passed").reason;
    assert!(reason.ends_with("there: b[0]#1; missing: host b (has 1 slot of 2)"), "{reason}");
}

#[test]
fn g_9_a_worker_whose_slot_is_not_listed_any_more_is_not_counted_as_there() {
    let mut cluster = trained(&[("b", 1), ("c", 1)], 2);
    let dead = cluster.worker("b", 0);
    cluster.slow_start = true;
    cluster.kill(&dead);
    let there = |cluster: &Cluster| cluster.core.glance(cluster.now).gather.there;
    assert_eq!(there(&cluster), 1);
    // The only holder of the commit is kept, although its host is not listed any more.
    cluster.remove_host("c");
    assert_eq!((there(&cluster), cluster.stops.len()), (0, 0));
}
