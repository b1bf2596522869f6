//! The oracle's check of the goodput ledger (O-1): every nanosecond of every listed slot is in one bucket, across all
//! drivers of a job, and a slot is in the bucket that the driver's status says.

use elastic_driver::{DriverEvent, EventKind, ListedHost};
use elastic_observe::{GoodputLedger, TimeBucket};
use elastic_protocol::Time;
use elastic_protocol::messages::{StalledWorker, StatusReport, WorkerCondition, WorkerStatus};

use super::{JobNumber, Oracle};

/// Longest way of a vote to the registry and of its verdict back, in nanoseconds.
const VOTE_NS: u64 = 1_000_000;

/// The ledger of a job, and the oracle's own sum.
#[derive(Debug)]
pub(super) struct AccountedJob {
    ledger: GoodputLedger,
    /// The life of the driver that said the last event.
    life: u32,
    /// World time of that event.
    at: u64,
    /// The hosts that were listed since.
    listed: Vec<ListedHost>,
    /// Time of all listed slots up to that event.
    slot_nanos: u128,
}

impl Oracle {
    /// Gives an event of the newest driver to its job's ledger, and checks the sums.
    pub(crate) fn account(
        &mut self,
        now: u64,
        job: JobNumber,
        life: u32,
        event: &DriverEvent,
    ) -> Result<(), String> {
        let Some(record) = self.jobs.get_mut(&job) else { return Ok(()) };
        let accounted = record.accounted.get_or_insert_with(|| AccountedJob {
            ledger: GoodputLedger::new(Time(now)),
            life,
            at: now,
            listed: Vec::new(),
            slot_nanos: 0,
        });
        let slots: u64 = accounted.listed.iter().map(|host| u64::from(host.slots)).sum();
        accounted.slot_nanos += u128::from(slots) * u128::from(now - accounted.at);
        if accounted.life != life {
            accounted.ledger.handle_driver_gone(Time(accounted.at));
            accounted.ledger.handle_driver_back(Time(now));
        }
        (accounted.life, accounted.at) = (life, now);
        if let EventKind::HostsChanged { hosts, .. } = &event.kind {
            accounted.listed.clone_from(hosts);
        }
        accounted.ledger.handle_event(Time(now), event);
        let of_ledger = accounted.ledger.totals(Time(now)).sum();
        let of_oracle = accounted.slot_nanos;
        accounted.ledger.check().map_err(|error| format!("O-1: {error}"))?;
        if of_ledger != of_oracle {
            return Err(format!(
                "O-1: the ledger accounts for {of_ledger} ns of slots, and they were there for {of_oracle} ns"
            ));
        }
        Ok(())
    }

    /// Checks that the ledger has every slot in training whose worker trains by the driver's status, or in `hung` while a
    /// member hangs by that status.
    pub(crate) fn accounts_for(
        &self,
        now: u64,
        job: JobNumber,
        status: &StatusReport,
    ) -> Result<(), String> {
        let accounted = self.jobs.get(&job).and_then(|record| record.accounted.as_ref());
        let Some(AccountedJob { ledger, at, listed, .. }) = accounted else { return Ok(()) };
        // A script's exit is an event at once, and its vote goes by way of the registry.
        let may_be_done = now - at < VOTE_NS;
        let expected = match status.stalled.iter().any(StalledWorker::holds_up_all) {
            true => TimeBucket::Hung,
            false => TimeBucket::Training,
        };
        // Members train on without their hosts where nobody else would be left: the time of such a slot is nobody's.
        let is_listed = |worker: &WorkerStatus| {
            listed.iter().any(|host| host.name == worker.host && worker.slot < host.slots)
        };
        let running = |it: &&WorkerStatus| it.state == WorkerCondition::Running && is_listed(it);
        for worker in status.workers.iter().filter(running) {
            let bucket = ledger.bucket_of(&worker.host, worker.slot);
            let is_done = may_be_done && bucket == Some(TimeBucket::Finished);
            if bucket != Some(expected) && !is_done {
                let bucket = bucket.map_or("no bucket", TimeBucket::name);
                let WorkerStatus { host, slot, .. } = worker;
                return Err(format!(
                    "O-1: {host}[{slot}] trains, and its time is in {bucket}, not in {expected}"
                ));
            }
        }
        Ok(())
    }
}
