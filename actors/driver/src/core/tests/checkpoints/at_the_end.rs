//! Tests of the save after the end of training.

use super::*;

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
    cluster.settle();
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
fn c_4_a_last_save_is_not_ordered_anew_for_rank_0_alone_if_a_rank_is_gone_by_then() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 70);
    let (root, b) = (cluster.members()[0].clone(), cluster.members()[1].clone());
    report(&mut cluster, &b, PART);
    cluster.lose_host(&b.host.to_string());
    assert_eq!(saving(&cluster), Some(70), "its part is safe");
    report(&mut cluster, &root, PART);
    let reason = "part 1 is of another commit than part 0".to_owned();
    report(&mut cluster, &root, CheckpointReport::Differ { reason });
    assert_eq!(saving(&cluster), None, "it would wait for the rank that is gone");
    assert!(status(&cluster).failed.is_some_and(|failed| failed.contains(&b.to_string())));
    assert_eq!(cluster.finished.len(), 1);
}

#[test]
fn c_1_no_last_save_is_ordered_without_a_rank_that_had_to_leave_meanwhile() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 130);
    for worker in cluster.members() {
        report(&mut cluster, &worker, PART);
    }
    let (root, b) = (cluster.members()[0].clone(), cluster.members()[1].clone());
    cluster.say(&b, WorkerToDriver::Leaving { reason: "SIGTERM".to_owned() });
    cluster.pass(Deadlines::default().grace);
    assert_eq!(saving(&cluster), Some(100), "all its parts are safe");
    report(&mut cluster, &root, CheckpointReport::Sealed { bytes: 2, troubles: Vec::new() });
    assert_eq!((saving(&cluster), status(&cluster).last_step), (None, Some(100)));
    assert!(status(&cluster).failed.is_some_and(|failed| failed.contains(&b.to_string())));
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
fn c_4_a_last_save_is_given_up_once_whoever_makes_it_whole_is_gone() {
    let mut cluster = of_steps();
    end_training(&mut cluster, 70);
    let root = cluster.members()[0].clone();
    report(&mut cluster, &root, PART);
    cluster.lose_host(&root.host.to_string());
    assert!(status(&cluster).failed.is_some_and(|failed| failed.contains(&root.to_string())));
    assert_eq!(cluster.finished.len(), 1, "its own part is safe, and nobody completes the save");
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
