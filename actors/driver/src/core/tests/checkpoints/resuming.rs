//! Tests of the state from which a job goes on: a checkpoint, the commit of an old holder, or none.

use super::*;

#[test]
fn c_2_a_root_that_can_load_no_checkpoint_ends_the_job_and_no_host_is_blamed() {
    let mut cluster = of_steps();
    let (stamp, root) = (cluster.stamp(), cluster.members()[0].clone());
    let reason = "none of the checkpoints in shared is whole".to_owned();
    cluster.say(&root, WorkerToDriver::NotResumed { stamp, reason, hint: None });
    cluster.settle();
    let result = cluster.core.result_so_far().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    assert!(result.reason.contains("none of the checkpoints"), "{}", result.reason);
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("checkpoint verify")));
    assert_eq!(cluster.resets.len(), 0);
}

#[test]
fn c_2_the_way_out_that_the_root_knows_is_the_job_s() {
    let mut cluster = of_steps();
    let (stamp, root) = (cluster.stamp(), cluster.members()[0].clone());
    let reason = "there is no checkpoint shared/step-0000000020".to_owned();
    let hint = Some("shared has the steps 40, 60".to_owned());
    cluster.say(&root, WorkerToDriver::NotResumed { stamp, reason, hint: hint.clone() });
    cluster.settle();
    assert_eq!(cluster.core.result_so_far().expect("the job has ended").hint, hint);
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
    let last = cluster.core.checkpoints.last_step();
    resume_without(cluster, step, step < last);
}

/// The root tells from which checkpoint training goes on, and whether the last one is gone from its folder.
fn resume_without(cluster: &mut Cluster, step: Option<Step>, is_gone: bool) {
    let (stamp, root) = (cluster.stamp(), cluster.members()[0].clone());
    cluster.say(&root, WorkerToDriver::Resumed { stamp, step, notes: Vec::new(), is_gone });
    cluster.settle();
}

/// The steps lost so far, with those of the reset under way.
fn steps_lost(cluster: &Cluster) -> u64 {
    let status = cluster.core.status(cluster.now, &|at| at.to_string());
    status.steps_lost + cluster.core.round.reset().map_or(0, |it| it.undone.steps)
}

/// A job that has saved step 100 and trained on to step 120, and whose workers are all gone: the next root finds this checkpoint.
/// The one that was saved is damaged, or gone.
fn found_after_a_total_loss(
    on_total_loss: OnTotalLoss,
    is_damaged: bool,
    found: Option<Step>,
) -> Cluster {
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
    resume_without(&mut cluster, found, found < Some(Step(100)) && !is_damaged);
    cluster
}

#[test]
fn l_1_a_job_that_goes_on_from_a_checkpoint_of_its_last_commit_has_lost_nothing() {
    let mut cluster = cluster(CheckpointEvery::Steps(100), ResumeFrom::Auto);
    assert_eq!(save(&mut cluster), 100);
    cluster.train(100);
    say_all(&mut cluster, 100);
    cluster.storage_hangs = true;
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.losses, [(100, 100, 0)], "committed, begins at, lost");
    assert_eq!(warnings(&cluster), [""; 0], "no step is lost");
    // The folder is not mounted any more: the job begins elsewhere than was told.
    let lost = found_after_a_total_loss(OnTotalLoss::Restart, false, Some(Step(60)));
    let told = warnings(&lost);
    assert!(
        told[0].contains("began again at step 60, and step 120 had been committed"),
        "{told:?}"
    );
    lost.core.check().expect("the journal has the same loss");
}

#[test]
fn l_1_a_job_whose_saved_checkpoint_is_not_there_does_not_begin_again_in_silence() {
    let failed = found_after_a_total_loss(OnTotalLoss::Fail, false, None);
    let result = failed.core.result_so_far().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    let missing =
        "the checkpoint of step 100, which this job has saved or loaded, is not in shared";
    assert_eq!(result.reason, missing);
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("mounted")));
    let must_exist = |cluster: &Cluster| {
        let last = cluster.source.as_ref().and_then(|source| source.last.clone());
        last.map(|last| last.must_exist)
    };
    assert_eq!(must_exist(&failed), Some(true), "no worker begins without it");
    // So does one that finds an earlier checkpoint in that folder.
    let earlier = Some(Step(60));
    let failed = found_after_a_total_loss(OnTotalLoss::Fail, false, earlier);
    let result = failed.core.result_so_far().expect("the job has ended");
    assert_eq!(result.reason, missing);
    let ways_out = ["mounted", "restart trains on from step 60"];
    assert!(ways_out.iter().all(|it| result.hint.as_ref().is_some_and(|hint| hint.contains(it))));
    assert_eq!(steps_lost(&failed), 60);
    // A job that may begin again, or whose checkpoint is damaged, reports that and counts the lost steps.
    for (on_total_loss, is_damaged, found, lost) in [
        (OnTotalLoss::Restart, false, None, 120),
        (OnTotalLoss::Restart, false, earlier, 60),
        (OnTotalLoss::Restart, true, earlier, 60),
        (OnTotalLoss::Fail, true, earlier, 60),
    ] {
        let cluster = found_after_a_total_loss(on_total_loss, is_damaged, found);
        assert!(cluster.core.result_so_far().is_none(), "{found:?}");
        assert_eq!(steps_lost(&cluster), lost, "{found:?}");
        assert_eq!(must_exist(&cluster), Some(on_total_loss == OnTotalLoss::Fail));
        let what = match is_damaged {
            false => missing,
            true => "the checkpoint of step 100, which this job has saved or loaded, is damaged",
        };
        let told = format!("{what}: training begins again at step {}", found.unwrap_or_default());
        assert!(cluster.warnings.contains(&told), "{:?}", cluster.warnings);
    }
    let whole = found_after_a_total_loss(OnTotalLoss::Fail, false, Some(Step(100)));
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
fn g_9_an_old_commit_that_somebody_still_holds_is_no_progress() {
    let (mut cluster, _) = with_an_old_holder(of_steps());
    cluster.storage_hangs = true;
    let begun = cluster.sizes.len();
    for _ in 0..500 {
        let (stamp, error) = (cluster.stamp(), "too many open files".to_owned());
        let failed = WorkerToDriver::CollectiveFailed { stamp, peer: None, told_by: None, error };
        let members = cluster.members();
        members.iter().for_each(|member| cluster.say(member, failed.clone()));
        cluster.pass(Duration::from_millis(20));
    }
    assert!(cluster.sizes.len() < begun + 12, "{:?}", &cluster.sizes[begun..]);
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
fn c_1_a_checkpoint_that_was_found_and_is_gone_later_is_missed_by_a_driver_that_did_not_save_it() {
    let mut cluster = without_hosts_that(
        OnTotalLoss::Restart,
        CheckpointEvery::Steps(1_000_000),
        ResumeFrom::Auto,
    );
    cluster.storage_hangs = true;
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    let begin = |cluster: &mut Cluster, step: Option<Step>| {
        cluster.pass(Duration::from_secs(1));
        resume(cluster, step);
        all_have_loaded(cluster, 1);
        for worker in cluster.members() {
            cluster.vote(&worker, Ballot::Synced);
        }
        cluster.settle();
    };
    begin(&mut cluster, Some(Step(58)));
    assert_eq!(status(&cluster).last_step, Some(58));
    kill_all(&mut cluster);
    begin(&mut cluster, None);
    let told = warnings(&cluster);
    assert!(
        cluster.warnings.iter().chain(&told).any(|it| it.contains("checkpoint of step 58")),
        "{told:?}"
    );
}

#[test]
fn c_1_a_checkpoint_that_is_gone_is_missed_once() {
    let mut cluster = found_after_a_total_loss(OnTotalLoss::Restart, false, None);
    assert_eq!(status(&cluster).last_step, None);
    let (lost, told) = (steps_lost(&cluster), cluster.warnings.len());
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    resume(&mut cluster, None);
    assert_eq!((steps_lost(&cluster), cluster.warnings.len()), (lost, told));
}

#[test]
fn steps_that_came_from_a_checkpoint_count_as_lost_if_they_are_lost_again() {
    let mut cluster = found_after_a_total_loss(OnTotalLoss::Restart, false, Some(Step(100)));
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    resume(&mut cluster, None);
    assert_eq!(steps_lost(&cluster), 20 + 100);
}

/// All workers end while no driver is there.
fn end_all_unseen(cluster: &mut Cluster) {
    for worker in cluster.members() {
        cluster.end_unseen(&worker);
    }
}

/// All members begin from the checkpoint that the root has found, and train.
fn begin_from(cluster: &mut Cluster, step: Option<Step>) {
    resume(cluster, step);
    begin(cluster);
}

/// All members have read the checkpoint, and train.
fn begin(cluster: &mut Cluster) {
    all_have_loaded(cluster, 1);
    for worker in cluster.members() {
        cluster.vote(&worker, Ballot::Synced);
    }
    cluster.settle();
}

/// The source that the next generation is given, once it is formed.
fn next_source(cluster: &mut Cluster) -> CheckpointSource {
    cluster.source = None;
    for _ in 0..50 {
        if cluster.source.is_none() {
            cluster.pass(Duration::from_millis(100));
        }
    }
    cluster.source.clone().expect("nobody holds a commit")
}

/// The step and the folder of the checkpoint that members are told to look for.
fn last_of(source: &CheckpointSource) -> Option<(u64, &str)> {
    source.last.as_ref().map(|last| (last.step.0, &*last.directory))
}

#[test]
fn c_2_a_chosen_checkpoint_is_taken_again_until_the_job_has_saved_one() {
    let every = CheckpointEvery::Steps(100);
    let chosen = ResumeFrom::Exactly("base/step-0000000058".to_owned());
    let mut cluster = without_hosts_that(OnTotalLoss::Fail, every, chosen);
    cluster.storage_hangs = true;
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    let first = cluster.source.clone().expect("nobody holds a commit");
    assert_eq!((first.exactly.as_deref(), last_of(&first)), (Some("base/step-0000000058"), None));
    begin_from(&mut cluster, Some(Step(58)));
    kill_all(&mut cluster);
    let again = next_source(&mut cluster);
    assert_eq!((again.exactly.as_deref(), last_of(&again)), (None, Some((58, "base"))));
    // Its driver is gone, too, and every worker.
    end_all_unseen(&mut cluster);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    let of_next_driver = next_source(&mut cluster);
    assert_eq!(last_of(&of_next_driver), Some((58, "base")));
    begin_from(&mut cluster, Some(Step(58)));
    assert_eq!((cluster.result.clone(), cluster.warnings.clone()), (None, vec![]));
    assert_eq!(save(&mut cluster), 100);
    kill_all(&mut cluster);
    assert_eq!(last_of(&next_source(&mut cluster)), Some((100, "shared")), "its own");
}

/// A job without `--on-total-loss`, seven seconds after it has begun, from this checkpoint or from the start.
fn that_has_just_begun_from(step: Option<Step>) -> Cluster {
    let mut cluster = without_hosts_that(None, CheckpointEvery::Steps(100), ResumeFrom::Auto);
    cluster.storage_hangs = true;
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    begin_from(&mut cluster, step);
    cluster.pass(Duration::from_secs(7));
    cluster
}

#[test]
fn l_1_a_state_that_came_from_an_earlier_job_is_not_thrown_away_in_the_first_minute() {
    for has_next_driver in [false, true] {
        let mut cluster = that_has_just_begun_from(Some(Step(58)));
        if has_next_driver {
            end_all_unseen(&mut cluster);
            cluster.restart_driver();
            cluster.come_back(&["a", "b"]);
        } else {
            kill_all(&mut cluster);
        }
        let last = next_source(&mut cluster).last.expect("it is known");
        assert_eq!((last.step, last.must_exist), (Step(58), true));
        resume(&mut cluster, None);
        let result = cluster.core.result_so_far().expect("the job has ended");
        assert!(result.reason.contains("the checkpoint of step 58"), "{}", result.reason);
    }
}

#[test]
fn l_1_a_job_goes_on_from_the_checkpoint_of_an_earlier_one_where_that_is_there() {
    let mut cluster = that_has_just_begun_from(Some(Step(58)));
    kill_all(&mut cluster);
    next_source(&mut cluster);
    begin_from(&mut cluster, Some(Step(58)));
    assert_eq!(
        (cluster.core.result_so_far(), cluster.core.state.committed()),
        (None, Some(Step(58)))
    );
}

#[test]
fn l_1_a_state_of_less_than_a_minute_is_begun_anew_where_its_own_checkpoint_is_gone() {
    let mut cluster = that_has_just_begun_from(None);
    assert_eq!(save(&mut cluster), 100);
    kill_all(&mut cluster);
    let last = next_source(&mut cluster).last.expect("it is known");
    assert_eq!((last.step, last.must_exist), (Step(100), false));
    resume(&mut cluster, None);
    assert_eq!(cluster.core.result_so_far(), None);
}

#[test]
fn c_4_the_chosen_checkpoint_is_spared_by_the_job_s_driver_and_by_the_next_one() {
    let every = CheckpointEvery::Steps(100);
    let chosen = ResumeFrom::Exactly("shared/step-0000000058".to_owned());
    let mut cluster = without_hosts_that(OnTotalLoss::Fail, every, chosen);
    cluster.storage_hangs = true;
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    begin_from(&mut cluster, Some(Step(58)));
    save(&mut cluster);
    assert_eq!(cluster.spared.take(), Some(Step(58)));
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    save(&mut cluster);
    assert_eq!(cluster.spared, Some(Step(58)));
    let mut unchosen = of_steps();
    save(&mut unchosen);
    assert_eq!((unchosen.seals.len(), unchosen.spared), (1, None));
}

#[test]
fn c_2_a_driver_with_another_folder_has_the_last_checkpoint_looked_for_in_the_former_one() {
    let mut cluster = of_steps();
    assert_eq!(save(&mut cluster), 100);
    cluster.config.checkpoint.as_mut().expect("it saves").directory = "other".to_owned();
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    kill_all(&mut cluster);
    let source = next_source(&mut cluster);
    assert_eq!((&*source.directory, last_of(&source)), ("other", Some((100, "shared"))));
}

#[test]
fn l_1_steps_that_are_lost_with_a_checkpoint_are_counted_once() {
    let earlier = Some(Step(60));
    let mut cluster = found_after_a_total_loss(OnTotalLoss::Restart, false, earlier);
    begin(&mut cluster);
    assert_eq!((status(&cluster).last_step, steps_lost(&cluster)), (Some(60), 60));
    for _ in 0..2 {
        let one = cluster.members()[0].clone();
        cluster.report_exit(&one, ExitStatus::Signal(9));
        cluster.pass(Duration::from_secs(5));
    }
    assert!(cluster.losses[1..].iter().all(|loss| loss.2 == 0), "{:?}", cluster.losses);
    assert_eq!(steps_lost(&cluster), 60);
}

#[test]
fn l_1_steps_of_a_checkpoint_of_which_no_driver_had_heard_are_not_lost() {
    for (found, lost, begins_at) in [(100, 20, "100"), (110, 10, "110"), (120, 0, ""), (130, 0, "")]
    {
        let mut cluster = found_after_a_total_loss(OnTotalLoss::Restart, false, Some(Step(found)));
        assert_eq!(cluster.losses, [(120, 100, 20)], "as it is told before the root has looked");
        assert_eq!(steps_lost(&cluster), lost, "{found}");
        let told = warnings(&cluster);
        assert_eq!(told.len(), usize::from(lost > 0), "{told:?}");
        let words = format!("began again at step {begins_at}, and step 120 had been committed");
        assert!(told.iter().all(|told| told.contains(&words)), "{told:?}");
        cluster.core.check().expect("the journal has the same loss");
        // The same root tells it again; then the job is lost once more, before it has trained.
        resume(&mut cluster, Some(Step(found)));
        assert_eq!(steps_lost(&cluster), lost, "{found}");
        kill_all(&mut cluster);
        cluster.pass(Duration::from_secs(5));
        resume(&mut cluster, Some(Step(found)));
        assert_eq!(steps_lost(&cluster), lost, "{found}");
        begin(&mut cluster);
        assert_eq!(steps_lost(&cluster), lost, "{found}");
    }
}

#[test]
fn l_1_a_later_checkpoint_is_credited_after_generations_that_were_lost_before_they_trained() {
    let mut cluster = of_steps();
    assert_eq!(save(&mut cluster), 100);
    cluster.train(120);
    say_all(&mut cluster, 120);
    cluster.storage_hangs = true;
    for _ in 0..3 {
        kill_all(&mut cluster);
        next_source(&mut cluster);
        assert_eq!(steps_lost(&cluster), 20);
    }
    resume(&mut cluster, Some(Step(110)));
    begin(&mut cluster);
    assert_eq!(steps_lost(&cluster), 10);
    let told = "began again at step 110, and step 120 had been committed";
    assert!(warnings(&cluster)[0].contains(told), "{:?}", warnings(&cluster));
    cluster.core.check().expect("the journal has the same loss");
    // The next loss is another one.
    say_all(&mut cluster, 130);
    kill_all(&mut cluster);
    next_source(&mut cluster);
    resume(&mut cluster, Some(Step(115)));
    assert_eq!(steps_lost(&cluster), 10 + 15);
}

#[test]
fn l_1_a_driver_that_finds_nobody_knows_the_step_of_the_last_checkpoint_as_committed() {
    let mut cluster = of_steps();
    assert_eq!(save(&mut cluster), 100);
    end_all_unseen(&mut cluster);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    next_source(&mut cluster);
    assert_eq!(cluster.losses, [(100, 100, 0)], "committed, begins at, lost");
}

#[test]
fn c_2_a_job_that_ends_with_the_checkpoint_of_another_one_says_that_it_has_trained_no_step() {
    for (ends_at, told) in [(58, true), (60, false)] {
        let mut cluster = with_hanging_storage();
        begin_from(&mut cluster, Some(Step(58)));
        end_training(&mut cluster, ends_at);
        let words = "has trained no step: it began from the checkpoint of step 58 in shared";
        assert_eq!(cluster.warnings.iter().any(|it| it.contains(words)), told, "{ends_at}");
    }
}
