//! Tests of the first steps after a reset: the time of their report, and its content for each host.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::{HostName, WorkerId};

use super::Cluster;
use crate::core::event::HostResetMs;

/// Two hosts with two workers each, which have lost one: the others train again.
fn with_a_reset() -> (Cluster, Vec<WorkerId>) {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(4);
        config.min_np = Some(1);
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    assert_eq!(cluster.sizes, [4]);
    let members = cluster.members();
    for worker in &members {
        cluster.say_step(worker, 1);
    }
    assert!(cluster.first_steps.is_empty(), "no reset led to the first generation");
    // The slot's next process does not interrupt the others.
    cluster.slow_start = true;
    let victim = cluster.worker("b", 1);
    cluster.kill(&victim);
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 3]);
    let members = cluster.members();
    (cluster, members)
}

/// The report of first steps: it came once, after the reset's own report.
fn told(cluster: &Cluster) -> &BTreeMap<HostName, HostResetMs> {
    let [(resets_before, hosts)] = &cluster.first_steps[..] else {
        panic!("{:?}", cluster.first_steps)
    };
    assert_eq!(*resets_before, 1);
    hosts
}

#[test]
fn the_first_steps_are_told_once_every_member_has_committed() {
    let (mut cluster, members) = with_a_reset();
    let [first, others @ ..] = &members[..] else { panic!("{members:?}") };
    for worker in others {
        cluster.say_step(worker, 1);
    }
    cluster.say_step(first, 0);
    cluster.settle();
    assert!(cluster.first_steps.is_empty(), "the step that it begins from is not its first");
    cluster.pass(Duration::from_millis(40));
    cluster.say_step(first, 1);
    cluster.settle();
    let hosts = told(&cluster);
    let names: Vec<&str> = hosts.keys().map(HostName::as_str).collect();
    assert_eq!(names, ["a", "b"]);
    for ms in hosts.values() {
        let stepped = ms.first_step.expect("all have committed");
        assert!(0.0 <= ms.ready && ms.ready <= ms.synced && ms.synced <= stepped, "{ms:?}");
    }
    let late = hosts[&first.host].first_step.expect("committed");
    assert!(late >= 40.0, "the host's last rank counts: {late}");
    cluster.say_step(first, 2);
    cluster.settle();
    assert_eq!(cluster.first_steps.len(), 1, "once");
}

#[test]
fn g_9_first_steps_that_do_not_come_are_told_of_after_their_deadline() {
    let (mut cluster, members) = with_a_reset();
    let late = cluster.worker("a", 0);
    for worker in members.iter().filter(|worker| **worker != late) {
        cluster.say_step(worker, 1);
    }
    cluster.pass(Duration::from_secs(299));
    assert!(cluster.first_steps.is_empty());
    cluster.pass(Duration::from_secs(2));
    let hosts = told(&cluster);
    let stepped: Vec<bool> = hosts.values().map(|ms| ms.first_step.is_some()).collect();
    assert_eq!(stepped, [false, true], "a rank of host a has not");
}

#[test]
fn the_end_of_the_generation_tells_what_is_known() {
    let (mut cluster, _) = with_a_reset();
    let victim = cluster.worker("b", 0);
    cluster.kill(&victim);
    let hosts = told(&cluster);
    assert!(hosts.values().all(|ms| ms.first_step.is_none()), "{hosts:?}");
}
