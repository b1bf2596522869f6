//! Tests of the parts' checks: each finds the broken invariant it is meant for.

use elastic_protocol::{ResetCause, Time};

use super::cluster::{Cluster, host};
use crate::core::phase::{Gather, RoundPhase};
use crate::core::table::Stance;

fn running() -> Cluster {
    let mut cluster = Cluster::new(|config| config.np = Some(2));
    cluster.add_host("a", 2);
    assert_eq!(cluster.core.check(), Ok(()));
    cluster
}

fn begin_reset(cluster: &mut Cluster) {
    let cause = ResetCause::HostBlacklisted { host: host("a") };
    cluster.core.round.start_reset_record(cluster.now, cause, cluster.now);
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
    cluster.core.roster.corrupt(|workers, _| drop(workers.remove(&worker)));
    assert_eq!(found(&cluster), format!("slot a[1] has {worker}, which is not there"));
}

#[test]
fn g_9_a_phase_without_a_timer_is_found() {
    let mut cluster = running();
    let deadline = Time(u64::MAX);
    let waiting_for = Default::default();
    let (since, ends_by) = (cluster.now, None);
    let gather = Gather { since, deadline, waiting_for, ends_by, changed_at: since };
    cluster.core.state.forget();
    cluster.core.round.corrupt(|phase, _| *phase = RoundPhase::Gather(gather));
    assert_eq!(found(&cluster), "G-9: the phase gather has no timer");
}

#[test]
fn g_9_a_back_off_without_a_timer_is_found() {
    let mut cluster = running();
    cluster.core.roster.back_off(&(host("a"), 0), Time(u64::MAX));
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

#[test]
fn a_worker_that_has_arrived_and_is_not_at_rest_is_found() {
    let mut cluster = running();
    let worker = cluster.worker("a", 1);
    cluster.core.roster.set_stance(cluster.now, &worker, Stance::Arrived);
    assert_eq!(found(&cluster), format!("{worker} has arrived and is not at rest"));
}

#[test]
fn g_3_a_member_without_a_rank_is_found() {
    let mut cluster = running();
    let worker = cluster.core.roster.start(cluster.now, &(host("a"), 2));
    let address = "127.0.0.1:9".parse().expect("a literal");
    cluster.core.roster.attach(cluster.now, &worker, None, address, None);
    cluster.core.roster.join_generation(cluster.now, &worker);
    assert_eq!(found(&cluster), format!("{worker} is a member and has no rank"));
}

#[test]
fn g_7_a_seating_that_missed_a_change_is_found() {
    let mut cluster = running();
    let worker = cluster.worker("a", 1);
    cluster.core.roster.corrupt(|workers, _| {
        let record = workers.get_mut_untouched(&worker).expect("it is there");
        record.leaving = Some("nobody was told".to_owned());
    });
    let reason = found(&cluster);
    assert!(reason.starts_with("the seating is") && reason.contains("made anew"), "{reason}");
}

#[test]
fn g_2_a_reset_that_leads_to_no_generation_is_found() {
    let mut cluster = running();
    let next = cluster.core.round.next_generation();
    begin_reset(&mut cluster);
    cluster.core.round.forget_last_number();
    assert!(found(&cluster).starts_with(&format!("G-2: a reset from {next} to {next}")));
}

#[test]
fn g_9_a_worker_that_is_waited_for_and_has_arrived_is_found() {
    let mut cluster = running();
    let worker = cluster.worker("a", 1);
    let deadline = cluster.now + std::time::Duration::from_secs(1);
    cluster.core.roster.note_rest(&worker, None);
    cluster.core.roster.set_stance(cluster.now, &worker, Stance::Arrived);
    let waiting_for = [worker.clone()].into();
    let phase = RoundPhase::Stopping { deadline, boundary: 1, waiting_for };
    begin_reset(&mut cluster);
    cluster.core.enter_phase(cluster.now, phase);
    assert_eq!(found(&cluster), format!("{worker} is waited for and has arrived"));
}

#[test]
fn g_9_a_lost_worker_that_the_gather_room_waits_for_is_found() {
    let mut cluster = running();
    let worker = cluster.worker("a", 1);
    let deadline = cluster.now + std::time::Duration::from_secs(1);
    let waiting_for = [worker.clone()].into();
    let (since, ends_by) = (cluster.now, None);
    let gather = Gather { since, deadline, waiting_for, ends_by, changed_at: since };
    begin_reset(&mut cluster);
    cluster.core.round.lose(&worker);
    cluster.core.enter_phase(cluster.now, RoundPhase::Gather(gather));
    assert_eq!(found(&cluster), format!("G-9: {worker} is lost, and waited for"));
}

#[test]
fn a_reset_that_does_not_fit_its_phase_is_found() {
    let mut cluster = running();
    begin_reset(&mut cluster);
    assert_eq!(found(&cluster), "whether a reset is under way in phase run: true");
    let deadline = cluster.now + std::time::Duration::from_secs(1);
    cluster.core.enter_phase(cluster.now, RoundPhase::Sync { deadline });
    assert_eq!(found(&cluster), "whether all were READY in phase sync: false");
    let mut cluster = running();
    let (boundary, waiting_for) = (1, Default::default());
    let phase = RoundPhase::Stopping { deadline, boundary, waiting_for };
    cluster.core.enter_phase(cluster.now, phase);
    assert_eq!(found(&cluster), "whether a reset is under way in phase run: false");
}

#[test]
fn g_9_workers_that_are_waited_for_without_a_timer_are_found() {
    for (stance, what) in [
        (Stance::Attached, "the rest of a[1]#2 has no timer"),
        (Stance::Dying, "the end of a[1]#2, which has died, has no timer"),
    ] {
        let mut cluster = running();
        let worker = cluster.worker("a", 1);
        cluster.core.roster.set_stance(cluster.now, &worker, stance);
        assert_eq!(found(&cluster), format!("G-9: {what}"));
    }
}

#[test]
fn a_phase_that_waits_for_a_record_that_is_not_made_is_found() {
    let mut cluster = running();
    let deadline = cluster.now + std::time::Duration::from_secs(1);
    let core = &mut cluster.core;
    let phase = RoundPhase::Form { deadline };
    core.round.enter(cluster.now, phase, u64::MAX, &mut core.agenda);
    assert!(found(&cluster).starts_with(&format!("a phase waits for record {} of ", u64::MAX)));
}
