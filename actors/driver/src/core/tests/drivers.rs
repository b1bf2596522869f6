//! Tests of standby drivers: the nodes that are told of them, and the handover.

use std::time::Duration;

use elastic_protocol::messages::DriverStatus;
use elastic_protocol::{JobOutcome, NodeId, Term};

use super::Cluster;

const LONG: Duration = Duration::from_secs(20);
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

fn standby(address: &str) -> DriverStatus {
    DriverStatus { address: address.to_owned(), version: "2".to_owned() }
}

fn two() -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(2);
        config.min_np = Some(1);
        config.driver_address = "a:7070".to_owned();
    });
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    cluster.train(10);
    cluster
}

fn stand_by(cluster: &mut Cluster, addresses: &[&str]) {
    let standbys = addresses.iter().map(|address| standby(address)).collect();
    cluster.core.handle_standbys(cluster.now, standbys);
    cluster.settle();
}

#[test]
fn all_who_are_there_and_all_who_come_are_told_of_the_drivers() {
    let mut cluster = two();
    assert!(cluster.told_of_drivers.is_empty(), "there is none but the one that they know");
    stand_by(&mut cluster, &["b:7070"]);
    stand_by(&mut cluster, &["b:7070"]);
    let [(nodes, told)] = &cluster.told_of_drivers[..] else { panic!("told once") };
    assert_eq!(nodes.len(), 4, "two agents, two workers: {nodes:?}");
    assert_eq!(told.addresses, ["a:7070", "b:7070"]);
    cluster.told_of_drivers.clear();
    cluster.add_host("c", 1);
    cluster.pass(LONG);
    let newcomer = NodeId::worker(&cluster.worker("c", 0));
    assert!(cluster.told_of_drivers.iter().any(|(nodes, _)| *nodes == [newcomer.clone()]));
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert_eq!((status.driver.address.as_str(), status.term), ("a:7070", 1));
    assert_eq!(status.standbys, [standby("b:7070")]);
    stand_by(&mut cluster, &[]);
    let (_, told) = cluster.told_of_drivers.pop().expect("it has gone");
    assert_eq!(told.addresses, ["a:7070"]);
}

#[test]
fn sigterm_leaves_the_job_to_those_that_stand_by() {
    let mut cluster = two();
    let stamp = cluster.stamp();
    stand_by(&mut cluster, &["b:7070"]);
    cluster.core.handle_stop(cluster.now, SIGTERM);
    cluster.settle();
    assert!(cluster.handed_over && cluster.result.is_none());
    // Later events are the successor's affair.
    let victim = cluster.worker("b", 0);
    cluster.kill(&victim);
    cluster.pass(LONG);
    assert_eq!((cluster.stamp(), cluster.core.poll_timeout()), (stamp, None));
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(LONG);
    assert!(cluster.stamp().term == Term(2) && cluster.sizes.last() == Some(&2));
}

#[test]
fn sigterm_ends_the_job_where_nobody_stands_by_and_ctrl_c_anyway() {
    for (standbys, signal) in [(&[][..], SIGTERM), (&["b:7070"][..], SIGINT)] {
        let mut cluster = two();
        stand_by(&mut cluster, standbys);
        cluster.core.handle_stop(cluster.now, signal);
        cluster.pass(LONG);
        let result = cluster.result.expect("the job is over");
        assert_eq!((result.outcome, result.code), (JobOutcome::Stopped, 128 + signal));
        assert!(!cluster.handed_over);
    }
}
