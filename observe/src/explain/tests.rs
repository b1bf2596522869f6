//! Tests of explanations: each kind of cause names the one at fault, the reason, the cost and the remedy.

use elastic_driver::{DriverEvent, EventKind, ListedHost};
use elastic_protocol::{ExitStatus, HostName, Incarnation, Term, Time};

use super::*;
use crate::log::{LoggedEntry, LoggedLine, MissingBefore};

fn name(host: &str) -> HostName {
    HostName::new(host).expect("allowed")
}

fn worker(host: &str) -> WorkerId {
    WorkerId { host: name(host), slot: 0, incarnation: Incarnation(3) }
}

/// A job of two hosts whose first generation ends for this cause after a minute.
fn broken(cause: &ResetCause, way: ResetWay) -> LoggedJob {
    let listed = |host: &str| ListedHost {
        name: name(host),
        slots: 1,
        is_blacklisted: false,
        is_drained: false,
    };
    let members = vec![worker("a"), worker("b")];
    let ms = PhaseMs { detect: 2.0, form: Some(3_000.0), sync: Some(1.0), total: Some(3_003.0) };
    let (from, steps_lost) = (GenerationId(1), u64::from(way == ResetWay::Abort));
    let attached = |host| EventKind::WorkerAttached { worker: worker(host), pid: 1 };
    let formed = |members: &[WorkerId], step| EventKind::GenerationFormed {
        members: members.to_vec(),
        root: None,
        step,
    };
    let joined = |host| EventKind::HostJoined { host: name(host), slots: 1 };
    let running = |world_size| EventKind::GenerationRunning { world_size };
    let story = [
        (
            0,
            0,
            EventKind::HostsChanged { needed: 1, min_np: 1, hosts: vec![listed("a"), listed("b")] },
        ),
        (0, 0, joined("a")),
        (0, 0, joined("b")),
        (1, 0, attached("a")),
        (1, 0, attached("b")),
        (2, 1, formed(&members, 0)),
        (3, 1, running(2)),
        (63, 1, EventKind::ResetDecided { cause: cause.clone(), way }),
        (66, 2, formed(&members[..1], 59)),
        (66, 2, running(1)),
        (66, 2, EventKind::ResetDone { cause: cause.clone(), from, ms, steps_lost, lost_ms: 0 }),
    ];
    let mut record = LoggedJob::new("j".to_owned(), Time::ZERO);
    for (second, generation, kind) in story {
        let generation = GenerationId(generation);
        let event = Box::new(DriverEvent { term: Term(1), generation, kind });
        let entry = LoggedEntry::Event(event);
        record.handle_line(&LoggedLine { at: Time::from_ms(second * 1_000), entry });
    }
    record
}

fn explained(cause: &ResetCause, way: ResetWay) -> Explanation {
    explain(&broken(cause, way), None, ExplainRequest::Last).expect("a reset")
}

#[test]
fn a_killed_worker_is_named_with_its_signal_its_cost_and_what_kills() {
    let status = ExitStatus::Signal(9);
    let cause = ResetCause::WorkerExited { worker: worker("b"), status };
    let explanation = explained(&cause, ResetWay::Abort);
    assert_eq!((explanation.generation, explanation.next_generation), (1, Some(2)));
    assert_eq!(explanation.worker.as_deref(), Some("b[0]#3"));
    assert_eq!(explanation.host.as_deref(), Some("b"));
    assert_eq!(explanation.steps_lost, 1);
    assert!(explanation.cost["lost"] > 1.9 && explanation.cost["lost"] < 2.1, "{explanation:?}");
    let text = explanation.to_string();
    for words in ["b[0]#3 ended: signal 9 (SIGKILL)", "1 step was lost", "slot-seconds", "dmesg"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
    let json = serde_json::to_value(&explanation).expect("an object");
    assert_eq!((&json["way"], &json["host"]), (&"abort".into(), &"b".into()));
}

#[test]
fn g_10_members_that_failed_as_their_generation_ended_are_named_with_their_errors() {
    let cause = ResetCause::WorkerExited { worker: worker("b"), status: ExitStatus::Signal(9) };
    let mut record = broken(&cause, ResetWay::Abort);
    let failed = |error: &str| {
        let kind = EventKind::WorkerFailed { worker: worker("a"), error: error.to_owned() };
        let event = Box::new(DriverEvent { term: Term(1), generation: GenerationId(1), kind });
        LoggedLine { at: Time::from_ms(64_000), entry: LoggedEntry::Event(event) }
    };
    (0..9).for_each(|_| record.handle_line(&failed("panicked: rank 1 is gone")));
    let text = explain(&record, None, ExplainRequest::Last).expect("a reset").to_string();
    let told =
        "The training function of a[0]#3 failed as the generation ended: panicked: rank 1 is gone.";
    assert_eq!(text.matches(told).count(), 4, "{text}");
}

#[test]
fn l_1_of_a_total_loss_at_least_so_many_steps_were_lost() {
    let status = ExitStatus::Signal(9);
    let cause = ResetCause::WorkerExited { worker: worker("b"), status };
    let mut record = broken(&cause, ResetWay::Abort);
    let ms = PhaseMs { detect: 2.0, form: Some(3.0), sync: Some(1.0), total: Some(6.0) };
    let from = GenerationId(2);
    for (second, generation, kind) in [
        (70, 2, EventKind::ResetDecided { cause: cause.clone(), way: ResetWay::Abort }),
        (
            70,
            3,
            EventKind::StateLost { committed: 62, begins_at: 0, steps_lost: 62, unseen: false },
        ),
        (71, 3, EventKind::ResetDone { cause, from, ms, steps_lost: 62, lost_ms: 0 }),
    ] {
        let generation = GenerationId(generation);
        let event = Box::new(DriverEvent { term: Term(1), generation, kind });
        let entry = LoggedEntry::Event(event);
        record.handle_line(&LoggedLine { at: Time::from_ms(second * 1_000), entry });
    }
    let text = explain(&record, None, ExplainRequest::Last).expect("a reset").to_string();
    assert!(text.contains("At least 62 steps were lost."), "{text}");
    let told: Vec<bool> = record.ledger.resets().map(|reset| reset.lost_unseen).collect();
    assert_eq!(told, [false, true], "those of the reset before are known");
}

#[test]
fn each_cause_names_who_is_at_fault_and_a_planned_end_needs_no_advice() {
    let error = "refused".to_owned();
    let peer = Some(worker("b"));
    let cases = [
        (ResetCause::WorkerFailed { worker: worker("b"), error: error.clone() }, "--max-restarts"),
        (
            ResetCause::WorkerSilent { worker: worker("b"), silent_ms: 9, doing: None },
            "stood still",
        ),
        (ResetCause::WorkerDied { worker: worker("b") }, "its exit status says more"),
        (ResetCause::PeerBroken { reporter: worker("a"), peer, error }, "--data-plane"),
        (ResetCause::HostLost { host: name("b"), reason: "gone".to_owned() }, "--min-np"),
        (ResetCause::HostBlacklisted { host: name("b") }, "--blacklist-cooldown-range"),
        (
            ResetCause::DeadlinePassed { phase: "form".to_owned(), waiting_for: vec![worker("b")] },
            "--form-timeout",
        ),
    ];
    for (cause, advice) in cases {
        let explanation = explained(&cause, ResetWay::Abort);
        assert_eq!(explanation.host.as_deref(), Some("b"), "{explanation:?}");
        assert!(explanation.advice.as_deref().is_some_and(|it| it.contains(advice)), "{advice}");
    }
    let cause = ResetCause::HostsChanged { added: vec![worker("c")], removed: Vec::new() };
    let explanation = explained(&cause, ResetWay::Interrupt);
    assert_eq!(explanation.worker.as_deref(), Some("c[0]#3"));
    assert_eq!((explanation.advice, explanation.steps_lost), (None, 0));
}

#[test]
fn what_is_not_on_record_is_said_so() {
    let cause = ResetCause::HostBlacklisted { host: name("b") };
    let record = broken(&cause, ResetWay::Abort);
    let unknown = explain(&record, None, ExplainRequest::Generation(7)).expect_err("there is none");
    assert!(unknown.to_string().ends_with("that ended: 1"), "{unknown}");
    let mut nothing = LoggedJob::new("j".to_owned(), Time::ZERO);
    let error = |record: &LoggedJob, question| {
        explain(record, None, question).expect_err("there is none").to_string()
    };
    let text = error(&nothing, ExplainRequest::Last);
    assert_eq!(text, "no generation of job j has ended yet: there is nothing to explain");
    nothing.missing_before = Some(MissingBefore(Time::ZERO));
    let begins = "the event log begins at 1970-01-01T00:00:00Z: what came before is missing";
    let text = error(&nothing, ExplainRequest::Last);
    assert_eq!(text, format!("{begins}, and no generation of job j has ended since"));
    let text = error(&nothing, ExplainRequest::Generation(7));
    assert!(text.ends_with(&format!("that ended: none; {begins}")), "{text}");
}

#[test]
fn the_present_says_what_each_slot_does() {
    let cause = ResetCause::HostBlacklisted { host: name("b") };
    let now = explain(&broken(&cause, ResetWay::Abort), None, ExplainRequest::Now).expect("always");
    assert_eq!((now.way, now.generation), ("now", 2));
    assert_eq!(now.cost["training"], 1.0);
    assert!(now.to_string().contains("generation 2 trains on 1 slots"), "{now}");
}

#[test]
fn a_log_without_its_beginning_does_not_say_that_no_slot_trains_while_the_driver_says_that_all_do()
{
    let status: StatusReport = serde_json::from_value(serde_json::json!({
        "job": "8c2294e4-bcfa-47d0-ac77-d9dac43fa755", "term": 1, "generation": 7, "phase": "run", "world_size": 3,
        "min_np": 1, "max_np": null, "resets": 6, "hosts": [], "workers": [], "last_reset": null, "waiting_for": null,
        "warnings": [], "dropped_messages": 0,
    }))
    .expect("a status");
    let mut record = LoggedJob::new("j".to_owned(), Time::ZERO);
    record.missing_before = Some(MissingBefore(Time::ZERO));
    let now = explain(&record, Some(&status), ExplainRequest::Now).expect("always").to_string();
    assert!(now.contains("generation 7 trains with 3 workers"), "{now}");
    assert!(now.contains("what came before is missing"), "{now}");
}

/// A job of which worker `a` has been killed, and which ended as its hosts were blacklisted.
fn advice_at_end(message: &str, is_told_of_memory: bool) -> String {
    let cause = ResetCause::WorkerExited { worker: worker("a"), status: ExitStatus::Signal(9) };
    let mut record = broken(&cause, ResetWay::Abort);
    if is_told_of_memory {
        let detail = "killed for want of memory".to_owned();
        let kind = EventKind::WorkerOutOfMemory { worker: worker("a"), detail };
        let event = DriverEvent { term: Term(1), generation: GenerationId(1), kind };
        let entry = LoggedEntry::Event(Box::new(event));
        record.handle_line(&LoggedLine { at: Time::from_ms(67_000), entry });
    }
    let result = JobResult {
        outcome: JobOutcome::Failed,
        code: 1,
        reason: format!("every host is blacklisted: a, b; first {message}"),
        hint: None,
        generation: GenerationId(2),
        first_failure: None,
    };
    of_end(&record, &result).advice.expect("a failed job has one")
}

#[test]
fn a_job_that_fails_by_kills_of_the_oom_killer_is_advised_of_memory() {
    let plain = advice_at_end("a[0]#3: signal 9 (SIGKILL)", false);
    assert!(plain.contains("--blacklist-cooldown-range"), "{plain}");
    for (message, is_told) in [
        ("a[0]#3: signal 9 (SIGKILL)", true),
        ("a[0]#3: signal 9 (SIGKILL)\nkilled for want of memory: its control group", false),
    ] {
        let advice = advice_at_end(message, is_told);
        assert!(advice.contains("more memory"), "{advice}");
        assert!(!advice.contains("--blacklist-cooldown-range"), "{advice}");
    }
}
