//! Tests of `--mode restart`, and of `auto` until a worker attaches.

use std::time::Duration;

use elastic_host_manager::{HostEntry, HostState};
use elastic_protocol::messages::{
    AgentToDriver, LibraryTrace, LiveWorker, ProgramError, WorkerCondition,
};
use elastic_protocol::{ExitStatus, JobOutcome, ResetCause, WorkerId};

use super::cluster::{Cluster, silence};
use super::host;
use crate::core::config::{CheckpointEvery, CheckpointSettings, ResumeFrom};
use crate::core::{DriverConfig, ElasticMode, RoundPhase};

const FAILED: ExitStatus = ExitStatus::Code(1);
const DONE: ExitStatus = ExitStatus::Code(0);

/// Two hosts of two slots that run a program which never attaches.
pub(super) fn four(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.mode = ElasticMode::Restart;
        config.np = Some(4);
        config.min_np = Some(2);
        change(config);
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    cluster
}

/// The running processes by rank, with their environment.
fn running(cluster: &Cluster, names: &[&str]) -> Vec<Vec<String>> {
    let mut all: Vec<(u32, Vec<String>)> = cluster
        .live()
        .map(|worker| {
            let environment = &cluster.environments[worker];
            let rank = environment["RANK"].parse().expect("a number");
            (rank, names.iter().map(|name| environment[*name].clone()).collect())
        })
        .collect();
    all.sort();
    all.into_iter().map(|(_, values)| values).collect()
}

fn all_done(cluster: &mut Cluster) {
    let live: Vec<WorkerId> = cluster.live().cloned().collect();
    for worker in live {
        cluster.exit(&worker, DONE);
    }
}

fn reason(cluster: &Cluster) -> &str {
    &cluster.result.as_ref().expect("the job has ended").reason
}

#[test]
fn t_1_processes_start_with_the_environment_of_their_rank() {
    let cluster = four(|_| {});
    assert_eq!(cluster.sizes, [4]);
    let names = ["LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"];
    let expected = [
        ["0", "0", "4", "2", "2"],
        ["1", "0", "4", "2", "2"],
        ["0", "1", "4", "2", "2"],
        ["1", "1", "4", "2", "2"],
    ];
    assert_eq!(running(&cluster, &names), expected);
}

#[test]
fn nothing_starts_before_enough_slots_are_there() {
    let mut cluster = Cluster::new(|config| {
        config.mode = ElasticMode::Restart;
        config.np = Some(4);
    });
    cluster.add_host("a", 2);
    assert_eq!(cluster.environments.len(), 0, "WORLD_SIZE would be wrong");
    cluster.add_host("b", 2);
    assert_eq!(cluster.environments.len(), 4);
}

#[test]
fn the_job_succeeds_when_every_process_has() {
    let mut cluster = four(|_| {});
    let first = cluster.worker("a", 0);
    cluster.exit(&first, DONE);
    assert!(cluster.result.is_none());
    all_done(&mut cluster);
    let status = cluster.core.status(cluster.now, &|_| String::new());
    let shown: Vec<_> = status.workers.iter().map(|it| (it.rank, it.state)).collect();
    let succeeded = |rank| (Some(rank), WorkerCondition::Succeeded);
    assert_eq!(shown, [0, 1, 2, 3].map(succeeded), "whose processes are gone are shown, too");
    let result = cluster.result.expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Succeeded, 0));
}

#[test]
fn an_agent_that_offers_all_slots_joins_with_those_that_are_listed() {
    let mut cluster = Cluster::new(|config| config.mode = ElasticMode::Restart);
    cluster.hosts = vec![HostEntry { name: host("a"), slots: 2, state: HostState::Listed }];
    cluster.list_hosts();
    cluster.join(&host("a"), 4_096, Vec::new());
    cluster.settle();
    assert_eq!(cluster.joined, [(host("a"), 2)]);
}

#[test]
fn t_3_the_group_restarts_so_often_and_no_more() {
    let mut cluster = four(|config| config.max_job_restarts = Some(3));
    for attempt in 1..=4 {
        assert_eq!(cluster.environments.len(), 4 * attempt, "attempt {attempt}");
        let count = (attempt - 1).to_string();
        assert_eq!(running(&cluster, &["TORCHELASTIC_RESTART_COUNT"]), vec![vec![count]; 4]);
        let bad = cluster.worker("b", 1);
        cluster.exit(&bad, FAILED);
        cluster.pass(Duration::from_secs(2));
    }
    assert_eq!(cluster.environments.len(), 16, "4 attempts");
    assert!(reason(&cluster).starts_with("a worker failed after 3 of 3 restarts; first b[1]#"));
    assert!(cluster.live().next().is_none());
}

#[test]
fn t_3_every_worker_failing_is_no_reason_to_stop_trying() {
    let mut cluster = Cluster::new(|config| {
        (config.mode, config.np, config.max_job_restarts) =
            (ElasticMode::Restart, Some(1), Some(1));
    });
    cluster.add_host("a", 1);
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, FAILED);
    assert!(cluster.result.is_none());
    let again = cluster.worker("a", 0);
    assert_ne!(again, worker, "at once: a group needs no back-off the first time");
    cluster.exit(&again, FAILED);
    assert_eq!(cluster.result.as_ref().map(|result| result.code), Some(1));
}

#[test]
fn t_3_the_first_cause_is_the_one_that_came_first_on_any_host() {
    let mut cluster = four(|config| config.max_job_restarts = Some(0));
    let (early, late) = (cluster.worker("b", 0), cluster.worker("a", 0));
    let error =
        |message: &str, at| Some(ProgramError { message: message.to_owned(), at: Some(at) });
    cluster.hold_stops = true;
    cluster.report_end(&late, FAILED, None, error("connection closed by peer", 20));
    cluster.settle();
    cluster.report_end(&early, FAILED, None, error("Traceback: out of memory", 10));
    cluster.settle();
    cluster.release_stops();
    cluster.pass(Duration::from_secs(30));
    assert!(reason(&cluster).contains("out of memory"), "{}", reason(&cluster));
}

#[test]
fn t_4_membership_changes_are_no_restarts_and_come_together() {
    let mut cluster = four(|config| config.max_job_restarts = Some(0));
    cluster.add_host("c", 1);
    cluster.pass(Duration::from_millis(300));
    assert_eq!(cluster.sizes, [4], "more may come");
    cluster.add_host("d", 1);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.sizes, [4, 6]);
    cluster.remove_host("a");
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.sizes, [4, 6, 4]);
    let names = ["TORCHELASTIC_RESTART_COUNT", "GROUP_RANK"];
    assert_eq!(running(&cluster, &names), [["0", "0"], ["0", "0"], ["0", "1"], ["0", "2"]]);
    all_done(&mut cluster);
    assert_eq!(cluster.result.map(|result| result.code), Some(0));
}

#[test]
fn t_4_whoever_is_stopped_takes_part_again_at_once() {
    let mut cluster = Cluster::new(|config| {
        (config.mode, config.np, config.min_np) = (ElasticMode::Restart, Some(1), Some(1));
    });
    cluster.add_host("a", 1);
    cluster.hold_stops = true;
    cluster.add_host("b", 1);
    cluster.pass(Duration::from_secs(2));
    cluster.release_stops();
    assert_eq!(cluster.sizes, [1, 2]);
}

#[test]
fn t_5_t_8_a_lost_host_is_not_waited_for() {
    let mut cluster = four(|config| config.max_job_restarts = Some(0));
    let agent = cluster.agent("a");
    cluster.core.handle_link(cluster.now, &agent, &silence(2_000));
    cluster.settle();
    assert_eq!(cluster.sizes, [4, 2], "at once, though max-np would let more in");
    assert!(matches!(cluster.resets[..], [ResetCause::HostLost { .. }]));
    let survivors: Vec<&WorkerId> = cluster.live().filter(|it| it.host == host("b")).collect();
    assert_eq!(survivors.len(), 2);
    assert_eq!(cluster.environments[survivors[0]]["RANK"], "0", "who is left is numbered anew");
}

#[test]
fn a_host_that_comes_back_has_its_old_processes_killed() {
    let mut cluster = four(|_| {});
    let (agent, old) = (cluster.agent("a"), cluster.worker("a", 0));
    cluster.core.handle_link(cluster.now, &agent, &silence(2_000));
    cluster.settle();
    let live = cluster.live_on("a");
    cluster.stops.clear();
    cluster.rejoin(&agent, 2, live);
    assert!(cluster.stops.contains(&(old, 0)), "{:?}", cluster.stops);
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.sizes, [4, 2, 4]);
}

#[test]
fn a_process_that_ignores_sigterm_is_waited_for() {
    let mut cluster = four(|_| {});
    cluster.hold_stops = true;
    let bad = cluster.worker("b", 1);
    cluster.exit(&bad, FAILED);
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.sizes, [4], "one generation's processes at a time");
    cluster.release_stops();
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.sizes, [4, 4]);
}

#[test]
fn g_9_the_others_go_on_without_a_process_that_sigkill_does_not_end() {
    let mut cluster = four(|config| config.min_np = Some(1));
    let grace = cluster.config.deadlines.grace;
    cluster.hold_stops = true;
    let (bad, stuck) = (cluster.worker("b", 1), cluster.worker("b", 0));
    cluster.exit(&bad, FAILED);
    for slot in 0..2 {
        let ended = cluster.worker("a", slot);
        cluster.report_exit(&ended, ExitStatus::Signal(15));
    }
    cluster.pass(grace + Duration::from_secs(19));
    assert_eq!(cluster.sizes, [4], "it may have much memory to give back");
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.sizes, [4, 3], "its slot stays empty");
    cluster.hold_stops = false;
    cluster.report_exit(&stuck, ExitStatus::Signal(9));
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.sizes.last(), Some(&4), "{:?}", cluster.sizes);
}

#[test]
fn in_auto_mode_the_first_that_attaches_keeps_every_process() {
    let mut cluster = four(|config| config.mode = ElasticMode::Auto);
    let live: Vec<WorkerId> = cluster.live().cloned().collect();
    assert_eq!((live.len(), &cluster.sizes[..]), (4, &[4][..]));
    for worker in &live {
        cluster.attach(worker);
        cluster.settle();
    }
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.environments.len(), 4, "no process was started anew");
    assert_eq!(cluster.members().len(), 4);
    assert_eq!(
        (&cluster.resets[..], cluster.taken_back),
        (&[][..], 1),
        "it is told, and is no reset"
    );
    cluster.kill(&live[0]);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.environments.len(), 5, "and now only the lost one is");
}

#[test]
fn a_driver_killed_when_processes_have_just_been_kept_forms_their_generation_when_it_is_back() {
    let mut cluster = four(|config| config.mode = ElasticMode::Auto);
    let first = cluster.worker("a", 0);
    cluster.attach(&first);
    cluster.settle();
    assert_eq!((cluster.taken_back, cluster.active()), (1, 0), "the others have not attached");
    cluster.restart_driver();
    cluster.attaches = true;
    cluster.come_back(&["a", "b"]);
    cluster.pass(Duration::from_secs(2));
    assert_eq!((cluster.environments.len(), cluster.active()), (4, 4));
    assert_eq!(cluster.resets, [], "D-3");
}

#[test]
fn d_4_in_auto_mode_one_that_is_being_stopped_decides_nothing_as_it_attaches() {
    let mut cluster = four(|config| config.mode = ElasticMode::Auto);
    cluster.hold_stops = true;
    let late = cluster.worker("a", 0);
    let bad = cluster.worker("b", 1);
    cluster.exit(&bad, FAILED);
    assert_eq!(cluster.resets.len(), 1, "the other processes are being stopped");
    cluster.attach(&late);
    cluster.settle();
    assert_eq!((cluster.taken_back, cluster.core.is_by_restart()), (0, true));
    cluster.release_stops();
    cluster.pass(Duration::from_secs(3));
    let next = cluster.worker("a", 0);
    cluster.attach(&next);
    cluster.settle();
    assert_eq!((cluster.taken_back, cluster.core.is_by_restart()), (1, false));
}

#[test]
fn g_9_in_auto_mode_nobody_waits_for_members_of_a_generation_that_is_taken_back() {
    let mut cluster = four(|config| config.mode = ElasticMode::Auto);
    cluster.hold_stops = true;
    cluster.lose_host("b");
    assert_eq!(cluster.resets.len(), 1, "the processes on host a are being stopped");
    // It was out of reach with its agent, which is not back yet.
    let first = cluster.worker("b", 0);
    cluster.attach(&first);
    cluster.settle();
    assert!(!cluster.core.is_by_restart());
    cluster.release_stops();
    cluster.settle();
    let waiting = match cluster.core.round.phase() {
        RoundPhase::Gather(gather) => gather.waiting_for.len(),
        phase => panic!("{phase:?}"),
    };
    assert_eq!(waiting, 0, "the next generation does not wait for who has ended");
}

#[test]
fn g_10_in_auto_mode_a_worker_that_left_before_its_driver_knew_it_has_not_done_its_part() {
    let mut cluster = Cluster::new(|config| {
        (config.mode, config.np) = (ElasticMode::Auto, Some(1));
    });
    cluster.add_host("a", 1);
    cluster.library = LibraryTrace::Used;
    let leaver = cluster.worker("a", 0);
    cluster.exit(&leaver, DONE);
    cluster.pass(Duration::from_secs(2));
    assert_eq!((cluster.result.as_ref(), cluster.environments.len()), (None, 2), "it starts anew");
    // A program that does not use the library has done its part.
    cluster.library = LibraryTrace::Unseen;
    let script = cluster.worker("a", 0);
    cluster.exit(&script, DONE);
    assert_eq!(cluster.result.map(|result| result.outcome), Some(JobOutcome::Succeeded));
}

#[test]
fn in_auto_mode_a_program_that_never_attaches_restarts_as_a_group() {
    let mut cluster = four(|config| config.mode = ElasticMode::Auto);
    let bad = cluster.worker("b", 1);
    cluster.exit(&bad, ExitStatus::Signal(9));
    assert_eq!(cluster.environments.len(), 8);
    all_done(&mut cluster);
    assert_eq!(cluster.result.map(|result| result.outcome), Some(JobOutcome::Succeeded));
}

/// A job by restart that is to save checkpoints.
fn with_checkpoints(resume: ResumeFrom) -> Cluster {
    four(|config| {
        config.mode = ElasticMode::Auto;
        config.checkpoint = Some(CheckpointSettings {
            directory: "/shared/ck".to_owned(),
            every: CheckpointEvery::Steps(10),
            keep: 3,
            bytes_per_s: None,
            resume,
        });
    })
}

#[test]
fn in_auto_mode_checkpoints_that_nobody_saves_are_told_once_when_a_process_has_done_its_part() {
    let mut cluster =
        with_checkpoints(ResumeFrom::Exactly("/shared/ck/step-0000000181".to_owned()));
    assert_eq!(cluster.warnings, [""; 0], "the program may come to use the library");
    all_done(&mut cluster);
    assert_eq!(cluster.result.as_ref().map(|end| end.outcome), Some(JobOutcome::Succeeded));
    let [warning] = &cluster.warnings[..] else { panic!("{:?}", cluster.warnings) };
    for words in ["has ended without the library", "--checkpoint /shared/ck", "step-0000000181"] {
        assert!(warning.contains(words), "{warning}");
    }
}

#[test]
fn in_auto_mode_checkpoints_of_a_program_that_does_not_attach_are_told_after_a_minute() {
    let mut cluster = with_checkpoints(ResumeFrom::Auto);
    cluster.pass(Duration::from_secs(59));
    assert_eq!(cluster.warnings, [""; 0], "it may still import");
    let trouble = |cluster: &Cluster| {
        let status = cluster.core.status(cluster.now, &|_| String::new());
        status.checkpoint.and_then(|checkpoint| checkpoint.failed)
    };
    assert_eq!(trouble(&cluster), None);
    cluster.pass(Duration::from_secs(120));
    let [warning] = &cluster.warnings[..] else { panic!("{:?}", cluster.warnings) };
    assert!(warning.contains("has not used the library for 60 s"), "{warning}");
    assert!(!warning.contains("--resume"), "none was given: {warning}");
    assert!(trouble(&cluster).is_some_and(|it| it.contains("nothing is saved")));
    let late = cluster.worker("a", 0);
    cluster.attach(&late);
    cluster.settle();
    assert_eq!(trouble(&cluster), None, "now the library holds its state");
}

#[test]
fn in_restart_mode_a_program_of_the_library_is_refused_with_the_way_out() {
    let mut cluster = four(|_| {});
    let worker = cluster.worker("a", 0);
    cluster.attach(&worker);
    cluster.pass(Duration::from_secs(30));
    assert!(reason(&cluster).contains("elastic in process"), "{}", reason(&cluster));
}

#[test]
fn d_3_the_group_goes_on_under_a_new_driver() {
    for mode in [ElasticMode::Restart, ElasticMode::Auto] {
        let mut cluster = four(|config| config.mode = mode);
        let first = cluster.worker("a", 0);
        cluster.exit(&first, DONE);
        for _ in 0..2 {
            cluster.restart_driver();
            cluster.come_back(&["b", "a"]);
            // Longer than the start deadline of a program that must attach.
            cluster.pass(Duration::from_secs(1_000));
        }
        assert!(cluster.resets.is_empty() && cluster.stops.is_empty(), "{:?}", cluster.resets);
        assert_eq!(cluster.environments.len(), 4, "{mode:?}");
        all_done(&mut cluster);
        assert_eq!(cluster.result.map(|result| result.outcome), Some(JobOutcome::Succeeded));
    }
}

#[test]
fn a_process_that_ended_well_without_a_driver_has_done_its_part() {
    let mut cluster = four(|_| {});
    let first = cluster.worker("a", 0);
    cluster.restart_driver();
    cluster.end_unseen(&first);
    cluster.come_back(&["a", "b"]);
    cluster.report_exit(&first, DONE);
    cluster.pass(Duration::from_secs(30));
    assert!(cluster.resets.is_empty(), "{:?}", cluster.resets);
    all_done(&mut cluster);
    assert_eq!(cluster.result.map(|result| result.outcome), Some(JobOutcome::Succeeded));
}

#[test]
fn g_12_processes_that_are_gone_with_their_agents_are_lost_as_soon_as_new_agents_are_there() {
    for mode in [ElasticMode::Restart, ElasticMode::Auto] {
        let mut cluster = four(|config| config.mode = mode);
        let all: Vec<WorkerId> = cluster.live().cloned().collect();
        all.iter().for_each(|worker| cluster.end_unseen(worker));
        cluster.restart_driver();
        for name in ["a", "b"] {
            cluster.join(&host(name), 2, Vec::new());
        }
        cluster.pass(Duration::from_millis(500));
        assert_eq!(cluster.lost_in_takeovers, [4], "{mode:?}: they have not trained meanwhile");
        assert_eq!((cluster.resets.len(), &cluster.sizes[..]), (1, &[4, 4][..]), "{mode:?}");
        assert!(cluster.resets[0].to_string().contains("while there was no driver"));
    }
}

#[test]
fn processes_of_agents_that_live_on_are_not_lost_with_those_of_an_agent_that_is_gone() {
    let mut cluster = four(|_| {});
    cluster.hold_stops = true;
    for LiveWorker { worker, .. } in cluster.live_on("b") {
        cluster.end_unseen(&worker);
    }
    let live = cluster.live_on("a");
    cluster.restart_driver();
    cluster.join(&host("b"), 2, Vec::new());
    cluster.pass(Duration::from_secs(2));
    assert_eq!(
        (cluster.lost_in_takeovers.len(), cluster.resets.len()),
        (0, 0),
        "host a may be back"
    );
    cluster.come_back(&["a"]);
    assert_eq!(cluster.resets, [], "the agent of host b may tell how they ended");
    cluster.pass(Duration::from_millis(500));
    assert_eq!((&cluster.lost_in_takeovers[..], cluster.resets.len()), (&[2][..], 1));
    let grace = cluster.config.deadlines.grace.as_millis();
    let stops: Vec<_> = live.into_iter().map(|process| (process.worker, grace as u64)).collect();
    assert_eq!(cluster.stops, stops, "they have their grace period");
}

#[test]
fn a_process_that_has_done_its_part_is_not_lost_with_its_agent() {
    let mut cluster = four(|_| {});
    let first = cluster.worker("a", 0);
    cluster.exit(&first, DONE);
    let others: Vec<WorkerId> = cluster.live().cloned().collect();
    cluster.restart_driver();
    cluster.come_back(&["b"]);
    others.iter().filter(|it| it.host == host("a")).for_each(|it| cluster.end_unseen(it));
    cluster.join(&host("a"), 2, Vec::new());
    cluster.pass(Duration::from_millis(500));
    assert_eq!(cluster.lost_in_takeovers, [1]);
}

#[test]
fn what_failed_without_a_driver_restarts_the_group_and_is_counted() {
    let mut cluster = four(|config| config.max_job_restarts = Some(1));
    for attempt in 1..=2 {
        let bad = cluster.worker("b", 1);
        cluster.restart_driver();
        cluster.end_unseen(&bad);
        cluster.come_back(&["a", "b"]);
        cluster.report_exit(&bad, FAILED);
        cluster.pass(Duration::from_secs(30));
        assert_eq!(cluster.resets.len(), attempt.min(1), "{:?}", cluster.resets);
    }
    assert_eq!(cluster.sizes, [4, 4]);
    assert!(reason(&cluster).starts_with("a worker failed after 1 of 1 restarts"));
}

#[test]
fn a_new_driver_stops_what_is_left_of_a_generation_that_has_ended() {
    let mut cluster = four(|_| {});
    cluster.hold_stops = true;
    let bad = cluster.worker("b", 1);
    cluster.exit(&bad, FAILED);
    cluster.stops.clear();
    cluster.hold_stops = false;
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    assert_eq!(cluster.stops.len(), 3, "{:?}", cluster.stops);
    cluster.pass(Duration::from_secs(30));
    assert_eq!(cluster.sizes.last(), Some(&4));
    assert_eq!(cluster.environments.len(), 8);
}

#[test]
fn a_driver_killed_while_the_group_starts_has_it_start_again() {
    for hangs in [true, false] {
        let mut cluster = Cluster::new(|config| {
            (config.mode, config.np) = (ElasticMode::Restart, Some(2));
        });
        cluster.disk_hangs = hangs;
        cluster.slow_start = true;
        cluster.add_host("a", 2);
        cluster.restart_driver();
        cluster.slow_start = false;
        cluster.come_back(&["a"]);
        cluster.pass(Duration::from_secs(1_000));
        assert_eq!((cluster.live().count(), cluster.sizes.last()), (2, Some(&2)), "{hangs}");
    }
}

#[test]
fn processes_that_started_and_ended_well_without_a_driver_have_done_their_part() {
    let mut cluster = Cluster::new(|config| {
        (config.mode, config.np) = (ElasticMode::Restart, Some(2));
    });
    cluster.slow_start = true;
    cluster.add_host("a", 2);
    let workers = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.restart_driver();
    for worker in &workers {
        cluster.end_unseen(worker);
    }
    cluster.come_back(&["a"]);
    for worker in &workers {
        cluster.report_exit(worker, DONE);
    }
    cluster.pass(Duration::from_secs(1));
    assert!(cluster.resets.is_empty(), "{:?}", cluster.resets);
    assert_eq!(cluster.result.map(|result| result.outcome), Some(JobOutcome::Succeeded));
}

#[test]
fn g_12_a_broken_generation_is_stopped_whatever_waits_for_the_disk() {
    let mut cluster = four(|_| {});
    cluster.disk_hangs = true;
    cluster.add_host("c", 1);
    let victim = cluster.worker("b", 1);
    cluster.kill(&victim);
    assert_eq!(cluster.live().count(), 0, "a stop needs no record first");
    cluster.pass(Duration::from_secs(20));
    assert_eq!(cluster.environments.len(), 4, "D-1: nobody has been started since");
    cluster.disk_hangs = false;
    cluster.pass(Duration::from_secs(20));
    assert_eq!((cluster.live().count(), cluster.sizes.last()), (5, Some(&5)));
}

#[test]
fn slots_of_a_host_that_is_gone_are_no_room_that_is_coming() {
    let mut cluster = four(|config| config.min_np = Some(3));
    cluster.remove_host("b");
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.sizes, [4], "two are too few");
    cluster.add_host("c", 2);
    assert_eq!(cluster.sizes, [4, 4], "at once: nobody else can come");
}

#[test]
fn a_process_that_ended_well_before_its_start_was_known_had_started() {
    let mut cluster = Cluster::new(|config| {
        config.mode = ElasticMode::Restart;
        config.np = Some(2);
    });
    cluster.slow_start = true;
    cluster.add_host("a", 2);
    let (brief, other) = (cluster.worker("a", 0), cluster.worker("a", 1));
    cluster.exit(&brief, DONE);
    assert_eq!(cluster.sizes, [0; 0], "the other one has not started");
    cluster.hear_agent("a", AgentToDriver::Started { worker: other.clone(), pid: 2 });
    assert_eq!(cluster.sizes, [2]);
    cluster.exit(&other, DONE);
    assert_eq!(cluster.result.as_ref().map(|end| end.outcome), Some(JobOutcome::Succeeded));
}

#[test]
fn all_ranks_meet_at_the_host_of_rank_0() {
    let mut cluster = four(|_| {});
    for (name, meeting) in [("a", "10.0.0.1:29500"), ("b", "10.0.0.2:29501")] {
        let meeting = Some(meeting.parse().expect("a literal"));
        cluster.hear_agent(name, AgentToDriver::HostChanged { meeting, hanging: Vec::new() });
    }
    let victim = cluster.worker("b", 1);
    cluster.exit(&victim, FAILED);
    cluster.pass(Duration::from_secs(5));
    let met = running(&cluster, &["RANK", "MASTER_ADDR", "MASTER_PORT"]);
    let expected = |rank: usize| [rank.to_string(), "10.0.0.1".to_owned(), "29500".to_owned()];
    assert!(met.len() >= 3, "{met:?}");
    met.iter().enumerate().for_each(|(rank, met)| assert_eq!(*met, expected(rank)));
}

#[test]
fn t_6_each_generation_meets_at_the_latest_port_and_processes_that_are_kept_at_the_first() {
    for (mode, port) in [(ElasticMode::Restart, "29502"), (ElasticMode::InProcess, "29501")] {
        let mut cluster = four(|config| config.mode = mode);
        for port in ["29501", "29502"] {
            let meeting = Some(format!("10.0.0.1:{port}").parse().expect("a literal"));
            cluster.hear_agent("a", AgentToDriver::HostChanged { meeting, hanging: Vec::new() });
        }
        let victim = cluster.worker("a", 1);
        cluster.exit(&victim, FAILED);
        cluster.pass(Duration::from_secs(5));
        let told = running(&cluster, &["RANK", "MASTER_PORT"]);
        assert!(told.contains(&vec!["1".to_owned(), port.to_owned()]), "{mode:?}: {told:?}");
    }
}
