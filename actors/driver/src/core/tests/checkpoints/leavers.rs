//! Tests of the save before members leave without which no generation can go on.

use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};

use super::super::cluster::host;
use super::*;
use crate::core::phase::RoundPhase;

/// A job with one worker on each of these hosts, that has trained for 70 steps.
fn trained(hosts: &[&str], min_np: usize) -> Cluster {
    let mut cluster = without_hosts(CheckpointEvery::Steps(100), ResumeFrom::Auto);
    cluster.core.config.np = Some(hosts.len() as u32);
    cluster.core.config.min_np = Some(min_np as u32);
    hosts.iter().for_each(|host| cluster.add_host(host, 1));
    cluster.train(70);
    say_all(&mut cluster, 70);
    assert_eq!(saving(&cluster), Some(100));
    cluster
}

fn waiting_for(cluster: &Cluster) -> String {
    cluster.core.status(cluster.now, &|at| at.to_string()).waiting_for.unwrap_or_default()
}

fn notice(cluster: &mut Cluster, host: &str) {
    cluster.hear_agent(host, AgentToDriver::Drain { reason: "SIGTERM".to_owned() });
    cluster.settle();
}

fn runs(cluster: &Cluster) -> bool {
    matches!(cluster.core.round.phase(), RoundPhase::Run)
}

#[test]
fn c_1_a_member_without_which_too_few_are_left_leaves_once_its_commit_is_saved() {
    let mut cluster = trained(&["a", "b"], 2);
    notice(&mut cluster, "b");
    assert!(runs(&cluster) && cluster.left.is_empty());
    let saved = save(&mut cluster);
    assert!(saved < 100, "at once: {saved}");
    cluster.settle();
    assert_eq!(cluster.left.len(), 1);
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Gather(_)));
    cluster.add_host("c", 1);
    assert!(runs(&cluster), "{:?}", cluster.sizes);
    say_all(&mut cluster, 120);
    notice(&mut cluster, "c");
    assert!(runs(&cluster), "the next one is kept like the first");
}

#[test]
fn c_1_a_host_that_the_operator_takes_out_is_saved_first_like_one_on_notice() {
    let take_out: [fn(&mut Cluster); 2] =
        [|cluster| cluster.drain("b", true), |cluster| cluster.remove_host("b")];
    for take_out in take_out {
        let mut cluster = trained(&["a", "b"], 2);
        take_out(&mut cluster);
        cluster.settle();
        assert!(runs(&cluster) && cluster.left.is_empty());
        assert_eq!(waiting_for(&cluster), "to leave once a commit is saved, within 2 s: b[0]#2");
        save(&mut cluster);
        assert_eq!(cluster.left.len(), 1);
    }
}

#[test]
fn c_1_the_last_host_that_the_operator_takes_out_trains_on_and_saves() {
    let mut cluster = trained(&["a"], 1);
    cluster.drain("a", true);
    cluster.settle();
    let expected = "no worker stays; training on until another one comes: a[0]#1";
    assert_eq!(waiting_for(&cluster), expected);
    save(&mut cluster);
    cluster.drain("a", false);
    cluster.settle();
    assert_eq!(waiting_for(&cluster), "");
    cluster.pass(HURRIED_EVERY);
    assert_eq!(saving(&cluster), Some(100), "as before");
}

#[test]
fn c_1_a_member_on_notice_is_kept_for_half_the_grace_period_at_most() {
    let mut cluster = trained(&["a", "b"], 2);
    notice(&mut cluster, "b");
    let grace = cluster.core.config.deadlines.grace;
    cluster.pass(grace / 2 - Duration::from_nanos(1));
    assert!(runs(&cluster) && cluster.left.is_empty(), "the save is under way");
    cluster.pass(Duration::from_nanos(1));
    assert_eq!(cluster.left.len(), 1);
}

#[test]
fn c_4_a_member_on_notice_does_not_wait_for_a_save_that_fails_or_cannot_begin() {
    let mut failing = trained(&["a", "b"], 2);
    notice(&mut failing, "b");
    let a = failing.members()[0].clone();
    report(&mut failing, &a, CheckpointReport::Failed { reason: "no space left".to_owned() });
    failing.settle();
    assert_eq!(failing.left.len(), 1);

    let mut without = Cluster::new(|config| config.np = Some(2));
    without.add_host("a", 1);
    without.add_host("b", 1);
    notice(&mut without, "b");
    assert_eq!(without.left.len(), 1);
}

/// The first notice has interrupted the generation. The second comes before its members have stopped.
fn noticed_while_stopping(cluster: &mut Cluster, hosts: [&str; 2]) {
    cluster.slow_steps = true;
    notice(cluster, hosts[0]);
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Stopping { .. }));
    notice(cluster, hosts[1]);
    cluster.slow_steps = false;
    for worker in cluster.members() {
        cluster.arrive(&worker, 0);
    }
    cluster.settle();
}

#[test]
fn c_1_members_that_stopped_for_one_notice_train_on_if_all_others_have_one_too() {
    let mut cluster = trained(&["a", "b"], 1);
    noticed_while_stopping(&mut cluster, ["b", "a"]);
    assert_eq!((runs(&cluster), &cluster.sizes[..]), (true, &[2, 2][..]));
    let hosts: Vec<HostName> = cluster.members().into_iter().map(|worker| worker.host).collect();
    assert_eq!(hosts, [host("a"), host("b")], "the ranks are as they were");
    for saved in [1, 2] {
        save(&mut cluster);
        assert!(runs(&cluster), "after {saved} saves: nobody else has the state");
        cluster.pass(HURRIED_EVERY);
    }
    cluster.add_host("c", 1);
    cluster.settle();
    assert_eq!(cluster.members()[0].host, host("c"), "until another one has it");
    assert_eq!(cluster.left.len(), 2);
}

#[test]
fn c_1_members_that_stay_train_on_with_the_others_until_the_commit_is_saved() {
    let mut cluster = trained(&["a", "b", "c"], 2);
    noticed_while_stopping(&mut cluster, ["c", "b"]);
    assert_eq!((runs(&cluster), &cluster.sizes[..]), (true, &[3, 3][..]));
    save(&mut cluster);
    assert_eq!(cluster.left.len(), 2, "a has the state, and waits for others");
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Gather(_)));
}

#[test]
fn g_9_a_blacklisted_host_off_the_list_takes_no_part_once_more() {
    let mut cluster = trained(&["a", "b"], 1);
    cluster.slow_steps = true;
    cluster.remove_host("b");
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Stopping { .. }));
    let state = HostState::Blacklisted { until: None };
    let unlisted = vec![HostEntry { name: host("b"), slots: 0, state }];
    cluster.core.handle_hosts(cluster.now, HostsSnapshot { unlisted, ..HostsSnapshot::default() });
    for worker in cluster.members() {
        cluster.arrive(&worker, 0);
    }
    cluster.settle();
    let hosts: Vec<HostName> = cluster.members().into_iter().map(|worker| worker.host).collect();
    assert_eq!((runs(&cluster), hosts), (true, vec![host("a")]));
}

#[test]
fn members_whose_commit_is_saved_already_are_not_kept() {
    let mut cluster = trained(&["a", "b", "c"], 2);
    say_all(&mut cluster, 100);
    save(&mut cluster);
    noticed_while_stopping(&mut cluster, ["c", "b"]);
    assert!(matches!(cluster.core.round.phase(), RoundPhase::Gather(_)));
    assert_eq!(cluster.left.len(), 2);
}
