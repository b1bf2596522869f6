//! Resets with their cost, as the ledger accounts for it. Used by the ledger and its readers.

use std::collections::BTreeMap;

use elastic_driver::{EventKind, ResetWay};
use elastic_protocol::messages::PhaseMs;
use elastic_protocol::{ExitStatus, GenerationId, ResetCause, Time, WorkerId};

use super::bucket::TimeBucket;
use super::totals::BucketTotals;

/// Resets that are kept, the last ones. Costs of older ones are in the totals alone.
const ACCOUNTS_MAX: usize = 256;

/// A reset, and its cost.
#[derive(Clone, Debug)]
pub struct ResetAccount {
    /// The generation that ended.
    pub from: GenerationId,
    /// The generation that trains since; none while there is none.
    pub to: Option<GenerationId>,
    /// The cause.
    pub cause: ResetCause,
    /// The reading of the kernel's OOM counters, if the OOM killer ended the worker that the cause names.
    pub out_of_memory: Option<String>,
    /// The kind of the generation's end.
    pub way: ResetWay,
    /// Time of the decision.
    pub decided_at: Time,
    /// Phases of the reset; none before it is complete.
    pub ms: Option<PhaseMs>,
    /// Lost steps.
    pub steps_lost: u64,
    /// Whether more steps may be lost than that: those who held the last commit are gone, and may have made steps of which they had
    /// not told.
    pub lost_unseen: bool,
    /// Training time since the last commit that an abort undid, in milliseconds.
    pub lost_ms: u64,
    /// Members that failed as the generation ended, each with its error; at most [`EventKind::WORKERS_FAILED_MAX`].
    pub further_failures: Vec<(WorkerId, String)>,
    /// Slot-time that it cost, by bucket.
    pub cost: BucketTotals,
}

impl ResetAccount {
    pub(super) fn note_further_failure(&mut self, worker: &WorkerId, error: &str) {
        if self.further_failures.len() < EventKind::WORKERS_FAILED_MAX {
            self.further_failures.push((worker.clone(), error.to_owned()));
        }
    }
}

/// All resets that are kept, by the generation that ended.
#[derive(Clone, Debug, Default)]
pub(super) struct ResetAccounts {
    accounts: BTreeMap<u64, ResetAccount>,
}

impl ResetAccounts {
    /// Opens the account of a reset. A planned end that becomes an abort goes on in the same account.
    pub(super) fn open(
        &mut self,
        now: Time,
        from: GenerationId,
        cause: &ResetCause,
        way: ResetWay,
    ) {
        let account = self.accounts.entry(from.0).or_insert_with(|| ResetAccount {
            from,
            to: None,
            cause: cause.clone(),
            out_of_memory: None,
            way,
            decided_at: now,
            ms: None,
            steps_lost: 0,
            lost_unseen: false,
            further_failures: Vec::new(),
            lost_ms: 0,
            cost: BucketTotals::default(),
        });
        account.cause = cause.clone();
        account.way = way;
        while self.accounts.len() > ACCOUNTS_MAX {
            self.accounts.pop_first();
        }
    }

    pub(super) fn get_mut(&mut self, from: u64) -> Option<&mut ResetAccount> {
        self.accounts.get_mut(&from)
    }

    /// Puts the exit status of a worker in the place of its death, in the resets that the death began.
    pub(super) fn explain_death(&mut self, worker: &WorkerId, status: ExitStatus) {
        let died = ResetCause::WorkerDied { worker: worker.clone() };
        for account in self.accounts.values_mut().filter(|account| account.cause == died) {
            account.cause = ResetCause::WorkerExited { worker: worker.clone(), status };
        }
    }

    /// Adds to the last reset that a worker's end began that the OOM killer ended it.
    pub(super) fn explain_kill(&mut self, worker: &WorkerId, detail: &str) {
        let is_its_end = |cause: &ResetCause| match cause {
            ResetCause::WorkerExited { worker: of, .. }
            | ResetCause::WorkerDied { worker: of }
            | ResetCause::WorkerSilent { worker: of, .. }
            | ResetCause::WorkerFailed { worker: of, .. }
            | ResetCause::PeerBroken { peer: Some(of), .. } => of == worker,
            _ => false,
        };
        let account = self.accounts.values_mut().rev().find(|account| is_its_end(&account.cause));
        if let Some(account) = account {
            account.out_of_memory = Some(detail.to_owned());
        }
    }

    pub(super) fn charge(&mut self, from: u64, bucket: TimeBucket, nanos: u128) {
        if let Some(account) = self.accounts.get_mut(&from) {
            account.cost.add(bucket, nanos);
        }
    }

    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &ResetAccount> {
        self.accounts.values()
    }
}
