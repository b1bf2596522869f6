//! Tests of durable checkpoints: the step of a save, the rank that makes it whole, and the cost of a failure.

mod at_the_end;
mod before_stop;
mod leavers;
mod resuming;

use std::time::Duration;

use elastic_protocol::messages::{
    AgentToDriver, Ballot, BulkWork, CheckpointReport, CheckpointSource, CheckpointStatus,
    DriverStatus, MovedBytes, WorkerToDriver,
};
use elastic_protocol::{Deadlines, ExitStatus, HostName, JobOutcome, Step, WorkerId};

use super::cluster::{Cluster, lost};
use crate::core::checkpoints::{HURRIED_EVERY, LEAD_STEPS};
use crate::core::{CheckpointEvery, CheckpointSettings, OnTotalLoss, ResumeFrom};

fn cluster(every: CheckpointEvery, resume: ResumeFrom) -> Cluster {
    let mut cluster = without_hosts(every, resume);
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    cluster
}

fn without_hosts(every: CheckpointEvery, resume: ResumeFrom) -> Cluster {
    without_hosts_that(OnTotalLoss::Fail, every, resume)
}

fn without_hosts_that(
    on_total_loss: impl Into<Option<OnTotalLoss>>,
    every: CheckpointEvery,
    resume: ResumeFrom,
) -> Cluster {
    Cluster::new(|config| {
        config.np = Some(2);
        config.min_np = Some(1);
        config.on_total_loss = on_total_loss.into();
        config.checkpoint = Some(CheckpointSettings {
            directory: "shared".to_owned(),
            every,
            keep: 2,
            bytes_per_s: None,
            resume,
        });
    })
}

fn of_steps() -> Cluster {
    cluster(CheckpointEvery::Steps(100), ResumeFrom::Auto)
}

/// The step that is being saved.
fn saving(cluster: &Cluster) -> Option<u64> {
    status(cluster).saving
}

fn status(cluster: &Cluster) -> CheckpointStatus {
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    status.checkpoint.expect("the job has checkpoints")
}

fn report(cluster: &mut Cluster, worker: &WorkerId, report: CheckpointReport) {
    let step = Step(saving(cluster).expect("a save is under way"));
    let stamp = cluster.stamp();
    cluster.say(worker, WorkerToDriver::Checkpoint { stamp, step, report });
    cluster.settle();
}

fn say_all(cluster: &mut Cluster, step: u64) {
    for worker in cluster.members() {
        cluster.say_step(&worker, step);
    }
    cluster.settle();
}

/// Both members' training functions return at this step.
fn end_training(cluster: &mut Cluster, step: u64) {
    for worker in cluster.members() {
        cluster.say_step(&worker, step);
        cluster.vote(&worker, Ballot::Success);
    }
    cluster.settle();
}

const PART: CheckpointReport = CheckpointReport::PartSaved { bytes: 1 };

/// Saves a step with all members.
fn save(cluster: &mut Cluster) -> u64 {
    let step = saving(cluster).expect("a save is under way");
    for worker in cluster.members() {
        report(cluster, &worker, PART);
    }
    let sealer = cluster.members()[0].clone();
    report(cluster, &sealer, CheckpointReport::Sealed { bytes: 2, troubles: Vec::new() });
    step
}

#[test]
fn all_members_save_one_step_and_rank_0_makes_it_whole_when_all_parts_are_safe() {
    let mut cluster = of_steps();
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    let told: Vec<(WorkerId, u64)> =
        cluster.saves.iter().map(|(worker, order)| (worker.clone(), order.step.0)).collect();
    assert_eq!(told, [(a.clone(), 100), (b.clone(), 100)], "a step that nobody has reached");
    report(&mut cluster, &b, PART);
    report(&mut cluster, &b, PART);
    assert_eq!(cluster.seals, [], "b says it twice, and a's part is not safe");
    report(&mut cluster, &a, PART);
    assert_eq!(cluster.seals, [(a.clone(), 100)]);
    assert_eq!(status(&cluster).last_step, None, "not yet");
    report(&mut cluster, &a, CheckpointReport::Sealed { bytes: 2, troubles: Vec::new() });
    assert_eq!(status(&cluster).last_step, Some(100));
    assert_eq!(saving(&cluster), Some(200), "the next one");
}

#[test]
fn a_period_counts_from_the_end_of_the_last_save() {
    let period = Duration::from_secs(30);
    let mut cluster = cluster(CheckpointEvery::Period(period), ResumeFrom::Auto);
    cluster.pass(Duration::from_secs(29));
    assert_eq!(saving(&cluster), None);
    cluster.pass(Duration::from_secs(2));
    cluster.pass(Duration::from_secs(10));
    assert_eq!(cluster.saves.len(), 2, "one at a time");
    save(&mut cluster);
    cluster.pass(Duration::from_secs(29));
    assert_eq!(saving(&cluster), None);
    cluster.pass(Duration::from_secs(2));
    assert!(saving(&cluster).is_some());
}

/// All members have made the ordered commit before the order came.
fn miss(cluster: &mut Cluster, reached: u64) {
    let (stamp, step) = (cluster.stamp(), Step(saving(cluster).expect("a save is under way")));
    for worker in cluster.members() {
        let report = CheckpointReport::Missed { reached: Step(reached) };
        cluster.say(&worker, WorkerToDriver::Checkpoint { stamp, step, report });
    }
    cluster.settle();
}

#[test]
fn c_4_an_order_that_one_member_missed_is_given_anew_at_once() {
    let mut cluster = cluster(CheckpointEvery::Period(Duration::from_secs(1)), ResumeFrom::Auto);
    cluster.pass(Duration::from_secs(2));
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    for part in [PART, CheckpointReport::Failed { reason: "no space left".to_owned() }] {
        let (stamp, step) = (cluster.stamp(), Step(saving(&cluster).expect("a save")));
        let orders = cluster.saves.len();
        report(&mut cluster, &a, CheckpointReport::Missed { reached: step });
        assert_eq!(cluster.saves.len(), orders + 2, "nobody waits for the part of b");
        let next = saving(&cluster);
        assert!(next > Some(step.0));
        cluster.say(&b, WorkerToDriver::Checkpoint { stamp, step, report: part });
        cluster.settle();
        assert_eq!((saving(&cluster), &cluster.seals), (next, &Vec::new()));
    }
    assert_eq!(status(&cluster).failed, None, "that part was of no use");
}

#[test]
fn an_order_that_comes_too_late_is_given_again_with_a_longer_lead() {
    let mut cluster = cluster(CheckpointEvery::Period(Duration::from_secs(1)), ResumeFrom::Auto);
    cluster.pass(Duration::from_secs(2));
    let mut leads = Vec::new();
    for reached in [50, 100, 200] {
        miss(&mut cluster, reached);
        leads.push(saving(&cluster).expect("at once") - reached);
    }
    assert_eq!(leads, [4, 8, 16]);
    assert_eq!(status(&cluster).failed, None, "that is no failure");
}

#[test]
fn c_1_a_longer_lead_does_not_outlast_the_moment_that_needed_it() {
    let mut cluster = cluster(CheckpointEvery::Steps(10), ResumeFrom::Auto);
    for reached in [50, 100, 150, 200, 250, 300] {
        miss(&mut cluster, reached);
    }
    assert_eq!(saving(&cluster), Some(430), "128 steps ahead, at a multiple of 10");
    let saved: Vec<u64> = (0..7).map(|_| save(&mut cluster)).collect();
    let next = saving(&cluster).expect("the next one");
    assert_eq!(next - saved[6], 10, "an interval from one to the next again: {saved:?}");
    for reached in [600, 700, 800] {
        miss(&mut cluster, reached);
    }
    let victim = cluster.members()[1].clone();
    cluster.kill(&victim);
    cluster.pass(Duration::from_secs(5));
    let began = cluster.core.round.current().expect("a generation").formation.step.0;
    let first = saving(&cluster).expect("a save of the new generation");
    assert!(first <= began + 10, "step {first} is saved by a generation that begins from {began}");
}

#[test]
fn c_1_while_a_disk_keeps_up_checkpoints_are_an_interval_apart() {
    let mut cluster = cluster(CheckpointEvery::Steps(10), ResumeFrom::Auto);
    let b = cluster.members()[1].clone();
    let mut saved = Vec::new();
    for _ in 0..5 {
        let step = saving(&cluster).expect("a save is under way");
        // Seven more commits are made while it is written.
        cluster.say_step(&b, step + 7);
        saved.push(save(&mut cluster));
    }
    assert_eq!(saved, [10, 20, 30, 40, 50]);
}

#[test]
fn c_4_a_slow_disk_makes_checkpoints_rarer_and_holds_no_step_up() {
    let mut cluster = cluster(CheckpointEvery::Steps(10), ResumeFrom::Auto);
    let b = cluster.members()[1].clone();
    let mut saved = Vec::new();
    for _ in 0..3 {
        let step = saving(&cluster).expect("a save is under way");
        for made in 1..=25 {
            cluster.say_step(&b, step + made);
            assert_eq!(saving(&cluster), Some(step), "one at a time");
        }
        saved.push(save(&mut cluster));
        // The first interval that begins after the save: nothing piles up.
        let next = saving(&cluster).expect("the next one");
        assert_eq!(next, (step + 25 + LEAD_STEPS).next_multiple_of(10));
    }
    assert_eq!(saved, [10, 40, 70]);
    assert_eq!(status(&cluster).failed, None, "that is no failure");
    assert_eq!(cluster.resets.len(), 0);
}

#[test]
fn c_4_a_save_that_fails_is_told_and_the_next_one_is_tried() {
    let mut cluster = of_steps();
    let b = cluster.members()[1].clone();
    let reason = "no space left".to_owned();
    report(&mut cluster, &b, CheckpointReport::Failed { reason });
    let failed = status(&cluster).failed.expect("it is in the status");
    assert!(failed.contains("step 100") && failed.contains("no space left"), "{failed}");
    assert_eq!(cluster.resets.len(), 0, "training goes on");
    let progress = |cluster: &mut Cluster, step: u64| {
        cluster.say_step(&b, step);
        cluster.settle();
    };
    assert_eq!(
        saving(&cluster),
        None,
        "not until the step is reached: the next order may fail at once, too"
    );
    progress(&mut cluster, 99);
    assert_eq!(saving(&cluster), None);
    progress(&mut cluster, 100);
    assert_eq!(saving(&cluster), Some(200));
    save(&mut cluster);
    assert_eq!(status(&cluster).failed, None, "it works again");
}

fn warnings(cluster: &Cluster) -> Vec<String> {
    cluster.core.status(cluster.now, &|at| at.to_string()).warnings
}

#[test]
fn a_save_that_hangs_is_named_and_stops_nobody() {
    let mut cluster = of_steps();
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    cluster.pass(Duration::from_secs(90));
    assert_eq!(status(&cluster).failed, None, "the step has not been reached");
    for worker in [&a, &b] {
        cluster.say_step(worker, 100);
    }
    report(&mut cluster, &a, PART);
    cluster.pass(Duration::from_secs(61));
    let failed = status(&cluster).failed.expect("it is in the status");
    assert!(failed.contains("slow") && failed.contains(&b.to_string()), "{failed}");
    assert!(!failed.contains(&a.to_string()), "{failed}");
    assert_eq!(cluster.resets.len(), 0);
}

#[test]
fn a_save_ends_with_its_generation_and_the_next_one_begins_another() {
    let mut cluster = of_steps();
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    let (stamp, step) = (cluster.stamp(), Step(100));
    report(&mut cluster, &a, PART);
    cluster.report_exit(&b, ExitStatus::Signal(9));
    cluster.pass(Duration::from_secs(5));
    cluster.say(&a, WorkerToDriver::Checkpoint { stamp, step, report: PART });
    cluster.settle();
    assert_eq!(cluster.seals, [], "parts of two generations make no checkpoint");
    let orders = cluster.saves.iter().filter(|(_, order)| order.stamp != stamp).count();
    assert!(orders >= 2, "all members of the new generation have an order");
    assert_eq!(status(&cluster).failed, None);
    assert_eq!(save(&mut cluster), 100);
}

#[test]
fn orders_are_repeated_to_a_member_that_was_out_of_reach() {
    let mut cluster = of_steps();
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    report(&mut cluster, &a, PART);
    cluster.saves.clear();
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    let told: Vec<&WorkerId> = cluster.saves.iter().map(|(worker, _)| worker).collect();
    assert!(told.contains(&&a) && told.contains(&&b), "a new driver begins a save of its own");
    save(&mut cluster);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    assert_eq!(status(&cluster).last_step, Some(100), "D-4: it is on record");
}

#[test]
fn c_1_a_save_that_comes_due_before_a_change_is_undone_follows_it() {
    let period = Duration::from_secs(1);
    let mut cluster = cluster(CheckpointEvery::Period(period), ResumeFrom::Auto);
    cluster.pass(period);
    save(&mut cluster);
    cluster.remove_host_for_a_moment("b", |cluster| {
        cluster.pass(2 * period);
        assert_eq!(saving(cluster), None, "training is about to stop");
    });
    assert!(cluster.resets.is_empty(), "called off");
    assert!(saving(&cluster).is_some());
}

#[test]
fn the_bytes_of_a_save_are_shown_while_it_is_under_way_and_not_before_it() {
    let period = Duration::from_secs(60);
    let mut cluster = cluster(CheckpointEvery::Period(period), ResumeFrom::Auto);
    let (first, stamp) = (cluster.members()[0].clone(), cluster.stamp());
    let bytes = MovedBytes { work: BulkWork::SavesCheckpoint, done: 3, total: 10 };
    let moved = |cluster: &Cluster| {
        cluster.core.status(cluster.now, &|at| at.to_string()).moved.map(|moved| moved.done)
    };
    cluster.say(&first, WorkerToDriver::Moves { stamp, bytes });
    assert_eq!((saving(&cluster), moved(&cluster)), (None, None));
    cluster.pass(period);
    assert!(saving(&cluster).is_some(), "it is due");
    cluster.say(&first, WorkerToDriver::Moves { stamp, bytes });
    assert_eq!(moved(&cluster), Some(3));
}

#[test]
fn c_1_contents_that_differ_are_saved_by_rank_0_alone_from_then_on() {
    let mut cluster = of_steps();
    let root = cluster.members()[0].clone();
    cluster.members().iter().for_each(|member| report(&mut cluster, member, PART));
    let reason = "part 1 is of another commit than part 0".to_owned();
    report(&mut cluster, &root, CheckpointReport::Differ { reason });
    assert_eq!(status(&cluster).failed, None, "another one is ordered at once");
    assert!(cluster.warnings.iter().any(|text| text.contains("rank 0 writes each checkpoint")));
    assert_eq!(saving(&cluster), Some(200));
    assert_eq!(cluster.seals.len(), 1);
    let orders = |cluster: &Cluster| -> Vec<(u64, bool)> {
        cluster.saves.iter().map(|(_, order)| (order.step.0, order.is_by_rank_0)).collect()
    };
    assert_eq!(orders(&cluster), [(100, false), (100, false), (200, true), (200, true)]);
    // A new driver goes on so: the members may be writing the step that it orders anew.
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    assert_eq!(orders(&cluster).last().map(|(_, is_by_rank_0)| *is_by_rank_0), Some(true));
    assert_eq!([save(&mut cluster), save(&mut cluster)], [100, 200]);
    assert_eq!(status(&cluster).last_step, Some(200), "all have made the commit");
    // So is the commit with which training ends.
    end_training(&mut cluster, 230);
    assert_eq!(orders(&cluster).last(), Some(&(230, true)));
}

#[test]
fn c_1_the_last_commit_is_ordered_anew_of_rank_0_if_the_contents_differ() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 70);
    let root = cluster.members()[0].clone();
    for is_by_rank_0 in [false, true] {
        assert_eq!(cluster.saves.last().map(|(_, it)| it.is_by_rank_0), Some(is_by_rank_0));
        cluster.members().iter().for_each(|member| report(&mut cluster, member, PART));
        if !is_by_rank_0 {
            let reason = "the contents differ".to_owned();
            report(&mut cluster, &root, CheckpointReport::Differ { reason });
        }
    }
    report(&mut cluster, &root, CheckpointReport::Sealed { bytes: 2, troubles: Vec::new() });
    assert_eq!(status(&cluster).last_step, Some(70));
}
