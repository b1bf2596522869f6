//! Tests of workers and hosts that are lost.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::{
    AgentToDriver, Ballot, JobCommand, LibraryTrace, LiveWorker, NodeCount, WorkerToDriver,
};
use elastic_protocol::{
    ExitStatus, Incarnation, JobOutcome, NodeId, NodeName, ResetCause, WorkerId,
};
use elastic_runtime::transport::LinkEvent;

use super::cluster::{lost, silence};
use super::{Cluster, host};
use crate::core::{DriverConfig, OnFailure};

pub(super) fn two_by_two(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
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

#[test]
fn h_7_a_failure_blacklists_the_whole_host() {
    let mut cluster = two_by_two(|config| config.on_failure = OnFailure::Blacklist);
    let victim = cluster.worker("a", 0);
    cluster.kill(&victim);
    assert_eq!(cluster.failed_hosts, [host("a")]);
    assert_eq!(cluster.sizes.last(), Some(&2));
    assert!(cluster.members().iter().all(|worker| worker.host == host("b")));
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.sizes.last(), Some(&2));
}

#[test]
fn h_8_the_slot_is_refilled_after_a_back_off_until_its_budget_is_spent() {
    let mut cluster = two_by_two(|config| config.max_restarts = 2);
    for failures in 1..=2 {
        let victim = cluster.worker("b", 1);
        cluster.kill(&victim);
        assert_eq!(cluster.sizes.last(), Some(&3), "failure {failures}: the others go on");
        assert!(!cluster.has_worker("b", 1), "a back-off comes first");
        cluster.pass(Duration::from_secs(2));
        assert_eq!(cluster.sizes.last(), Some(&4));
    }
    let victim = cluster.worker("b", 1);
    cluster.kill(&victim);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.failed_hosts, [host("b")]);
    assert_eq!(cluster.sizes.last(), Some(&2));
}

#[test]
fn h_10_every_worker_raises() {
    let mut cluster = two_by_two(|_| {});
    for worker in cluster.members() {
        let message = format!("no data on {}", worker.host);
        cluster.vote_quietly(&worker, Ballot::Failure { status: None, message });
    }
    cluster.pass(Duration::from_secs(60));
    let result = cluster.result.expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    assert!(result.reason.contains("no data on a"), "the first error is the reason: {result:?}");
}

#[test]
fn a_host_on_which_no_agent_can_be_started_is_blacklisted_and_the_job_goes_on_without_it() {
    let mut cluster = two_by_two(|config| config.min_np = Some(2));
    cluster.core.handle_launch_failed(&host("b"), "ssh: Permission denied");
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.failed_hosts, [host("b")]);
    assert!(cluster.result.is_none(), "the job goes on");
    cluster.core.handle_launch_failed(&host("a"), "ssh: Connection refused");
    cluster.pass(Duration::from_secs(60));
    let reason = cluster.result.expect("nobody is left").reason;
    assert!(reason.contains("every host is blacklisted: a, b"), "{reason}");
    assert!(reason.contains("host b: ssh: Permission denied"), "what came first: {reason}");
}

#[test]
fn h_10_a_program_that_ends_on_every_slot_before_it_attached_is_at_fault_itself() {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(2);
        config.hosts_join = false;
    });
    cluster.slow_start = true;
    cluster.add_host("a", 2);
    for slot in [0, 1, 0] {
        let worker = cluster.worker("a", slot);
        cluster.exit(&worker, ExitStatus::Code(1));
        cluster.pass(Duration::from_secs(5));
        assert!(cluster.result.is_none(), "one more is tried");
    }
    let worker = cluster.worker("a", 1);
    cluster.exit(&worker, ExitStatus::Code(1));
    cluster.pass(Duration::from_secs(60));
    let reason = cluster.result.expect("it is at fault").reason;
    assert!(reason.contains("before its first call of the library; first a[0]"), "{reason}");
    assert!(cluster.failed_hosts.is_empty(), "no host is");
}

#[test]
fn a_host_on_which_the_program_cannot_begin_does_not_end_the_job_of_others_that_are_slow() {
    let mut cluster = Cluster::new(|config| {
        config.min_np = Some(2);
        config.hosts_join = false;
    });
    cluster.slow_start = true;
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    for slot in [0, 1, 0, 1] {
        let worker = cluster.worker("a", slot);
        cluster.exit(&worker, ExitStatus::Code(1));
        cluster.pass(Duration::from_secs(5));
    }
    assert!(cluster.result.is_none(), "b may be well");
}

#[test]
fn a_host_that_could_start_no_process_for_a_while_does_not_tell_of_the_program() {
    let mut cluster = Cluster::new(|config| {
        config.min_np = Some(2);
        config.hosts_join = false;
    });
    cluster.slow_start = true;
    cluster.add_host("a", 2);
    for slot in [0, 1, 0, 1] {
        let (worker, reason) = (cluster.worker("a", slot), "no process is to be had".to_owned());
        let failed = AgentToDriver::StartFailed { worker, reason, is_programs: false };
        cluster.hear_agent("a", failed);
        cluster.pass(Duration::from_secs(5));
    }
    let worker = cluster.worker("a", 1);
    cluster.exit(&worker, ExitStatus::Code(1));
    assert!(cluster.result.is_none(), "one process has ended, and once");
}

#[test]
fn a_slot_that_can_start_nothing_for_a_while_takes_no_host_out_on_which_others_run() {
    let mut cluster = two_by_two(|config| config.min_np = Some(1));
    cluster.slow_start = true;
    let victim = cluster.worker("a", 0);
    cluster.exit(&victim, ExitStatus::Signal(9));
    for _attempt in 0..6 {
        cluster.pass(Duration::from_secs(40));
        let (worker, reason) = (cluster.worker("a", 0), "it is just replaced".to_owned());
        let failed = AgentToDriver::StartFailed { worker, reason, is_programs: true };
        cluster.hear_agent("a", failed);
        assert!(cluster.failed_hosts.is_empty(), "a[1] trains there");
    }
    cluster.pass(Duration::from_secs(40));
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, ExitStatus::Code(1));
    assert!(!cluster.failed_hosts.is_empty(), "a process that has failed counts as ever");
}

#[test]
fn a_program_that_has_attached_somewhere_is_not_judged_by_what_ends_early() {
    let mut cluster = two_by_two(|config| config.min_np = Some(1));
    cluster.slow_start = true;
    for _failure in 0..2 {
        for (name, slot) in [("a", 0), ("a", 1), ("b", 0)] {
            let worker = cluster.worker(name, slot);
            cluster.exit(&worker, ExitStatus::Code(1));
            cluster.pass(Duration::from_secs(5));
        }
    }
    assert!(cluster.result.is_none(), "it trains where it can");
}

#[test]
fn h_11_every_host_is_blacklisted() {
    let mut cluster = two_by_two(|config| config.on_failure = OnFailure::Blacklist);
    for name in ["a", "b"] {
        let victim = cluster.worker(name, 0);
        cluster.exit(&victim, ExitStatus::Code(1));
    }
    cluster.pass(Duration::from_secs(60));
    let result = cluster.result.expect("the job has ended");
    assert!(result.reason.contains("every host is blacklisted: a, b"), "{}", result.reason);
}

#[test]
fn h_12_the_elastic_timeout_says_who_is_there_and_who_is_missing() {
    let mut cluster = two_by_two(|config| {
        config.min_np = Some(4);
        config.deadlines.elastic = Duration::from_secs(2);
    });
    let agent = cluster.agent("b");
    cluster.core.handle_link(cluster.now, &agent, &silence(2000));
    cluster.pass(Duration::from_millis(1900));
    assert!(cluster.result.is_none());
    cluster.pass(Duration::from_secs(30));
    let reason = cluster.result.expect("the job has ended").reason;
    assert!(reason.contains("4 workers are needed; there: a[0]#1, a[1]#2"), "{reason}");
    assert!(reason.contains("b[0]#3 (out of reach)"), "{reason}");
}

#[test]
fn h_13_the_reset_limit() {
    for (limit, passes) in [(1, false), (2, true)] {
        let mut cluster = two_by_two(|config| config.reset_limit = Some(limit));
        cluster.remove_host("b");
        cluster.add_host("c", 1);
        cluster.pass(Duration::from_secs(20));
        match &cluster.result {
            None => assert!(passes),
            Some(result) => {
                assert!(!passes);
                assert!(result.reason.contains("limit of 1 resets"), "{}", result.reason);
            }
        }
    }
}

#[test]
fn x_1_more_workers_die_while_the_reset_forms() {
    let mut cluster = two_by_two(|_| {});
    let [second, third] = [cluster.worker("a", 1), cluster.worker("b", 0)];
    cluster.deaf.extend([second.clone(), third.clone()]);
    let first = cluster.worker("a", 0);
    cluster.kill(&first);
    assert_eq!(cluster.sizes, [4], "the reset waits for two");
    cluster.kill(&second);
    cluster.kill(&third);
    assert_eq!(cluster.sizes, [4, 1]);
    assert_eq!(cluster.resets.len(), 1, "coalesced");
}

#[test]
fn x_1_a_member_dies_between_assignment_and_ready() {
    let mut cluster = two_by_two(|_| {});
    let [first, second] = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.deaf.insert(second.clone());
    cluster.kill(&first);
    cluster.arrive(&second, 0);
    cluster.settle();
    assert_eq!(cluster.sizes, [4], "assigned, but the second does not form");
    cluster.kill(&second);
    assert_eq!(cluster.sizes, [4, 2]);
}

#[test]
fn x_2_a_silent_worker_is_evicted_when_its_host_is_heard() {
    let mut cluster = two_by_two(|_| {});
    let stopped = cluster.worker("b", 1);
    let stamp = cluster.stamp();
    cluster.deaf.insert(stopped.clone());
    cluster.worker_link(&stopped, LinkEvent::Silent { silent_ms: 1000 });
    cluster.settle();
    assert_eq!(cluster.sizes, [4], "its agent may be about to fall silent, too");
    cluster.pass(Duration::from_millis(250));
    assert_eq!(cluster.sizes, [4, 3]);
    assert_eq!(
        cluster.stops,
        [(stopped.clone(), 0)],
        "SIGKILL: a stopped process hears no SIGTERM"
    );
    cluster.say(&stopped, WorkerToDriver::Paused { stamp, boundary: 99 });
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 3], "G-2: its late word changes nothing");
}

#[test]
fn x_2_a_silent_agent_takes_its_workers_out_and_gets_them_back() {
    let mut cluster = two_by_two(|_| {});
    let agent = cluster.agent("b");
    cluster.core.handle_link(cluster.now, &agent, &silence(2000));
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 2]);
    assert!(matches!(&cluster.resets[..], [ResetCause::HostLost { .. }]));
    let live = [0, 1].map(|slot| LiveWorker {
        worker: cluster.worker("b", slot),
        pid: 1,
        is_being_stopped: false,
    });
    for process in &live {
        cluster.worker_link(&process.worker, lost());
    }
    cluster.slow_start = true;
    cluster.rejoin(&agent, 2, live.to_vec());
    for process in &live {
        cluster.attach(&process.worker);
    }
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 2, 4], "the same processes, with their state");
}

#[test]
fn x_2_workers_that_stayed_in_reach_wait_for_their_agent() {
    let mut cluster = two_by_two(|_| {});
    let agent = cluster.agent("b");
    cluster.core.handle_link(cluster.now, &agent, &silence(2000));
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 2]);
    assert!(cluster.left.is_empty(), "they are told to rest, not to leave");
    let live = [0, 1].map(|slot| LiveWorker {
        worker: cluster.worker("b", slot),
        pid: 1,
        is_being_stopped: false,
    });
    cluster.rejoin(&agent, 2, live.to_vec());
    assert_eq!(cluster.sizes, [4, 2, 4]);
}

#[test]
fn x_2_an_accused_worker_that_is_out_of_reach_with_its_host_is_not_killed() {
    let mut cluster = two_by_two(|_| {});
    let accused = cluster.worker("b", 1);
    cluster.deaf.insert(accused.clone());
    let agent = cluster.agent("b");
    cluster.core.handle_link(cluster.now, &agent, &LinkEvent::Silent { silent_ms: 1000 });
    let (reporter, stamp) = (cluster.worker("a", 0), cluster.stamp());
    let error = "reset by peer".to_owned();
    cluster.say(
        &reporter,
        WorkerToDriver::CollectiveFailed { stamp, peer: Some(3), told_by: None, error },
    );
    cluster.worker_link(&accused, LinkEvent::Silent { silent_ms: 1000 });
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 3], "the others do not wait for it");
    assert!(cluster.stops.is_empty(), "it may come back with its host");
    cluster.core.handle_link(cluster.now, &agent, &LinkEvent::Heard);
    cluster.deaf.clear();
    cluster.attach(&accused);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.sizes, [4, 3, 4]);
}

#[test]
fn g_5_survivors_do_not_wait_for_a_lost_host_and_newcomers_do() {
    let mut cluster = two_by_two(|_| {});
    cluster.train(1);
    let ahead = cluster.worker("b", 0);
    cluster.say_step(&ahead, 1000);
    let agent = cluster.agent("b");
    for slot in 0..2 {
        cluster.worker_link(&cluster.worker("b", slot), silence(2000));
    }
    cluster.core.handle_link(cluster.now, &agent, &silence(2000));
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 2], "what b alone may have reached is nobody's loss");
    for slot in 0..2 {
        cluster.worker_link(&cluster.worker("a", slot), silence(2000));
    }
    let agent = cluster.agent("a");
    cluster.core.handle_link(cluster.now, &agent, &silence(2000));
    cluster.add_host("c", 2);
    cluster.pass(Duration::from_secs(30));
    assert_eq!(cluster.sizes, [4, 2], "a's workers hold the state and may live");
    cluster.pass(Duration::from_secs(30));
    assert_eq!(cluster.sizes, [4, 2, 2], "without a driver for so long, they have ended");
}

#[test]
fn a_worker_that_is_stopped_and_says_that_it_leaves_does_not_close_its_slot() {
    let mut cluster = two_by_two(|config| config.on_failure = OnFailure::Blacklist);
    let [victim, sibling] = [cluster.worker("b", 0), cluster.worker("b", 1)];
    cluster.deaf.insert(sibling.clone());
    cluster.kill(&victim);
    cluster.say(&sibling, WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() });
    for entry in &mut cluster.hosts {
        entry.state = elastic_host_manager::HostState::Listed;
    }
    cluster.list_hosts();
    cluster.settle();
    assert_eq!(cluster.sizes.last(), Some(&4), "after its cooldown the whole host is back (H-14)");
}

#[test]
fn a_broken_link_is_explained_by_the_exit_that_follows() {
    let mut cluster = two_by_two(|_| {});
    let reporter = cluster.worker("a", 0);
    let victim = cluster.worker("b", 1);
    cluster.deaf.insert(victim.clone());
    let stamp = cluster.stamp();
    let error = "reset by peer".to_owned();
    cluster.say(
        &reporter,
        WorkerToDriver::CollectiveFailed { stamp, peer: Some(3), told_by: None, error },
    );
    cluster.settle();
    assert_eq!(cluster.sizes, [4], "waits for the accused");
    cluster.kill(&victim);
    assert_eq!(cluster.sizes, [4, 3]);
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    let cause = status.last_reset.expect("a reset").cause;
    assert!(cause.contains("signal 9 (SIGKILL)"), "{cause}");
}

/// A generation that forms, with the member that does not vote.
pub(super) fn forming_with_a_mute_member() -> (Cluster, WorkerId) {
    let mut cluster = two_by_two(|_| {});
    let mute = cluster.worker("a", 1);
    cluster.deaf.insert(mute.clone());
    let first = cluster.worker("a", 0);
    cluster.kill(&first);
    cluster.arrive(&mute, 0);
    cluster.settle();
    (cluster, mute)
}

#[test]
fn the_deadline_of_a_forming_generation_names_and_evicts() {
    let (mut cluster, mute) = forming_with_a_mute_member();
    cluster.pass(Duration::from_secs(11));
    assert!(cluster.resets.iter().any(|cause| matches!(
        cause,
        ResetCause::DeadlinePassed { phase, waiting_for }
            if phase == "form" && waiting_for == std::slice::from_ref(&mute)
    )));
    assert!(cluster.stops.iter().any(|(worker, _)| *worker == mute));
}

#[test]
fn a_member_is_evicted_once_however_many_deadlines_have_passed() {
    let (mut cluster, mute) = forming_with_a_mute_member();
    cluster.hold_verdicts = true;
    cluster.pass(Duration::from_secs(11));
    let before = cluster.stops_of(&mute);
    assert!(before > 0, "it was evicted, and its generation has not ended yet");
    let stamp = cluster.stamp();
    cluster.core.handle_missing(cluster.now, stamp, vec![mute.clone()]);
    cluster.settle();
    assert_eq!(cluster.stops_of(&mute), before);
}

#[test]
fn a_second_agent_of_one_name_is_refused_while_the_first_is_there() {
    let mut cluster = two_by_two(|_| {});
    let known = cluster.agent("a");
    cluster.join(&host("a"), 2, Vec::new());
    cluster.pass(Duration::from_secs(10));
    assert!(cluster.refused[0].contains("host a already has an agent"), "{:?}", cluster.refused);
    assert_eq!(cluster.sizes, [4], "the job is not disturbed");
    // A driver that stood still until now judges no silence for 6 s, and a host is lost after 2 s of it.
    cluster.join(&host("a"), 2, Vec::new());
    cluster.pass(Duration::from_secs(8));
    cluster.core.handle_link(cluster.now, &known, &silence(2000));
    cluster.pass(Duration::from_secs(4));
    assert_eq!(cluster.refused.len(), 1, "once the first is known to be dead the other is taken");
    assert_eq!(cluster.sizes.last(), Some(&4));
}

#[test]
fn t_11_a_host_that_was_told_to_join_another_job_is_refused() {
    let mut cluster = two_by_two(|config| config.run_id = Some("one".to_owned()));
    for (number, (run_id, refused)) in
        [(None, 0), (Some("one"), 0), (Some("two"), 1)].into_iter().enumerate()
    {
        let name = NodeName::Agent(host(&format!("c{number}")));
        let node = NodeId { name, incarnation: Incarnation(90) };
        cluster.join_job(&node, 1, Vec::new(), (run_id, None));
        assert_eq!(cluster.refused.len(), refused, "{run_id:?}");
    }
    assert!(cluster.refused[0].contains("this is the job one"), "{:?}", cluster.refused);
}

#[test]
fn t_2_a_host_that_was_told_another_number_of_hosts_is_refused_with_both() {
    let two = NodeCount { min: 2, max: 2 };
    let mut cluster = two_by_two(|config| config.nodes = Some(two));
    let of = |count| JobCommand { count, settings: BTreeMap::new() };
    let told = [None, Some(of(two)), Some(of(NodeCount { min: 2, max: 4 }))];
    for (number, (nodes, refused)) in told.into_iter().zip([0, 0, 1]).enumerate() {
        let name = NodeName::Agent(host(&format!("c{number}")));
        let node = NodeId { name, incarnation: Incarnation(90) };
        cluster.join_job(&node, 1, Vec::new(), (None, nodes.clone()));
        assert_eq!(cluster.refused.len(), refused, "{nodes:?}");
    }
    let reason = &cluster.refused[0];
    assert!(reason.contains("--nnodes 2,") && reason.contains("--nnodes 2:4"), "{reason}");
}

#[test]
fn t_2_a_host_whose_command_has_another_program_or_other_flags_is_refused_with_their_names() {
    let two = NodeCount { min: 2, max: 2 };
    let mut cluster = two_by_two(|config| {
        config.nodes = Some(two);
        config.program.argv = ["python", "-u", "train.py"].map(ToOwned::to_owned).to_vec();
    });
    let command = |change: fn(&mut DriverConfig)| {
        let mut config = cluster.core.config.clone();
        change(&mut config);
        config.job_command()
    };
    // The last one has been welcomed before, and says no settings any more.
    let commands = [
        (command(|_| {}), None),
        (command(|config| config.np = Some(7)), None),
        (command(|config| config.program.argv[0] = "/opt/bin/python3".to_owned()), None),
        (
            command(|config| config.program.argv.push("--part".to_owned())),
            Some("another program, or other arguments of it,"),
        ),
        (command(|config| config.shards = Some(8)), Some("another --shards than")),
        (
            command(|config| {
                config.shards = Some(8);
                config.program.argv.clear();
            }),
            Some("another --shards and another program than"),
        ),
        (Some(JobCommand { count: two, settings: BTreeMap::new() }), None),
    ];
    for (number, (nodes, refused)) in commands.into_iter().enumerate() {
        let name = NodeName::Agent(host(&format!("c{number}")));
        let node = NodeId { name, incarnation: Incarnation(90) };
        cluster.refused.clear();
        cluster.join_job(&node, 1, Vec::new(), (None, nodes));
        match refused {
            None => assert_eq!(cluster.refused, Vec::<String>::new(), "{number}"),
            Some(words) => assert!(cluster.refused[0].contains(words), "{:?}", cluster.refused),
        }
    }
}

#[test]
fn t_2_nodes_that_are_all_there_with_too_few_slots_are_named_with_the_way_out() {
    let mut cluster = Cluster::new(|config| {
        (config.np, config.min_np) = (Some(4), Some(4));
        config.nodes = Some(NodeCount { min: 2, max: 2 });
    });
    cluster.add_host("a", 2);
    let waiting_for = |cluster: &Cluster| {
        cluster.core.status(cluster.now, &|_| String::new()).waiting_for.expect("it waits")
    };
    assert!(waiting_for(&cluster).contains("hosts to join"), "{}", waiting_for(&cluster));
    cluster.add_host("b", 1);
    let said = waiting_for(&cluster);
    let words = "all 2 nodes are there, with 3 slots (a:2, b:1), and 4 workers are wanted";
    assert!(said.contains(words) && said.contains("--nproc-per-node"), "{said}");
    cluster.pass(Duration::from_secs(601));
    let reason = cluster.result.expect("it has failed").reason;
    assert!(reason.contains(words), "{reason}");
}

#[test]
fn t_2_slots_that_nodes_have_beyond_those_of_the_first_one_are_told() {
    for (of_second, told) in [(4, true), (2, false)] {
        let mut cluster = Cluster::new(|config| {
            (config.np, config.min_np, config.max_np) = (Some(4), Some(4), Some(4));
            config.nodes = Some(NodeCount { min: 2, max: 2 });
        });
        cluster.add_host("a", 2);
        cluster.add_host("b", of_second);
        let words = "all 2 nodes are there, with 6 slots (a:2, b:4), and the job takes 4:";
        assert_eq!(cluster.warnings.iter().any(|it| it.contains(words)), told, "{of_second} slots");
    }
}

/// A release that is not this one.
const OTHER_RELEASE: &str = "elastic-node 0.0.9, protocol 1.ab";

#[test]
fn x_12_a_library_of_another_release_ends_a_job_that_cannot_begin_without_it() {
    let mut cluster = Cluster::new(|config| {
        config.min_np = Some(2);
        config.hosts_join = false;
    });
    cluster.slow_start = true;
    cluster.add_host("a", 1);
    cluster.add_host("b", 2);
    cluster.library = LibraryTrace::Refused(OTHER_RELEASE.to_owned());
    let worker = cluster.worker("b", 1);
    cluster.exit(&worker, ExitStatus::Code(1));
    let result = cluster.result.as_ref().expect("all three slots are needed");
    let ours = env!("CARGO_PKG_VERSION");
    assert!(result.reason.contains("b[1]#") && result.reason.contains(OTHER_RELEASE), "{result:?}");
    assert!(result.reason.contains(&format!("this driver is elastic-node {ours}")), "{result:?}");
    let hint = result.hint.as_deref().expect("a way out");
    assert!(hint.contains(&format!("pip install elastic-node=={ours}")), "{hint}");
    assert!(cluster.failed_hosts.is_empty(), "no host is at fault");
}

#[test]
fn x_12_a_job_that_begins_without_a_host_of_another_release_waits_for_the_others() {
    let mut cluster = Cluster::new(|config| {
        (config.np, config.hosts_join) = (Some(2), true);
        config.on_failure = OnFailure::Blacklist;
    });
    cluster.slow_start = true;
    cluster.add_host("a", 2);
    cluster.library = LibraryTrace::Refused(OTHER_RELEASE.to_owned());
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, ExitStatus::Code(1));
    assert_eq!(cluster.result, None, "another host may join");
    assert!(cluster.failed_hosts.is_empty());
    let worker = cluster.worker("a", 1);
    cluster.exit(&worker, ExitStatus::Code(1));
    let result = cluster.result.as_ref().expect("as many as it needs");
    assert!(result.reason.contains(OTHER_RELEASE), "{result:?}");
}

#[test]
fn x_12_a_host_whose_library_is_of_another_release_is_not_blamed_and_tried_again() {
    let mut cluster = two_by_two(|config| config.min_np = Some(1));
    cluster.slow_start = true;
    let victim = cluster.worker("a", 0);
    cluster.exit(&victim, ExitStatus::Signal(9));
    let theirs = format!("elastic-node {}, protocol 2.ab", env!("CARGO_PKG_VERSION"));
    cluster.library = LibraryTrace::Refused(theirs);
    let mut before = victim;
    for _attempt in 0..6 {
        cluster.pass(Duration::from_secs(40));
        let worker = cluster.worker("a", 0);
        assert_ne!(worker, before, "the library may have been replaced meanwhile");
        cluster.exit(&worker, ExitStatus::Code(1));
        before = worker;
    }
    assert!(cluster.failed_hosts.is_empty());
    assert_eq!(cluster.result, None);
    assert_eq!(cluster.sizes.last(), Some(&3), "the others train");
    let warned: Vec<_> =
        cluster.warnings.iter().filter(|it| it.contains("of another build")).collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
}

#[test]
fn h_8_an_error_whose_process_ended_before_the_verdict_on_it_counts_once() {
    let mut cluster = two_by_two(|_| {});
    let worker = cluster.worker("b", 1);
    cluster.hold_verdicts = true;
    cluster.vote(&worker, Ballot::Failure { status: None, message: "bad data".to_owned() });
    cluster.exit(&worker, ExitStatus::Code(1));
    cluster.hold_verdicts = false;
    cluster.settle();
    let slot = cluster.core.roster.slot(&(worker.host, worker.slot));
    assert_eq!(slot.map(|slot| slot.failures), Some(1));
}
