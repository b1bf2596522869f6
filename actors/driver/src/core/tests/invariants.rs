//! Tests of the parts' checks: each finds the broken invariant it is meant for.

use elastic_protocol::Time;

use super::cluster::{Cluster, host};
use crate::core::phase::{Gather, RoundPhase};

fn running() -> Cluster {
    let mut cluster = Cluster::new(|config| config.np = Some(2));
    cluster.add_host("a", 2);
    assert_eq!(cluster.core.check(), Ok(()));
    cluster
}

fn found(cluster: &Cluster) -> String {
    cluster.core.check().expect_err("something is wrong")
}

#[test]
fn a_member_that_is_in_no_table_is_found() {
    let mut cluster = running();
    let mut stranger = cluster.worker("a", 0);
    stranger.host = host("b");
    cluster.core.round.corrupt(|_, current| {
        current.as_mut().expect("a generation").alive.insert(stranger);
    });
    assert_eq!(found(&cluster), "b[0]#1 is alive in a generation of which it is no member");
}

#[test]
fn a_slot_whose_worker_is_not_there_is_found() {
    let mut cluster = running();
    let worker = cluster.worker("a", 1);
    cluster.core.roster.workers.remove(&worker);
    assert_eq!(found(&cluster), format!("slot a[1] has {worker}, which is not there"));
}

#[test]
fn g_9_a_phase_without_a_timer_is_found() {
    let mut cluster = running();
    let deadline = Time(u64::MAX);
    let waiting_for = Default::default();
    let gather = Gather { since: cluster.now, deadline, waiting_for, changed_at: cluster.now };
    cluster.core.state.forget();
    cluster.core.round.corrupt(|phase, _| *phase = RoundPhase::Gather(gather));
    assert_eq!(found(&cluster), "G-9: the phase gather has no timer");
}

#[test]
fn g_9_a_back_off_without_a_timer_is_found() {
    let mut cluster = running();
    let slot = cluster.core.roster.slots.get_or_default((host("a"), 0));
    slot.backoff_until = Some(Time(u64::MAX));
    assert_eq!(found(&cluster), "G-9: the back-off of a[0] has no timer");
}

#[test]
fn a_member_without_a_record_is_found() {
    let mut cluster = running();
    let worker = cluster.worker("a", 1);
    cluster.core.roster.remove(&worker);
    let expected = format!("{worker} is alive in its generation and not on the roster");
    assert_eq!(found(&cluster), expected);
}
