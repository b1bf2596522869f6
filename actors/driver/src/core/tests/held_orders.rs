//! Tests of deadlines while orders wait for a journal that cannot be written: no worker counts as late with an order that
//! it was not told (G-9), and none is evicted for that (G-5).

use std::net::SocketAddr;
use std::time::Duration;

use elastic_protocol::messages::{Ballot, WorkerToDriver};
use elastic_protocol::{ExitStatus, JobOutcome, Stamp};
use elastic_runtime::transport::LinkEvent;

use super::Cluster;

const ELASTIC: Duration = Duration::from_secs(60);

/// Longer than every deadline of a phase.
const LONG: Duration = Duration::from_secs(90);
/// Just below the deadline for storing the end of a job.
const ALMOST_STORED_WITHIN: Duration = Duration::from_secs(55);

/// A job that trains with one worker on each host, and needs `min_np`.
fn trains(hosts: &[&str], min_np: u32) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(hosts.len() as u32);
        config.min_np = Some(min_np);
        config.deadlines.elastic = ELASTIC;
    });
    for host in hosts {
        cluster.add_host(host, 1);
    }
    cluster.train(3);
    cluster
}

/// Has the journal store nothing from now on. All further decisions wait for the record of a newcomer's start.
fn hold(cluster: &mut Cluster) {
    cluster.disk_hangs = true;
    cluster.add_host("z", 1);
}

/// Has the storing of the next batch fail.
fn fail_to_store(cluster: &mut Cluster) {
    cluster.core.poll_batch().expect("something is to be stored");
    cluster.core.handle_journal_failed(cluster.now, "no space is left", true);
}

/// Has the journal store again.
fn release(cluster: &mut Cluster) {
    cluster.disk_hangs = false;
    cluster.settle();
}

#[test]
fn g_5_who_was_not_told_to_arrive_is_not_late_in_the_gather_room() {
    let mut cluster = trains(&["a", "b"], 2);
    let (stayer, leaver) = (cluster.worker("a", 0), cluster.worker("b", 0));
    hold(&mut cluster);
    cluster.say(&leaver, WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() });
    cluster.pass(LONG);
    assert_eq!(cluster.active(), 2, "nobody has been told that the generation ended");
    release(&mut cluster);
    cluster.pass(LONG);
    assert_eq!(cluster.worker("a", 0), stayer, "{:?}", cluster.stops);
    assert!(cluster.stops.iter().all(|(worker, _)| *worker != stayer), "{:?}", cluster.stops);
    assert_eq!((cluster.active(), cluster.result), (2, None), "it goes on with the newcomer");
}

#[test]
fn g_9_who_was_not_asked_to_pause_is_not_late_with_its_answer() {
    let mut cluster = trains(&["a", "b", "c"], 1);
    let stayers = [cluster.worker("a", 0), cluster.worker("b", 0)];
    hold(&mut cluster);
    cluster.remove_host("c");
    cluster.pass(LONG);
    assert_eq!(cluster.active(), 3, "nobody has been asked");
    release(&mut cluster);
    cluster.pass(LONG);
    assert_eq!([cluster.worker("a", 0), cluster.worker("b", 0)], stayers);
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    assert!(cluster.resets.iter().all(|cause| cause.is_planned()), "{:?}", cluster.resets);
}

#[test]
fn g_9_who_was_not_told_to_sync_is_not_late_with_it() {
    let mut cluster = trains(&["a", "b", "c"], 1);
    let (slow, victim) = (cluster.worker("a", 0), cluster.worker("c", 0));
    cluster.unconnected.insert(slow.clone());
    cluster.kill(&victim);
    hold(&mut cluster);
    cluster.unconnected.clear();
    cluster.vote(&slow, Ballot::Ready);
    assert_eq!(cluster.sizes, [3], "all are READY, and nobody has been told");
    cluster.pass(LONG);
    cluster.deaf.insert(slow.clone());
    release(&mut cluster);
    assert_eq!(cluster.sizes, [3], "one takes its time to sync");
    cluster.deaf.clear();
    cluster.vote(&slow, Ballot::Synced);
    assert_eq!(cluster.sizes[..2], [3, 2]);
    cluster.pass(LONG);
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    assert_eq!(cluster.resets.iter().filter(|cause| !cause.is_planned()).count(), 1);
}

#[test]
fn d_1_members_form_while_their_generation_is_being_stored_and_begin_once_it_is() {
    let mut cluster = trains(&["a", "b", "c"], 1);
    let (stayer, victim) = (cluster.worker("a", 0), cluster.worker("c", 0));
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    let told = cluster.placement_of(&stayer).map(|placement| placement.stamp.generation.0);
    assert_eq!(told, Some(2), "the first one trains, and that is stored");
    cluster.pass(LONG);
    assert_eq!(cluster.sizes, [3], "all are READY, and nobody has been told to go");
    release(&mut cluster);
    assert_eq!(cluster.sizes[..2], [3, 2]);
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
}

#[test]
fn d_1_a_member_that_holds_another_table_is_told_the_whole_one_while_it_is_being_stored() {
    let mut cluster = trains(&["a", "b", "c", "d"], 1);
    let (stayer, victim) = (cluster.worker("a", 0), cluster.worker("d", 0));
    cluster.forget_table(&stayer);
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    assert!(cluster.deltas > 0, "it is told the change first");
    let told = cluster.placement_of(&stayer).map(|placement| placement.stamp.generation.0);
    assert_eq!(told, Some(2));
    release(&mut cluster);
    assert_eq!(cluster.sizes[..2], [4, 3]);
}

#[test]
fn d_1_members_are_told_no_generation_whose_number_is_not_reserved() {
    let mut cluster = trains(&["a", "b", "c"], 1);
    let stayer = cluster.worker("a", 0);
    let told = |cluster: &Cluster| {
        cluster.placement_of(&stayer).map(|placement| placement.stamp.generation.0)
    };
    cluster.disk_hangs = true;
    for host in ["b", "c"] {
        let victim = cluster.worker(host, 0);
        cluster.kill(&victim);
        assert_eq!(
            told(&cluster),
            Some(2),
            "the second one neither trains nor has ended on the disk"
        );
    }
    release(&mut cluster);
    assert!(told(&cluster) > Some(2));
}

#[test]
fn g_11_who_was_not_told_of_the_end_has_its_time_to_leave() {
    let mut cluster = trains(&["a", "b"], 1);
    let writes = cluster.worker("b", 0);
    cluster.deaf.insert(writes.clone());
    cluster.disk_hangs = true;
    cluster.finish_all();
    cluster.pass(ALMOST_STORED_WITHIN);
    assert!(cluster.finished.is_empty(), "D-1: the end is not on record");
    release(&mut cluster);
    assert_eq!(cluster.finished.len(), 1);
    assert_eq!(cluster.result, None, "one still has data to write: {:?}", cluster.warnings);
    cluster.exit(&writes, ExitStatus::Code(0));
    assert_eq!(cluster.result.as_ref().map(|end| end.outcome), Some(JobOutcome::Succeeded));
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
}

#[test]
fn g_11_an_agent_that_was_not_told_to_leave_has_its_time_to_leave() {
    let mut cluster = trains(&["a"], 1);
    cluster.disk_hangs = true;
    cluster.hold_stops = true;
    cluster.core.handle_stop(cluster.now, 15);
    cluster.pass(ALMOST_STORED_WITHIN);
    release(&mut cluster);
    assert_eq!(
        cluster.result, None,
        "its agent has just been told to leave: {:?}",
        cluster.warnings
    );
    cluster.release_stops();
    assert_eq!(cluster.result.as_ref().map(|end| end.outcome), Some(JobOutcome::Stopped));
}

#[test]
fn g_9_newcomers_that_were_not_started_are_not_late() {
    for fails in [false, true] {
        let mut cluster = trains(&["a"], 1);
        let victim = cluster.worker("a", 0);
        cluster.disk_hangs = true;
        cluster.kill(&victim);
        cluster.pass(Duration::from_secs(10));
        if fails {
            fail_to_store(&mut cluster);
        }
        cluster.pass(LONG * 2);
        assert!(!cluster.has_worker("a", 0), "its order to start waits");
        release(&mut cluster);
        cluster.pass(LONG);
        assert_eq!((cluster.active(), cluster.result), (1, None), "trouble: {fails}");
    }
}

#[test]
fn g_9_newcomers_have_the_whole_elastic_timeout_once_the_journal_can_be_written() {
    let mut cluster = trains(&["a"], 1);
    let victim = cluster.worker("a", 0);
    cluster.slow_start = true;
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    fail_to_store(&mut cluster);
    cluster.pass(ELASTIC - Duration::from_secs(10));
    release(&mut cluster);
    cluster.pass(ELASTIC - Duration::from_secs(5));
    assert_eq!(cluster.result, None);
    cluster.pass(Duration::from_secs(10));
    assert!(cluster.result.is_some(), "nobody has come");
}

#[test]
fn g_9_a_deadline_that_was_put_off_comes_in_the_end() {
    let mut cluster = trains(&["a"], 1);
    let victim = cluster.worker("a", 0);
    cluster.slow_start = true;
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    cluster.pass(LONG);
    release(&mut cluster);
    cluster.pass(ELASTIC - Duration::from_secs(1));
    assert_eq!(cluster.result, None, "the time counts from the order to start");
    cluster.pass(Duration::from_secs(2));
    let result = cluster.result.expect("nobody has come");
    assert!(result.reason.starts_with("the elastic timeout of 60 s passed"), "{}", result.reason);
}

#[test]
fn g_9_who_was_not_welcomed_is_not_late_with_its_arrival() {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(1);
        (config.deadlines.elastic, config.deadlines.start) = (ELASTIC, ELASTIC);
    });
    cluster.add_host("a", 1);
    cluster.slow_start = true;
    cluster.add_host("b", 1);
    let newcomer = cluster.worker("b", 0);
    hold(&mut cluster);
    fail_to_store(&mut cluster);
    cluster.worker_link(&newcomer, LinkEvent::Up);
    let (stamp, data_address) = (Stamp::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
    let attach =
        WorkerToDriver::Attach { pid: 1, data_address, stamp, active: false, commit: None };
    cluster.say(&newcomer, attach);
    cluster.pass(LONG);
    release(&mut cluster);
    // It answers the welcome with its arrival.
    cluster.pass(Duration::from_secs(10));
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    cluster.pass(ELASTIC);
    assert_eq!(cluster.stops.len(), 2, "in the end it is late, as the one that did not attach");
}

/// Found by the simulation (actors, seed 862300): a worker that was not welcomed ended for want of a driver, and its end was
/// taken for a failure of the only member.
#[test]
fn g_10_who_comes_back_is_welcomed_while_nothing_can_be_stored() {
    for fails in [false, true] {
        let mut cluster = trains(&["a", "b"], 1);
        let (agent, back) = (cluster.agent("b"), cluster.worker("b", 0));
        hold(&mut cluster);
        if fails {
            fail_to_store(&mut cluster);
        }
        cluster.welcomed.clear();
        cluster.lose_host("b");
        cluster.come_back(&["b"]);
        cluster.settle();
        let expected = [agent, elastic_protocol::NodeId::worker(&back)];
        assert_eq!(cluster.welcomed, expected, "trouble: {fails}");
        assert!(!cluster.has_worker("z", 0), "D-4: a newcomer's order to start waits all the same");
    }
}

/// Found by the simulation (cores, seed 914108): a process was started, and killed for the next one of its slot.
#[test]
fn g_11_what_was_decided_before_a_host_told_of_its_processes_is_not_told_to_it() {
    let mut cluster = trains(&["a", "b"], 1);
    let (agent, former) = (cluster.agent("b"), cluster.worker("b", 0));
    cluster.disk_hangs = true;
    cluster.lose_host("b");
    cluster.end_unseen(&former);
    for _ in 0..2 {
        cluster.core.handle_link(cluster.now, &agent, &LinkEvent::Up);
        cluster.settle();
        cluster.rejoin(&agent, 1, Vec::new());
        cluster.pass(Duration::from_secs(1));
    }
    release(&mut cluster);
    let started = cluster.environments.keys().filter(|worker| worker.host == former.host);
    assert_eq!(started.count(), 2, "the former one, and one more");
}

#[test]
fn g_5_the_elastic_timeout_ends_the_wait_for_the_last_holder() {
    let mut cluster = trains(&["a", "b"], 1);
    let (holder, victim) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.unconnected.insert(holder.clone());
    cluster.kill(&victim);
    let is_stopped = |cluster: &Cluster| cluster.stops.iter().any(|(worker, _)| *worker == holder);
    cluster.pass(ELASTIC - Duration::from_secs(5));
    assert!(!is_stopped(&cluster), "{:?}", cluster.resets);
    cluster.pass(Duration::from_secs(30));
    assert!(is_stopped(&cluster), "{:?}", cluster.resets);
}

#[test]
fn g_5_time_without_a_journal_is_not_the_time_of_a_reset() {
    let mut cluster = trains(&["a", "b"], 1);
    let (holder, victim) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.unconnected.insert(holder.clone());
    cluster.disk_hangs = true;
    cluster.kill(&victim);
    fail_to_store(&mut cluster);
    cluster.pass(LONG);
    release(&mut cluster);
    // The form deadline passes once: the elastic timeout, within which all may try again, has only begun.
    cluster.pass(Duration::from_secs(12));
    cluster.unconnected.clear();
    cluster.pass(Duration::from_secs(30));
    assert_eq!(cluster.worker("a", 0), holder, "{:?}", cluster.stops);
    assert!(cluster.losses.is_empty(), "{:?}", cluster.losses);
}

#[test]
fn x_17_a_job_that_is_stopped_twice_ends_without_a_disk_that_stores_nothing_any_more() {
    let mut cluster = trains(&["a", "b"], 1);
    hold(&mut cluster);
    fail_to_store(&mut cluster);
    cluster.core.handle_stop_asked(cluster.now);
    cluster.pass(ALMOST_STORED_WITHIN);
    assert_eq!(cluster.result, None, "the first request waits for the disk");
    cluster.core.handle_stop_asked(cluster.now);
    cluster.settle();
    let result = cluster.result.clone().expect("the second one does not");
    assert_eq!(result.outcome, JobOutcome::Stopped);
    assert!(cluster.stops.len() >= 2, "the workers are told: {:?}", cluster.stops);
    assert!(!cluster.has_worker("z", 0), "D-1: a number that is not stored is not given out");
}

#[test]
fn x_17_a_job_that_is_stopped_twice_ends_without_a_disk_that_does_not_answer() {
    let mut cluster = trains(&["a", "b"], 1);
    hold(&mut cluster);
    cluster.core.handle_stop_asked(cluster.now);
    cluster.pass(Duration::from_secs(5));
    cluster.core.handle_stop_asked(cluster.now);
    cluster.settle();
    assert_eq!(cluster.result, None, "a disk that works has its time to store the end");
    cluster.pass(Duration::from_secs(2));
    let result = cluster.result.clone().expect("it has ended");
    assert_eq!(result.outcome, JobOutcome::Stopped);
    assert!(cluster.stops.len() >= 2, "the workers are told: {:?}", cluster.stops);
    assert!(!cluster.has_worker("z", 0), "D-1: a number that is not stored is not given out");
}

#[test]
fn g_9_a_job_that_is_over_ends_without_a_disk_that_stores_nothing_any_more() {
    let mut cluster = trains(&["a", "b"], 1);
    hold(&mut cluster);
    fail_to_store(&mut cluster);
    cluster.core.handle_stop_asked(cluster.now);
    cluster.pass(Duration::from_secs(30));
    assert_eq!(cluster.result, None, "the disk may come back");
    cluster.pass(Duration::from_secs(60));
    assert!(cluster.result.is_some(), "it has ended");
    assert!(!cluster.has_worker("z", 0), "D-1: a number that is not stored is not given out");
    assert!(
        cluster.warnings.iter().any(|warning| warning.contains("that is not stored")),
        "{:?}",
        cluster.warnings
    );
}
