//! Tests of a driver that is killed and started again (D-1 to D-4).

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_host_manager::{
    HostEntry, HostManagerConfig, HostManagerCore, HostSource, HostState, HostsSnapshot,
};
use elastic_protocol::messages::{Ballot, JobPhase, LiveWorker, StoppedBy, WorkerToDriver};
use elastic_protocol::{
    ExitStatus, Incarnation, JobOutcome, NodeId, ResetCause, Stamp, Term, WorkerId,
};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::cluster::lost;
use super::{Cluster, host};
use crate::core::DriverConfig;
use crate::journal::Image;

const LONG: Duration = Duration::from_secs(20);

fn two_by_two(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(4);
        config.min_np = Some(1);
        change(config);
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    cluster.train(10);
    cluster
}

/// Number of unplanned ends of generations.
fn aborts(cluster: &Cluster) -> usize {
    cluster.resets.iter().filter(|cause| !cause.is_planned()).count()
}

#[test]
fn d_3_a_generation_whose_members_all_come_back_is_left_alone() {
    let mut cluster = two_by_two(|_| {});
    let (stamp, members) = (cluster.stamp(), cluster.members());
    for _ in 0..3 {
        cluster.restart_driver();
        cluster.train(10);
        cluster.come_back(&["a", "b"]);
        cluster.pass(LONG);
    }
    assert_eq!((cluster.stamp(), cluster.active()), (stamp, 4));
    assert!(cluster.resets.is_empty() && cluster.stops.is_empty(), "{:?}", cluster.resets);
    // Later numbers go on from there, under the new term.
    let victim = cluster.worker("b", 1);
    cluster.kill(&victim);
    cluster.pass(LONG);
    assert_eq!(cluster.sizes, [4, 3, 4]);
    assert!(cluster.stamp() > Stamp { term: Term(4), generation: stamp.generation });
    let newest = cluster.worker("b", 1);
    assert!(members.iter().all(|old| old.incarnation < newest.incarnation), "D-1");
}

#[test]
fn d_4_a_journal_that_is_older_than_its_nodes_is_not_acted_on() {
    let mut cluster = two_by_two(|_| {});
    let earlier = cluster.journal.0.clone();
    let victim = cluster.worker("b", 1);
    cluster.kill(&victim);
    cluster.pass(LONG);
    let (stamp, active) = (cluster.stamp(), cluster.active());
    assert_eq!((stamp.generation.0 > 1, active), (true, 4));
    // The host of the newest worker shows it; the other one's workers are of a later generation than it knows.
    for (first, shown) in [("b", "has given out no number above"), ("a", "it ends with 2")] {
        let newest = std::mem::replace(&mut cluster.journal.0, earlier.clone());
        cluster.restart_driver();
        cluster.come_back(&[first]);
        let (reason, is_outdated) = cluster.abandoned.pop().expect("it gave up");
        assert!(reason.contains("older than the job") && reason.contains(shown), "{reason}");
        assert!(is_outdated, "it must not lead again: {reason}");
        cluster.pass(LONG);
        assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
        assert_eq!(cluster.active(), active);
        cluster.journal.0 = newest;
    }
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(LONG);
    assert_eq!((cluster.stamp(), cluster.active()), (stamp, active));
    assert!(cluster.abandoned.is_empty(), "{:?}", cluster.abandoned);
}

#[test]
fn d_1_a_generation_that_was_told_and_not_stored_is_ended_and_its_number_is_not_used_again() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    let told = cluster.stamp();
    assert_eq!((told.generation.0, cluster.sizes.as_slice()), (2, [4].as_slice()), "not begun");
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(LONG);
    assert!(cluster.abandoned.is_empty(), "{:?}", cluster.abandoned);
    assert_eq!((cluster.active(), cluster.sizes.last()), (4, Some(&4)));
    assert_eq!(cluster.formed[..2], [1, 3]);
}

#[test]
fn what_ended_while_there_was_no_driver_is_found() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    cluster.end_unseen(&victim);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(LONG);
    assert!(cluster.resets[0].to_string().contains("while there was no driver"));
    assert_eq!((aborts(&cluster), cluster.sizes.last()), (1, Some(&4)));
}

#[test]
fn an_agent_that_tells_how_a_process_ended_meanwhile_is_believed() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    cluster.restart_driver();
    cluster.end_unseen(&victim);
    cluster.come_back(&["a", "b"]);
    cluster.report_exit(&victim, ExitStatus::Signal(9));
    cluster.pass(LONG);
    assert!(cluster.resets[0].to_string().contains("signal 9"), "{:?}", cluster.resets);
    assert_eq!(aborts(&cluster), 1);
    assert_eq!(cluster.sizes, [4, 3, 4], "it is refilled after a back-off");
}

#[test]
fn g_7_a_worker_that_a_former_driver_had_stopped_did_not_ask_to_leave() {
    for (stopped_by, refilled) in
        [(Some(StoppedBy::Driver(Term(1))), true), (Some(StoppedBy::Agent), true), (None, false)]
    {
        let mut cluster = two_by_two(|_| {});
        let victim = cluster.worker("b", 1);
        cluster.restart_driver();
        cluster.come_back(&["a", "b"]);
        cluster.say(&victim, WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() });
        cluster.report_end(&victim, ExitStatus::Code(0), stopped_by, None);
        cluster.pass(LONG);
        assert_eq!(cluster.has_worker("b", 1), refilled, "{stopped_by:?}");
        assert_eq!(cluster.active(), if refilled { 4 } else { 3 }, "{stopped_by:?}");
    }
}

#[test]
fn a_host_that_does_not_come_back_is_lost() {
    let mut cluster = two_by_two(|_| {});
    cluster.restart_driver();
    cluster.come_back(&["a"]);
    cluster.pass(LONG);
    assert_eq!(cluster.resets.len(), 1, "{:?}", cluster.resets);
    assert!(cluster.resets[0].to_string().contains("host b lost"));
    assert_eq!(cluster.sizes, [4, 2]);
}

#[test]
fn g_7_a_host_that_does_not_come_back_is_forgotten_where_no_worker_was_started() {
    let mut cluster = Cluster::new(|config| config.hosts_join = true);
    cluster.list_host("a", 2);
    cluster.restart_driver();
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.hosts_left, [], "it may be on its way");
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.hosts_left, [host("a")]);
}

#[test]
fn a_driver_killed_while_a_reset_forms_goes_on_with_it() {
    // Before the generation was stored, after it, and after some were told: the disk decides.
    for hangs in [true, false] {
        let mut cluster = two_by_two(|_| {});
        let victim = cluster.worker("b", 1);
        cluster.disk_hangs = hangs;
        cluster.kill(&victim);
        cluster.restart_driver();
        cluster.come_back(&["b", "a"]);
        cluster.pass(LONG);
        assert_eq!(cluster.active(), 4, "the disk hangs: {hangs}");
        assert_eq!(cluster.sizes.last(), Some(&4));
    }
}

#[test]
fn a_member_that_was_not_told_of_its_generation_is_told_by_the_next_driver() {
    let mut cluster = two_by_two(|_| {});
    let (victim, late) = (cluster.worker("b", 1), cluster.worker("a", 1));
    cluster.deaf.insert(late.clone());
    cluster.kill(&victim);
    cluster.deaf.clear();
    cluster.arrive(&late, 0);
    cluster.deaf.insert(late.clone());
    cluster.settle();
    assert_eq!(cluster.sizes, [4], "one of three has not heard of its generation");
    cluster.restart_driver();
    cluster.deaf.clear();
    cluster.come_back(&["a", "b"]);
    assert_eq!(cluster.sizes[..2], [4, 3]);
    assert_eq!(aborts(&cluster), 1, "D-3: {:?}", cluster.resets);
    assert_eq!(cluster.taken_over, [JobPhase::Form]);
}

#[test]
fn a_stop_that_some_have_heard_of_is_heard_by_all() {
    let mut cluster = two_by_two(|_| {});
    let late = cluster.worker("a", 1);
    cluster.deaf.insert(late.clone());
    cluster.add_host("c", 1);
    let boundary = 10;
    cluster.say(&late, WorkerToDriver::Paused { stamp: cluster.stamp(), boundary });
    cluster.settle();
    assert_eq!(cluster.active(), 1, "the others have stopped");
    cluster.restart_driver();
    cluster.deaf.clear();
    cluster.come_back(&["a", "b", "c"]);
    cluster.pass(LONG);
    assert_eq!(cluster.sizes, [4, 5]);
    assert_eq!(cluster.resets.len(), 1, "{:?}", cluster.resets);
}

#[test]
fn d_1_no_generation_begins_and_no_worker_starts_before_its_record_is_stored() {
    let mut cluster = two_by_two(|_| {});
    let (victim, started) = (cluster.worker("b", 1), cluster.environments.len());
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    cluster.pass(Duration::from_secs(1));
    assert_eq!((cluster.stamp().generation.0, cluster.active()), (2, 3), "its number is reserved");
    assert_eq!(cluster.sizes, [4], "a successor would not know its members");
    assert_eq!(cluster.environments.len(), started, "the slot is not refilled");
    cluster.disk_hangs = false;
    cluster.settle();
    assert_eq!(cluster.sizes[..2], [4, 3]);
}

#[test]
fn g_12_a_broken_generation_ends_at_once_whatever_waits_for_the_disk() {
    let mut cluster = two_by_two(|_| {});
    let (victim, started) = (cluster.worker("b", 1), cluster.environments.len());
    cluster.disk_hangs = true;
    cluster.add_host("c", 1);
    cluster.kill(&victim);
    assert_eq!(
        (cluster.active(), cluster.stamp().generation.0),
        (3, 2),
        "an end needs no record first, and overtakes what does"
    );
    assert_eq!(cluster.environments.len(), started, "D-1: the newcomer has not been started");
    cluster.disk_hangs = false;
    cluster.pass(LONG);
    assert_eq!(cluster.active(), 5);
}

#[test]
fn g_12_workers_in_reach_of_a_lost_host_rest_at_once_whatever_waits_for_the_disk() {
    let mut cluster = two_by_two(|_| {});
    cluster.disk_hangs = true;
    cluster.add_host("c", 1);
    for host in ["a", "b"] {
        let agent = cluster.agent(host);
        cluster.core.handle_link(cluster.now, &agent, &lost());
    }
    cluster.settle();
    assert_eq!(cluster.active(), 0, "all are in session, and no generation can be formed");
}

#[test]
fn the_end_of_a_generation_that_nobody_was_told_of_comes_behind_its_beginning() {
    let mut cluster = two_by_two(|_| {});
    let (first, second) = (cluster.worker("b", 1), cluster.worker("a", 1));
    cluster.disk_hangs = true;
    cluster.kill(&first);
    cluster.kill(&second);
    cluster.disk_hangs = false;
    cluster.pass(LONG);
    assert_eq!(cluster.active(), 4);
}

#[test]
fn a_journal_that_cannot_be_written_for_a_while_stops_nobody() {
    let mut cluster = two_by_two(|_| {});
    cluster.disk_hangs = true;
    cluster.add_host("c", 1);
    cluster.pass(LONG);
    let batch = cluster.core.poll_batch().expect("a worker was to be started");
    cluster.core.handle_journal_failed(cluster.now, "no space is left", true);
    assert_eq!((cluster.active(), cluster.sizes.len()), (4, 1));
    assert_eq!(cluster.core.poll_batch(), None, "not at once");
    cluster.pass(Duration::from_secs(2));
    let again = cluster.core.poll_batch().expect("tried again");
    assert_eq!(again.first, batch.first);
    cluster.core.handle_journal_failed(cluster.now, "no space is left", true);
    cluster.disk_hangs = false;
    cluster.pass(LONG);
    assert_eq!(cluster.sizes, [4, 5]);
}

#[test]
fn the_end_is_told_to_those_who_have_not_heard_it() {
    let mut cluster = two_by_two(|_| {});
    for worker in cluster.members() {
        cluster.deaf.insert(worker);
    }
    cluster.finish_all();
    cluster.restart_driver();
    cluster.deaf.clear();
    assert_eq!(cluster.result, None, "they must hear of it first");
    cluster.come_back(&["a", "b"]);
    for name in ["a", "b"] {
        let node = cluster.agent(name);
        cluster.core.handle_link(cluster.now, &node, &lost());
    }
    cluster.pass(LONG);
    let result = cluster.result.clone().expect("the end");
    assert_eq!((result.outcome, result.code), (JobOutcome::Succeeded, 0));
    assert_eq!(cluster.finished.len(), 4);
}

#[test]
fn a_worker_that_finishes_while_there_is_no_driver_has_finished() {
    let mut cluster = two_by_two(|_| {});
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    for worker in cluster.members() {
        cluster.vote(&worker, Ballot::Success);
    }
    cluster.pass(LONG);
    assert_eq!(cluster.result.as_ref().map(|result| result.outcome), Some(JobOutcome::Succeeded));
}

#[test]
fn g_12_a_driver_that_is_killed_between_a_death_and_its_verdict_hides_no_death() {
    let mut cluster = two_by_two(|_| {});
    cluster.hold_verdicts = true;
    let victim = cluster.worker("b", 1);
    cluster.kill(&victim);
    assert!(cluster.resets.is_empty(), "the death is on record, and nothing has come of it");
    cluster.hold_verdicts = false;
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(LONG);
    assert_eq!((aborts(&cluster), cluster.sizes.last()), (1, Some(&4)));
}

#[test]
fn x_2_workers_whose_agent_is_not_back_rest_when_their_host_is_blacklisted_and_train_on_once_it_is()
{
    let mut cluster = two_by_two(|config| config.min_np = Some(4));
    let members: BTreeSet<WorkerId> = cluster.members().into_iter().collect();
    let (agent, live) = (cluster.agent("a"), cluster.live_on("a"));
    cluster.restart_driver();
    for LiveWorker { worker, .. } in &live {
        cluster.attach(worker);
    }
    cluster.come_back(&["b"]);
    cluster.blacklist("a");
    assert_eq!(cluster.active(), 0, "all rest, although no agent can stop those of host a");
    cluster.list_host("a", 2);
    cluster.rejoin(&agent, 2, live);
    cluster.pass(LONG);
    assert_eq!(cluster.members().into_iter().collect::<BTreeSet<_>>(), members);
    assert_eq!(cluster.active(), 4);
}

#[test]
fn g_5_a_new_driver_does_not_count_on_a_process_that_its_predecessor_has_had_stopped() {
    let mut cluster = Cluster::new(|config| (config.np, config.min_np) = (Some(3), Some(1)));
    for name in ["a", "b", "c"] {
        cluster.add_host(name, 1);
    }
    cluster.train(10);
    let (stays, goes) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.deaf.insert(goes.clone());
    cluster.restart_driver();
    let (agent, mut live) = (cluster.agent("b"), cluster.live_on("b"));
    live[0].is_being_stopped = true;
    cluster.rejoin(&agent, 1, live);
    cluster.attach(&goes);
    cluster.come_back(&["a", "c"]);
    cluster.settle();
    assert!(!cluster.members().contains(&goes), "it is gone within its grace period");
    assert!(cluster.members().contains(&stays));
    assert_eq!(cluster.stops_of(&goes), 0, "its agent has its order");
    let reason = "its process is being stopped".to_owned();
    assert_eq!(
        cluster.resets.last(),
        Some(&ResetCause::WorkerLeaves { worker: goes.clone(), reason })
    );
    let grace = cluster.core.config.deadlines.grace;
    cluster.pass(grace);
    assert_eq!(cluster.stops_of(&goes), 1, "it is still there after its grace period");
}

#[test]
fn g_5_the_last_holder_stays_where_its_system_refuses_it_to_form_a_generation_that_was_taken_over()
{
    let mut cluster = Cluster::new(|config| (config.np, config.min_np) = (Some(2), Some(2)));
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    cluster.train(10);
    let (holder, dead) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.deaf.insert(holder.clone());
    cluster.kill(&dead);
    cluster.arrive(&holder, 0);
    // A newcomer has taken the place of the dead one.
    cluster.pass(Duration::from_secs(2));
    let (stamp, newcomer) = (cluster.stamp(), cluster.worker("b", 0));
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    assert_eq!((cluster.stamp(), cluster.members()), (stamp, vec![holder.clone(), newcomer]));
    let error = "too many open files".to_owned();
    let refused = WorkerToDriver::CollectiveFailed { stamp, peer: Some(0), told_by: None, error };
    cluster.say(&holder, refused);
    cluster.settle();
    assert!(cluster.stops.is_empty() && cluster.losses.is_empty(), "{:?}", cluster.stops);
}

#[test]
fn g_5_of_two_agents_of_a_host_a_new_driver_takes_the_one_that_has_its_workers() {
    for behind in [Duration::from_millis(100), Duration::from_secs(1)] {
        let mut cluster = two_by_two(|_| {});
        let (stamp, agent, live) = (cluster.stamp(), cluster.agent("a"), cluster.live_on("a"));
        cluster.restart_driver();
        let twin = NodeId { incarnation: Incarnation(agent.incarnation.0 + 1), ..agent.clone() };
        cluster.rejoin(&twin, 2, Vec::new());
        for process in &live {
            cluster.attach(&process.worker);
        }
        cluster.come_back(&["b"]);
        cluster.pass(behind);
        cluster.rejoin(&agent, 2, live);
        cluster.pass(LONG);
        assert_eq!((cluster.stamp(), cluster.active()), (stamp, 4), "{behind:?}");
        assert_eq!(cluster.refused, ["another agent of host a has this job's workers"]);
        // Its session ends: no host is lost with it.
        cluster.core.handle_link(cluster.now, &twin, &lost());
        cluster.pass(LONG);
        assert_eq!(cluster.active(), 4);
    }
}

#[test]
fn x_2_a_worker_that_is_in_session_and_that_no_agent_has_is_lost_with_the_takeovers_deadline() {
    let mut cluster = two_by_two(|_| {});
    let (agent, live) = (cluster.agent("a"), cluster.live_on("a"));
    cluster.restart_driver();
    cluster.rejoin(&agent, 2, vec![live[0].clone()]);
    for process in &live {
        cluster.attach(&process.worker);
    }
    cluster.come_back(&["b"]);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.active(), 4, "its own agent may come yet");
    cluster.pass(cluster.core.config.deadlines.return_grace());
    assert!(!cluster.members().contains(&live[1].worker), "{:?}", cluster.members());
}

#[test]
fn d_4_a_drained_host_off_the_list_has_no_workers_under_the_next_driver_either() {
    let mut cluster = two_by_two(|_| {});
    let out = HostEntry { name: host("c"), slots: 0, state: HostState::Drained };
    let unlisted = |cluster: &mut Cluster, unlisted| {
        let hosts = cluster.hosts.clone();
        let snapshot = HostsSnapshot { hosts, unlisted, ..HostsSnapshot::default() };
        cluster.core.handle_hosts(cluster.now, snapshot);
        cluster.settle();
    };
    // The host manager of a next driver: the host is listed again.
    let returns = |cluster: &Cluster| {
        let image = Image::of(&cluster.journal.0).expect("sound");
        let mut config = HostManagerConfig::new(HostSource::Script);
        config.known = image.known_hosts();
        let rng = ChaCha8Rng::seed_from_u64(1);
        let mut hosts = HostManagerCore::new(config, rng, cluster.now);
        hosts.handle_discovery(cluster.now, Ok("a:2\nb:2\nc:2\n".to_owned()));
        hosts.snapshot().hosts[2].state
    };
    unlisted(&mut cluster, vec![out.clone()]);
    assert_eq!(returns(&cluster), HostState::Drained);
    let until = Some(cluster.now + LONG);
    let state = HostState::Blacklisted { until };
    unlisted(&mut cluster, vec![HostEntry { state, ..out.clone() }]);
    assert!(matches!(returns(&cluster), HostState::Blacklisted { .. }));
    unlisted(&mut cluster, vec![]);
    assert_eq!(returns(&cluster), HostState::Listed, "it is let in again");
    unlisted(&mut cluster, vec![out.clone()]);
    let records = cluster.journal.0.last();
    unlisted(&mut cluster, vec![out]);
    assert_eq!(cluster.journal.0.last(), records, "nothing new is recorded");
    assert_eq!((cluster.sizes.as_slice(), cluster.active()), ([4].as_slice(), 4), "no reset");
}

#[test]
fn h_16_a_driver_that_is_started_again_with_a_smaller_np_needs_no_more_workers() {
    let mut cluster = Cluster::new(|config| config.np = Some(3));
    cluster.add_host("a", 3);
    cluster.train(10);
    assert_eq!(cluster.sizes, [3]);
    (cluster.config.np, cluster.config.max_np) = (Some(2), Some(2));
    cluster.hosts[0].slots = 2;
    cluster.restart_driver();
    cluster.come_back(&["a"]);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.sizes.last(), Some(&2), "the others train on");
}
