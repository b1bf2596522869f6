//! Tests of the values and notes that programs report: their worker, the time for which they are shown, and their bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use elastic_protocol::messages::{HostCondition, ReportedValues, StatusReport};
use elastic_protocol::{GenerationId, Stamp, WorkerId};

use super::Cluster;
use super::cluster::progress;

/// Two workers, each alone on its host.
fn two() -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(2);
        config.min_np = Some(1);
    });
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    assert_eq!(cluster.sizes, [2]);
    cluster
}

fn reports(cluster: &mut Cluster, worker: &WorkerId, stamp: Stamp, loss: f64) {
    let mut reported = ReportedValues::default();
    reported.set("loss", loss).expect("allowed");
    cluster.say(worker, progress(stamp, 1, String::new(), reported));
    cluster.settle();
}

/// The values that the status shows of each host's worker.
fn shown(cluster: &Cluster) -> BTreeMap<String, String> {
    let status = cluster.core.status(cluster.now, &|_| String::new());
    let workers = status.workers.into_iter();
    workers.map(|worker| (worker.host.to_string(), worker.reported.to_string())).collect()
}

fn of(a: &str, b: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("a", a), ("b", b)].map(|(host, text)| (host.to_owned(), text.to_owned())))
}

#[test]
fn the_last_values_of_each_worker_are_shown_until_its_process_is_gone() {
    let mut cluster = two();
    let (a, b, stamp) = (cluster.worker("a", 0), cluster.worker("b", 0), cluster.stamp());
    for (worker, loss) in [(&a, 3.0), (&b, 4.0), (&a, 0.25)] {
        reports(&mut cluster, worker, stamp, loss);
    }
    assert_eq!(shown(&cluster), of("loss 0.25", "loss 4"));
    cluster.kill(&b);
    cluster.settle();
    assert_eq!(shown(&cluster), of("loss 0.25", ""), "the next process has reported nothing");
}

#[test]
fn a_note_that_is_longer_than_a_worker_sends_it_is_cut() {
    let mut cluster = two();
    let (a, stamp) = (cluster.worker("a", 0), cluster.stamp());
    cluster.say(&a, progress(stamp, 1, "€".repeat(1_000_000), ReportedValues::default()));
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert_eq!(status.workers.iter().map(|worker| worker.note.len()).max(), Some(255));
}

#[test]
fn g_2_values_of_an_older_generation_are_dropped() {
    let mut cluster = two();
    let a = cluster.worker("a", 0);
    let older = Stamp { generation: GenerationId(0), ..cluster.stamp() };
    reports(&mut cluster, &a, older, 9.0);
    assert_eq!(shown(&cluster), of("", ""));
}

#[test]
fn the_last_resets_are_in_the_status_and_no_more_of_them_than_it_has_room_for() {
    let mut cluster = two();
    let most = StatusReport::RESETS_RECENT_MAX;
    for _ in 0..most {
        for is_out in [true, false] {
            cluster.drain("b", is_out);
            cluster.settle();
            cluster.pass(Duration::from_secs(2));
            cluster.settle();
        }
    }
    let status = cluster.core.status(cluster.now, &|time| time.to_string());
    assert!(
        status.resets > most as u64,
        "each departure and each return is one: {}",
        status.resets
    );
    assert_eq!(status.resets_recent.len(), most);
    assert_eq!(status.resets_recent.last(), status.last_reset.as_ref());
    let times: Vec<&String> = status.resets_recent.iter().map(|reset| &reset.at).collect();
    let different: BTreeSet<&&String> = times.iter().collect();
    assert_eq!(different.len(), most, "{times:?}");
}

#[test]
fn a_host_that_the_operator_takes_out_leaves_in_order_and_comes_back_without_a_restart_of_the_others()
 {
    let mut cluster = two();
    let a = cluster.worker("a", 0);
    cluster.drain("b", true);
    cluster.settle();
    assert_eq!(cluster.members(), std::slice::from_ref(&a));
    let status = cluster.core.status(cluster.now, &|_| String::new());
    let b = status.hosts.iter().find(|entry| entry.name.to_string() == "b").expect("listed");
    assert_eq!((b.state, status.steps_lost), (HostCondition::Drained, 0));
    cluster.drain("b", false);
    cluster.settle();
    cluster.pass(Duration::from_secs(2));
    cluster.settle();
    assert_eq!((cluster.members().len(), cluster.members()[0].clone()), (2, a));
}
