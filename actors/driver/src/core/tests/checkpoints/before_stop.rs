//! Tests of the save before a job ends at its operator's request.

use super::*;

fn stop(cluster: &mut Cluster) {
    cluster.core.handle_stop(cluster.now, 2);
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

    let mut unstored = of_steps();
    unstored.train(70);
    say_all(&mut unstored, 70);
    unstored.disk_hangs = true;
    unstored.add_host("c", 1);
    unstored.core.poll_batch().expect("the new host is to be stored");
    unstored.core.handle_journal_failed(unstored.now, "no space is left", true);
    stop(&mut unstored);
    let why = status(&unstored).failed.unwrap_or_default();
    assert!(why.contains("the journal cannot be written"), "{why}");

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
fn d_4_a_stop_that_waits_for_its_save_or_for_a_takeover_is_known_to_the_next_driver() {
    for in_takeover in [false, true] {
        let mut cluster = of_steps();
        say_all(&mut cluster, 70);
        if in_takeover {
            cluster.restart_driver();
        }
        stop(&mut cluster);
        assert_eq!(outcome(&cluster), None, "in a takeover: {in_takeover}");
        cluster.restart_driver();
        cluster.come_back(&["a", "b"]);
        cluster.pass(Duration::from_secs(1));
        assert_eq!((outcome(&cluster), saving(&cluster).is_some()), (None, true));
        save(&mut cluster);
        assert_eq!(outcome(&cluster), Some(JobOutcome::Stopped));
        assert!(cluster.result.as_ref().is_some_and(|end| end.reason == "stopped by signal 2"));
    }
}

#[test]
fn d_4_a_stop_is_stored_by_a_driver_that_leads_and_by_no_other() {
    let mut cluster = of_steps();
    say_all(&mut cluster, 70);
    let before = cluster.core.last_record();
    stop(&mut cluster);
    assert!(cluster.core.last_record() > before && cluster.core.leads());
    let mut deposed = of_steps();
    deposed.core.handle_abandon("its lease has ended");
    stop(&mut deposed);
    assert!(!deposed.core.leads() && !deposed.core.is_recorded(deposed.core.last_record()));
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
