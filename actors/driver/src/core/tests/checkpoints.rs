//! Tests of durable checkpoints: when a step is saved, who makes it whole, and what a failure costs.

use std::time::Duration;

use elastic_protocol::messages::{
    AgentToDriver, Ballot, BulkWork, CheckpointReport, CheckpointStatus, DriverStatus, MovedBytes,
    WorkerToDriver,
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
    on_total_loss: OnTotalLoss,
    every: CheckpointEvery,
    resume: ResumeFrom,
) -> Cluster {
    Cluster::new(|config| {
        config.np = Some(2);
        config.min_np = Some(1);
        config.on_total_loss = Some(on_total_loss);
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
    for worker in cluster.members() {
        report(cluster, &worker, CheckpointReport::Missed { reached: Step(reached) });
    }
}

#[test]
fn an_order_that_one_member_missed_is_given_anew_when_the_others_have_done_their_part() {
    let mut cluster = cluster(CheckpointEvery::Period(Duration::from_secs(1)), ResumeFrom::Auto);
    cluster.pass(Duration::from_secs(2));
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    for part in [PART, CheckpointReport::Failed { reason: "no space left".to_owned() }] {
        let (step, orders) = (saving(&cluster), cluster.saves.len());
        report(&mut cluster, &a, CheckpointReport::Missed { reached: Step(50) });
        report(&mut cluster, &a, CheckpointReport::Missed { reached: Step(50) });
        assert_eq!((saving(&cluster), cluster.saves.len()), (step, orders), "b writes its part");
        report(&mut cluster, &b, part);
        assert_eq!((cluster.saves.len(), &cluster.seals), (orders + 2, &Vec::new()));
        assert!(saving(&cluster) > Some(50));
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

/// Both members' training functions return at this step.
fn end_training(cluster: &mut Cluster, step: u64) {
    for worker in cluster.members() {
        cluster.say_step(&worker, step);
        cluster.vote(&worker, Ballot::Success);
    }
    cluster.settle();
}

#[test]
fn c_1_the_commit_with_which_training_ends_is_saved_before_workers_are_told() {
    let mut cluster = of_steps();
    let sealer = cluster.members()[0].clone();
    end_training(&mut cluster, 70);
    assert!(cluster.core.result_so_far().is_some(), "training has succeeded");
    assert_eq!(saving(&cluster), Some(70), "no longer 100, which nobody will reach");
    let waiting = cluster.core.status(cluster.now, &|at| at.to_string()).waiting_for;
    assert!(waiting.is_some_and(|text| text.contains("step 70, is being saved")));
    assert_eq!(cluster.finished, [], "the members hold the commit until it is safe");
    for worker in cluster.members() {
        report(&mut cluster, &worker, PART);
    }
    assert_eq!(cluster.finished, []);
    report(&mut cluster, &sealer, CheckpointReport::Sealed { bytes: 2, troubles: Vec::new() });
    assert_eq!(cluster.finished.len(), 2);
    assert_eq!(status(&cluster).last_step, Some(70));
}

#[test]
fn no_step_is_ordered_that_a_member_cannot_reach_since_it_has_ended() {
    let mut cluster = of_steps();
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, b) = (a.clone(), b.clone());
    cluster.say_step(&a, 70);
    cluster.vote(&a, Ballot::Success);
    cluster.settle();
    let orders = cluster.saves.len();
    report(&mut cluster, &a, CheckpointReport::Missed { reached: Step(70) });
    cluster.say_step(&b, 69);
    report(&mut cluster, &b, CheckpointReport::Missed { reached: Step(69) });
    assert_eq!((saving(&cluster), cluster.saves.len()), (None, orders));
}

#[test]
fn c_1_the_last_save_follows_one_of_an_earlier_step_that_is_under_way() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 130);
    assert_eq!(saving(&cluster), Some(100), "its parts are being written");
    save(&mut cluster);
    assert_eq!((saving(&cluster), cluster.finished.len()), (Some(130), 0));
    save(&mut cluster);
    assert_eq!((status(&cluster).last_step, cluster.finished.len()), (Some(130), 2));
}

#[test]
fn c_4_a_rank_that_is_gone_before_the_last_save_begins_has_it_given_up() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 130);
    assert_eq!(saving(&cluster), Some(100), "its parts are being written");
    for worker in cluster.members() {
        report(&mut cluster, &worker, PART);
    }
    let (root, b) = (cluster.members()[0].clone(), cluster.members()[1].clone());
    cluster.exit(&b, ExitStatus::Code(1));
    report(&mut cluster, &root, CheckpointReport::Sealed { bytes: 2, troubles: Vec::new() });
    assert_eq!(saving(&cluster), None, "nobody writes that rank's part");
    assert!(status(&cluster).failed.is_some_and(|failed| failed.contains("is gone")));
    assert_eq!(cluster.finished.len(), 1);
}

#[test]
fn c_4_a_last_save_that_fails_is_told_and_the_job_has_succeeded() {
    let mut cluster = of_steps();
    let b = cluster.members()[1].clone();
    end_training(&mut cluster, 70);
    report(&mut cluster, &b, CheckpointReport::Failed { reason: "no space left".to_owned() });
    assert_eq!(cluster.finished.len(), 2);
    assert!(status(&cluster).failed.is_some_and(|failed| failed.contains("no space left")));
    assert_eq!(cluster.core.result_so_far().map(|result| result.code), Some(0));
}

#[test]
fn c_4_a_last_save_that_hangs_or_whose_rank_is_gone_is_given_up() {
    let mut hanging = of_steps();
    end_training(&mut hanging, 70);
    let window = Deadlines::default().elastic;
    hanging.pass(window);
    assert_eq!(hanging.finished.len(), 2, "it was not safe in time");
    assert!(status(&hanging).failed.is_some_and(|failed| failed.contains("not safe in time")));

    let mut dead = of_steps();
    end_training(&mut dead, 70);
    let b = dead.members()[1].clone();
    dead.exit(&b, ExitStatus::Code(0));
    assert!(status(&dead).failed.is_some_and(|failed| failed.contains("is gone")));
    assert_eq!(dead.finished.len(), 1);
}

#[test]
fn c_1_a_driver_that_does_not_know_the_last_step_learns_it_from_the_members() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 70);
    let b = cluster.members()[1].clone();
    report(&mut cluster, &b, CheckpointReport::Missed { reached: Step(71) });
    assert_eq!(saving(&cluster), Some(71));
    report(&mut cluster, &b, CheckpointReport::Missed { reached: Step(70) });
    assert_eq!(saving(&cluster), None, "the members do not hold one commit");
    assert_eq!(cluster.finished.len(), 2);
}

fn stop(cluster: &mut Cluster) {
    cluster.core.handle_stop(cluster.now, 2);
    cluster.settle();
}

fn say_all(cluster: &mut Cluster, step: u64) {
    for worker in cluster.members() {
        cluster.say_step(&worker, step);
    }
    cluster.settle();
}

fn outcome(cluster: &Cluster) -> Option<JobOutcome> {
    cluster.core.result_so_far().map(|result| result.outcome)
}

#[test]
fn c_1_a_job_that_is_stopped_saves_the_next_commit_first() {
    let mut cluster = of_steps();
    say_all(&mut cluster, 70);
    assert_eq!(saving(&cluster), Some(100));
    stop(&mut cluster);
    assert_eq!((saving(&cluster), outcome(&cluster)), (Some(71), None), "a step that is near");
    let waiting = cluster.core.status(cluster.now, &|at| at.to_string()).waiting_for;
    assert!(waiting.is_some_and(|text| text.contains("step 71 is being saved first")));
    miss(&mut cluster, 72);
    assert_eq!(saving(&cluster), Some(74), "the members were faster");
    save(&mut cluster);
    assert_eq!(status(&cluster).last_step, Some(74));
    assert_eq!(outcome(&cluster), Some(JobOutcome::Stopped));
}

#[test]
fn c_1_a_stop_lets_a_save_under_way_end_and_saves_what_came_after_it() {
    let mut cluster = of_steps();
    say_all(&mut cluster, 130);
    stop(&mut cluster);
    assert_eq!(saving(&cluster), Some(100), "its parts are being written");
    save(&mut cluster);
    assert_eq!((saving(&cluster), outcome(&cluster)), (Some(131), None));
    save(&mut cluster);
    assert_eq!(outcome(&cluster), Some(JobOutcome::Stopped));
}

#[test]
fn c_4_a_stop_does_not_wait_for_a_save_that_fails_hangs_or_loses_a_rank() {
    let stopped = || {
        let mut cluster = of_steps();
        cluster.train(70);
        say_all(&mut cluster, 70);
        stop(&mut cluster);
        assert_eq!(outcome(&cluster), None);
        cluster
    };
    let why = |cluster: &Cluster| status(cluster).failed.unwrap_or_default();

    let mut failing = stopped();
    let b = failing.members()[1].clone();
    report(&mut failing, &b, CheckpointReport::Failed { reason: "no space left".to_owned() });
    assert_eq!(outcome(&failing), Some(JobOutcome::Stopped));
    assert!(why(&failing).contains("no space left"));

    let mut hanging = stopped();
    hanging.pass(Deadlines::default().grace);
    assert_eq!(outcome(&hanging), Some(JobOutcome::Stopped));
    assert!(why(&hanging).contains("not safe within --grace-period"));

    let mut losing = stopped();
    losing.report_exit(&b, ExitStatus::Signal(9));
    losing.pass(Duration::ZERO);
    assert_eq!(outcome(&losing), Some(JobOutcome::Stopped));
    assert!(why(&losing).contains("its generation has ended"));

    let mut twice = stopped();
    stop(&mut twice);
    assert_eq!(outcome(&twice), Some(JobOutcome::Stopped));
    assert!(twice.stops.iter().all(|(_, grace_ms)| *grace_ms == 0), "{:?}", twice.stops);
}

#[test]
fn a_stop_saves_nothing_where_no_commit_will_come_or_no_order_can_leave() {
    let mut early = without_hosts(CheckpointEvery::Steps(100), ResumeFrom::Auto);
    stop(&mut early);
    assert_eq!(outcome(&early), Some(JobOutcome::Stopped), "no generation trains");

    let mut returned = of_steps();
    let a = returned.members()[0].clone();
    returned.vote(&a, Ballot::Success);
    returned.settle();
    stop(&mut returned);
    assert_eq!(outcome(&returned), Some(JobOutcome::Stopped), "a has made its last commit");

    let mut without = Cluster::new(|config| config.np = Some(2));
    without.add_host("a", 2);
    stop(&mut without);
    assert_eq!(outcome(&without), Some(JobOutcome::Stopped), "there is no checkpoint");
}

#[test]
fn c_1_a_stop_during_a_takeover_waits_for_its_end_and_saves_then() {
    for twice in [false, true] {
        let mut cluster = of_steps();
        say_all(&mut cluster, 70);
        cluster.restart_driver();
        stop(&mut cluster);
        assert_eq!(outcome(&cluster), None, "nobody could be told");
        if twice {
            stop(&mut cluster);
            assert!(matches!(cluster.result.as_ref(), Some(end) if end.code == 130), "at once");
            continue;
        }
        cluster.come_back(&["a", "b"]);
        cluster.pass(Duration::from_secs(1));
        assert_eq!((outcome(&cluster), saving(&cluster).is_some()), (None, true));
        save(&mut cluster);
        assert_eq!(outcome(&cluster), Some(JobOutcome::Stopped));
    }
}

#[test]
fn c_4_a_stop_during_a_reset_says_why_nothing_is_saved() {
    let mut forming = of_steps();
    say_all(&mut forming, 70);
    forming.deaf.extend(forming.members());
    let b = forming.members()[1].clone();
    forming.report_exit(&b, ExitStatus::Signal(9));
    stop(&mut forming);
    assert_eq!(outcome(&forming), Some(JobOutcome::Stopped));
    let why = status(&forming).failed.unwrap_or_default();
    assert!(why.contains("a rank is gone"), "{why}");
}

#[test]
fn x_17_a_second_request_by_another_signal_ends_the_job_and_hands_nothing_over() {
    let mut cluster = of_steps();
    let standby = DriverStatus { address: "b:7070".to_owned(), version: "1".to_owned() };
    cluster.core.handle_standbys(cluster.now, vec![standby]);
    say_all(&mut cluster, 70);
    stop(&mut cluster);
    cluster.core.handle_stop(cluster.now, 15);
    cluster.settle();
    let result = cluster.core.result_so_far().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Stopped, 130));
}

#[test]
fn c_2_a_root_that_can_load_no_checkpoint_ends_the_job_and_no_host_is_blamed() {
    let mut cluster = of_steps();
    let (stamp, root) = (cluster.stamp(), cluster.members()[0].clone());
    let reason = "none of the checkpoints in shared is whole".to_owned();
    cluster.say(&root, WorkerToDriver::NotResumed { stamp, reason });
    cluster.settle();
    let result = cluster.core.result_so_far().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    assert!(result.reason.contains("none of the checkpoints"), "{}", result.reason);
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("checkpoint verify")));
    assert_eq!(cluster.resets.len(), 0);
}

fn warnings(cluster: &Cluster) -> Vec<String> {
    cluster.core.status(cluster.now, &|at| at.to_string()).warnings
}

/// A job whose members look for a checkpoint that does not answer.
fn with_hanging_storage() -> Cluster {
    let mut cluster = without_hosts(CheckpointEvery::Steps(100), ResumeFrom::Auto);
    cluster.storage_hangs = true;
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    cluster
}

fn all_have_loaded(cluster: &mut Cluster, done: u64) {
    let stamp = cluster.stamp();
    let bytes = MovedBytes { work: BulkWork::LoadsCheckpoint, done, total: 100 };
    for worker in cluster.members() {
        cluster.say(&worker, WorkerToDriver::Moves { stamp, bytes });
    }
    cluster.settle();
}

#[test]
fn c_2_a_folder_that_does_not_answer_is_named_while_training_waits_for_it() {
    let mut cluster = with_hanging_storage();
    cluster.pass(Duration::from_secs(9));
    assert_eq!((warnings(&cluster), cluster.warnings.clone()), (vec![], vec![]));
    cluster.pass(Duration::from_secs(21));
    let [said] = &cluster.warnings[..] else { panic!("it is told once: {:?}", cluster.warnings) };
    assert!(said.contains("shared") && said.contains("10 s"), "{said}");
    assert_eq!(warnings(&cluster), std::slice::from_ref(said), "and stays in the status");
    all_have_loaded(&mut cluster, 50);
    cluster.pass(Duration::from_secs(10));
    assert_eq!(warnings(&cluster), Vec::<String>::new(), "bytes have come");
    all_have_loaded(&mut cluster, 100);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(warnings(&cluster), Vec::<String>::new(), "all is read: others are waited for");
}

#[test]
fn c_2_a_folder_that_answers_no_second_root_either_ends_the_job_and_no_host_is_blamed() {
    let mut cluster = with_hanging_storage();
    let elastic = Deadlines::default().elastic;
    cluster.pass(3 * elastic);
    let result = cluster.core.result_so_far().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    assert!(result.reason.contains("shared"), "{result:?}");
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("--resume never")));
    assert_eq!(cluster.failed_hosts, Vec::<HostName>::new(), "no host is to blame");
}

#[test]
fn the_faster_the_steps_the_further_ahead_is_the_one_that_a_stop_saves() {
    let mut cluster = of_steps();
    for step in [1_000, 2_000, 3_000] {
        say_all(&mut cluster, step);
        cluster.pass(Duration::from_secs(1));
    }
    stop(&mut cluster);
    save(&mut cluster);
    assert_eq!(saving(&cluster), Some(3_500), "half a second ahead");
}

#[test]
fn a_step_that_is_near_is_saved_as_it_was_ordered() {
    let mut cluster = of_steps();
    say_all(&mut cluster, 98);
    stop(&mut cluster);
    assert_eq!((saving(&cluster), cluster.saves.len()), (Some(100), 2), "the members may have it");
    save(&mut cluster);
    assert_eq!(outcome(&cluster), Some(JobOutcome::Stopped));
}

#[test]
fn training_that_ends_while_a_stop_waits_has_succeeded() {
    let mut cluster = of_steps();
    say_all(&mut cluster, 70);
    stop(&mut cluster);
    end_training(&mut cluster, 70);
    assert_eq!(outcome(&cluster), Some(JobOutcome::Succeeded));
    save(&mut cluster);
    assert_eq!(status(&cluster).last_step, Some(70));
}

#[test]
fn c_1_members_that_all_leave_save_at_once_and_again() {
    let mut cluster = of_steps();
    say_all(&mut cluster, 70);
    for host in ["a", "b"] {
        assert_eq!(saving(&cluster), Some(100), "somebody stays");
        cluster.hear_agent(host, AgentToDriver::Drain { reason: "SIGTERM".to_owned() });
        cluster.settle();
    }
    let first = save(&mut cluster);
    assert!(first < 100, "at once: {first}");
    assert_eq!(saving(&cluster), None);
    cluster.pass(HURRIED_EVERY);
    assert_eq!(saving(&cluster), Some(first + 1), "they train on, as nobody else has the state");
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
fn a_job_that_has_saved_a_step_does_not_fail_of_a_total_loss() {
    let mut cluster = of_steps();
    assert!(cluster.source.is_some(), "nobody held a commit at the beginning");
    let step = save(&mut cluster);
    cluster.train(120);
    for worker in cluster.members() {
        cluster.say_step(&worker, 120);
    }
    cluster.settle();
    cluster.source = None;
    kill_all(&mut cluster);
    // Later generations find a commit with their members.
    for _ in 0..50 {
        if cluster.source.is_none() {
            cluster.pass(Duration::from_millis(100));
        }
    }
    assert!(cluster.result.is_none(), "{:?}", cluster.result);
    // The workers of these tests load nothing, so the next generation loses the rest.
    assert_eq!(cluster.losses[0], (120, step, 20), "committed, begins at, lost");
    assert_eq!(cluster.source.as_ref().map(|source| source.directory.as_str()), Some("shared"));
}

fn kill_all(cluster: &mut Cluster) {
    for worker in cluster.members() {
        cluster.report_exit(&worker, ExitStatus::Signal(9));
    }
    cluster.settle();
}

/// The root tells from which checkpoint training goes on.
fn resume(cluster: &mut Cluster, step: Option<Step>) {
    let (stamp, root) = (cluster.stamp(), cluster.members()[0].clone());
    cluster.say(&root, WorkerToDriver::Resumed { stamp, step, notes: Vec::new() });
    cluster.settle();
}

/// The steps lost so far, with those of the reset under way.
fn steps_lost(cluster: &Cluster) -> u64 {
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    status.steps_lost + cluster.core.round.reset().map_or(0, |it| it.steps_lost)
}

/// A job that has saved step 100 and trained on to step 120, and whose workers are all gone: the next root finds this checkpoint.
fn found_after_a_total_loss(on_total_loss: OnTotalLoss, found: Option<Step>) -> Cluster {
    let every = CheckpointEvery::Steps(100);
    let mut cluster = without_hosts_that(on_total_loss, every, ResumeFrom::Auto);
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    assert_eq!(save(&mut cluster), 100);
    cluster.train(120);
    say_all(&mut cluster, 120);
    (cluster.source, cluster.storage_hangs) = (None, true);
    kill_all(&mut cluster);
    for _ in 0..50 {
        if cluster.source.is_none() {
            cluster.pass(Duration::from_millis(100));
        }
    }
    resume(&mut cluster, found);
    cluster
}

#[test]
fn l_1_a_job_whose_saved_checkpoint_is_not_there_does_not_begin_again_in_silence() {
    let failed = found_after_a_total_loss(OnTotalLoss::Fail, None);
    let result = failed.core.result_so_far().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    let missing = "the checkpoint of step 100, which this job has saved, is not in shared";
    assert_eq!(result.reason, missing);
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("mounted")));
    // One that may begin again, or finds an earlier checkpoint, says so and counts what is lost.
    let earlier = Some(Step(60));
    for (on_total_loss, found, lost) in [
        (OnTotalLoss::Restart, None, 120),
        (OnTotalLoss::Restart, earlier, 60),
        (OnTotalLoss::Fail, earlier, 60),
    ] {
        let cluster = found_after_a_total_loss(on_total_loss, found);
        assert!(cluster.core.result_so_far().is_none(), "{found:?}");
        assert_eq!(steps_lost(&cluster), lost, "{found:?}");
        let begins_at = found.unwrap_or_default();
        let told = format!("{missing}: training begins again at step {begins_at}");
        assert!(cluster.warnings.contains(&told), "{:?}", cluster.warnings);
    }
    let whole = found_after_a_total_loss(OnTotalLoss::Fail, Some(Step(100)));
    assert!(whole.core.result_so_far().is_none());
    assert!(!whole.warnings.iter().any(|warning| warning.contains("is not in")));
}

#[test]
fn peers_come_before_the_disk() {
    let mut cluster = of_steps();
    save(&mut cluster);
    let b = cluster.members()[1].clone();
    cluster.report_exit(&b, ExitStatus::Signal(9));
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.source, None, "a holds a commit");
}

/// A job of a and b, of which b is out of reach while a trains on alone and saves a checkpoint. Then a is gone, and b, which holds
/// a commit of the generation before, is back. Returns the step that was saved.
fn with_an_old_holder(mut cluster: Cluster) -> (Cluster, u64) {
    let [a, b] = &cluster.members()[..] else { panic!("two members") };
    let (a, host) = (a.clone(), b.host.to_string());
    cluster.train(150);
    say_all(&mut cluster, 150);
    cluster.lose_host(&host);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.sizes.last(), Some(&1), "a trains on alone");
    cluster.train(50);
    say_all(&mut cluster, 200);
    let saved = save(&mut cluster);
    say_all(&mut cluster, saved + 40);
    cluster.report_exit(&a, ExitStatus::Signal(9));
    cluster.settle();
    cluster.source = None;
    cluster.come_back(&[&host]);
    (cluster, saved)
}

#[test]
fn c_1_a_checkpoint_comes_before_an_old_commit_that_somebody_still_holds() {
    let (cluster, saved) = with_an_old_holder(of_steps());
    assert!(cluster.source.is_some(), "the checkpoint is looked for");
    assert_eq!(cluster.losses, [(saved + 40, saved, 40)], "committed, begins at, lost");
    assert_eq!(cluster.result, None);
}

#[test]
fn what_the_job_begins_from_is_a_choice_for_its_beginning_only() {
    let exactly = ResumeFrom::Exactly("shared/step-0000000007".to_owned());
    for (resume, begins_anew) in [(exactly, false), (ResumeFrom::Never, true)] {
        let mut cluster = cluster(CheckpointEvery::Steps(100), resume.clone());
        let source = cluster.source.clone().expect("nobody holds a commit");
        assert_eq!(source.begins_anew, begins_anew);
        assert_eq!(source.exactly.is_some(), resume != ResumeFrom::Never);
        save(&mut cluster);
        for worker in cluster.members() {
            cluster.worker_link(&worker, lost());
            cluster.report_exit(&worker, ExitStatus::Signal(9));
        }
        cluster.source = None;
        // Later generations find a commit with their members.
        for _ in 0..50 {
            if cluster.source.is_none() {
                cluster.pass(Duration::from_millis(100));
            }
        }
        let source = cluster.source.clone().expect("nobody holds a commit");
        assert_eq!((source.exactly, source.begins_anew), (None, false), "its own is newer");
    }
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
fn c_1_the_last_save_is_of_the_last_step_that_any_member_has_told() {
    let mut cluster = of_steps();
    for (worker, step) in cluster.members().into_iter().zip([70, 69]) {
        cluster.say_step(&worker, step);
        cluster.vote(&worker, Ballot::Success);
    }
    cluster.settle();
    assert_eq!(saving(&cluster), Some(70), "the other one's last word was not its last step");
}

#[test]
fn steps_that_came_from_a_checkpoint_count_as_lost_if_they_are_lost_again() {
    let mut cluster = found_after_a_total_loss(OnTotalLoss::Restart, Some(Step(100)));
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    resume(&mut cluster, None);
    assert_eq!(steps_lost(&cluster), 20 + 100);
}
