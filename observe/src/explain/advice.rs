//! Advice on an incident: a measure, with its flag, that would have avoided it or made it cheaper. Used by `explain`.

use elastic_driver::ResetWay;
use elastic_protocol::{ExitStatus, JobResult, ResetCause};

use crate::ledger::{ResetAccount, TimeBucket};

/// Share of a reset's cost above which the advice is about one bucket alone.
const MAIN_SHARE: f64 = 0.5;

/// The words with which an agent reports a kill by the OOM killer.
const OUT_OF_MEMORY: &str = "for want of memory";

/// The ends of jobs whose workers failed too often: what killed them is what to mend.
const FAILED_TOO_OFTEN: [&str; 3] = ["blacklisted", "limit of", "every worker failed"];

/// Advice on a job that failed by kills of the OOM killer.
const FOR_MEMORY_AT_END: &str = "the kernel killed workers for want of memory: give their hosts or control groups more memory, or start fewer \
                                 workers there (slots): each holds the state and a copy of the last commit";

/// Advice if the OOM killer was at work.
const FOR_MEMORY: &str = "if so, give the host or its control group more memory, or start fewer workers there (its slots): \
                          each holds the state and a copy of the last commit";

/// Advice on a reset.
pub(super) fn advice_for_reset(account: &ResetAccount) -> Option<String> {
    let mut advice = for_cause(&account.cause);
    if account.out_of_memory.is_some() {
        advice.push(FOR_MEMORY.to_owned());
    }
    let sum = account.cost.sum() as f64 / 1e9;
    let is_main = |bucket| sum > 0.0 && account.cost.seconds_of(bucket) > MAIN_SHARE * sum;
    if is_main(TimeBucket::Lost) && account.way == ResetWay::Abort {
        advice.push("most of the cost was training that was undone: commit more often".to_owned());
    }
    if is_main(TimeBucket::Hung) {
        let sooner = "most of the cost was waiting for a member that hung: --on-hang restart or replace answers a hang by \
                      itself, --hang-timeout bounds how long one may last";
        advice.push(sooner.to_owned());
    }
    if is_main(TimeBucket::Idle) {
        let more =
            "most of the cost was waiting for hosts: --min-np says how few workers are enough";
        advice.push(more.to_owned());
    }
    if is_main(TimeBucket::Gathering) {
        let more =
            "most of the cost was waiting for enough workers: --min-np says how few are enough";
        advice.push(more.to_owned());
    }
    (!advice.is_empty()).then(|| advice.join("; "))
}

fn for_cause(cause: &ResetCause) -> Vec<String> {
    let advice = match cause {
        ResetCause::WorkerExited { worker, status: ExitStatus::Signal(9) } => format!(
            "SIGKILL comes from outside of the program: mostly from the kernel where memory is short (dmesg on host \
             {} says so), or from a person",
            worker.host
        ),
        ResetCause::WorkerExited { worker, status: ExitStatus::Signal(_) } => format!(
            "the program crashed: the last output of {worker} says more (--output-dir keeps all of it)"
        ),
        ResetCause::WorkerExited { worker, status: ExitStatus::Code(0) } => format!(
            "the program of {worker} ended with success before the others did: every rank must end at the same step"
        ),
        ResetCause::WorkerExited { worker, .. } | ResetCause::WorkerFailed { worker, .. } => {
            format!(
                "the last output of {worker} says what failed (--output-dir keeps all of it); --max-restarts says how \
                 often a slot may fail before its host is blacklisted"
            )
        }
        ResetCause::WorkerDied { worker } => format!(
            "the system is still clearing the memory of {worker}: its exit status says more once that is done"
        ),
        ResetCause::WorkerSilent { worker, .. } => format!(
            "the process of {worker} stood still while its host answered: a stop signal, a debugger, or a machine \
             that swaps"
        ),
        ResetCause::PeerBroken { peer: None, .. } => {
            "no connection is known to be at fault: the error says why the collective ended. Ranks in different \
             collectives, or with other types or sizes, are a matter of the program"
                .to_owned()
        }
        ResetCause::PeerBroken { .. } => {
            "the connection between the two broke, and both processes may be well: the network between their hosts, \
             or --data-plane"
                .to_owned()
        }
        ResetCause::HostLost { host, .. } => format!(
            "the agent of host {host} ended, or its machine or the network to it failed: workers of other hosts go on \
             as long as --min-np are left"
        ),
        ResetCause::HostBlacklisted { host } => format!(
            "host {host} gets no workers any more: --max-restarts and --on-failure say after which failures, \
             --blacklist-cooldown-range MIN MAX lets it come back"
        ),
        ResetCause::DeadlinePassed { phase, .. } if phase == "form" => {
            "--form-timeout says how long the members may take to connect".to_owned()
        }
        ResetCause::DeadlinePassed { .. } => {
            "--elastic-timeout says how long members may be waited for".to_owned()
        }
        ResetCause::ReplicasDiffer { .. } => "a bit flipped in the memory of that host, or a step is not the same on all ranks; \
             docs/divergence.md says how to tell them apart"
            .to_owned(),
        ResetCause::HostsChanged { .. }
        | ResetCause::WorkerLeaves { .. }
        | ResetCause::ShardsRebalanced { .. } => return Vec::new(),
    };
    vec![advice]
}

/// Advice on a job that has failed, where its result has none; `was_short_of_memory` if one of its resets began with a kill by
/// the OOM killer.
pub(super) fn advice_for_end(result: &JobResult, was_short_of_memory: bool) -> Option<String> {
    let reason = &result.reason;
    let first = result.first_failure.as_ref();
    let is_of_memory = reason.contains(OUT_OF_MEMORY)
        || first.is_some_and(|first| first.message.contains(OUT_OF_MEMORY))
        || was_short_of_memory && FAILED_TOO_OFTEN.iter().any(|words| reason.contains(words));
    if is_of_memory {
        return Some(FOR_MEMORY_AT_END.to_owned());
    }
    let advice = [
        (
            "elastic timeout",
            "--elastic-timeout says how long enough workers may be waited for, --min-np how few are enough",
        ),
        ("limit of", "--reset-limit says how many resets a job may have"),
        (
            "blacklisted",
            "--blacklist-cooldown-range MIN MAX lets blacklisted hosts come back; --max-restarts says after how many failures they are",
        ),
        ("every worker failed", "the program fails everywhere: its last output says why"),
    ];
    let known = advice.iter().find(|(words, _)| reason.contains(words));
    known.map(|(_, advice)| (*advice).to_owned())
}
