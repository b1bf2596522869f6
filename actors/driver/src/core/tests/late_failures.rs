//! Tests of members that fail after the end of their generation was decided.

use elastic_protocol::WorkerId;
use elastic_protocol::messages::Ballot;

use super::Cluster;
use super::failures::two_by_two;

fn fail(cluster: &mut Cluster, worker: &WorkerId, message: &str) {
    cluster.vote(worker, Ballot::Failure { status: None, message: message.to_owned() });
}

#[test]
fn g_10_a_member_that_fails_by_the_end_of_its_generation_is_told_with_its_error() {
    let mut cluster = two_by_two(|_| {});
    let [killed, one, other, third]: [WorkerId; 4] =
        cluster.members().try_into().expect("four workers");
    // Their programs do not pass the error of the broken collective on.
    cluster.deaf.extend([one.clone(), other.clone()]);
    cluster.kill(&killed);
    fail(&mut cluster, &one, "panicked: the group is gone");
    fail(&mut cluster, &other, "panicked: another rank is gone");
    let told = |worker: &WorkerId, error: &str| (worker.clone(), error.to_owned());
    assert_eq!(
        cluster.late_failures,
        [told(&one, "panicked: the group is gone"), told(&other, "panicked: another rank is gone")]
    );
    assert!(cluster.members().contains(&third), "the one that passed it on trains");
}

#[test]
fn g_10_members_that_fail_by_the_same_error_are_told_once_as_the_cause() {
    let mut cluster = two_by_two(|_| {});
    let [one, other, ..]: [WorkerId; 4] = cluster.members().try_into().expect("four workers");
    cluster.deaf.insert(other.clone());
    fail(&mut cluster, &one, "no such column");
    fail(&mut cluster, &other, "no such column");
    assert_eq!(cluster.resets.len(), 1);
    assert!(cluster.late_failures.is_empty(), "{:?}", cluster.late_failures);
}
