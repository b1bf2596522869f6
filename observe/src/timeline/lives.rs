//! [`WorkerLives`]: the current and the last process of each slot. Used by `timeline`.

use std::collections::BTreeMap;

use elastic_protocol::{HostName, Time, WorkerId};

/// A slot: its host and its number there.
pub(super) type SlotKey = (HostName, u32);

/// A worker's process.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerLife {
    pub(super) started: Time,
    pub(super) attached: Option<Time>,
}

/// The processes of all slots.
#[derive(Debug, Default)]
pub(super) struct WorkerLives {
    /// Workers whose processes have not ended.
    living: BTreeMap<SlotKey, (WorkerId, WorkerLife)>,
    /// The last of each slot that have ended: begin and end.
    ended: BTreeMap<SlotKey, (WorkerId, Time, Time)>,
}

impl WorkerLives {
    /// Starts a worker. Returns the one that its slot has had until now, if that has not ended.
    pub(super) fn start(&mut self, at: Time, worker: &WorkerId) -> Option<(WorkerId, WorkerLife)> {
        let life = WorkerLife { started: at, attached: None };
        let before = self.living.insert(key(worker), (worker.clone(), life));
        if let Some((worker, life)) = &before {
            self.note_end(worker, life, at);
        }
        before
    }

    /// Attaches a worker, also one whose start was not told.
    pub(super) fn attach(&mut self, at: Time, worker: &WorkerId) {
        let unheard_of = (worker.clone(), WorkerLife { started: at, attached: None });
        let (known, life) = self.living.entry(key(worker)).or_insert(unheard_of);
        if known == worker {
            life.attached.get_or_insert(at);
        }
    }

    /// Ends a worker. Returns its life, if it was not over.
    pub(super) fn end(&mut self, at: Time, worker: &WorkerId) -> Option<WorkerLife> {
        let is_it = self.living.get(&key(worker)).is_some_and(|(known, _)| known == worker);
        let (_, life) = is_it.then(|| self.living.remove(&key(worker)))??;
        self.note_end(worker, &life, at);
        Some(life)
    }

    /// Ends all workers of a host.
    pub(super) fn end_host(&mut self, at: Time, host: &HostName) -> Vec<(WorkerId, WorkerLife)> {
        let of_host = self.living.values().filter(|(worker, _)| worker.host == *host);
        let workers: Vec<WorkerId> = of_host.map(|(worker, _)| worker.clone()).collect();
        let end = |worker: WorkerId| self.end(at, &worker).map(|life| (worker, life));
        workers.into_iter().filter_map(end).collect()
    }

    /// Ends all.
    pub(super) fn take_all(&mut self) -> Vec<(WorkerId, WorkerLife)> {
        std::mem::take(&mut self.living).into_values().collect()
    }

    /// Origin of a reset's flow: in the slice of the worker at fault, or of one on the host at fault, at the reset's
    /// decision or just before the slice's end.
    pub(super) fn source_of_flow(
        &self,
        worker: Option<&WorkerId>,
        host: Option<&str>,
        decided: Time,
    ) -> Option<(SlotKey, Time)> {
        let slot = match (worker, host) {
            (Some(worker), _) => key(worker),
            (None, Some(host)) => {
                let mut slots = self.living.keys().chain(self.ended.keys());
                slots.find(|(name, _)| name.as_str() == host)?.clone()
            }
            (None, None) => return None,
        };
        let is_it = |known: &WorkerId| worker.is_none_or(|worker| worker == known);
        if let Some((_, began, end)) = self.ended.get(&slot).filter(|(known, ..)| is_it(known)) {
            // The slice's last microsecond; its end belongs to the next slice.
            let last = Time(end.0.saturating_sub(1_000)).max(*began);
            return Some((slot, decided.clamp(*began, last)));
        }
        let (_, life) = self.living.get(&slot).filter(|(known, _)| is_it(known))?;
        let at = decided.max(life.started);
        Some((slot, at))
    }

    fn note_end(&mut self, worker: &WorkerId, life: &WorkerLife, at: Time) {
        self.ended.insert(key(worker), (worker.clone(), life.started, at));
    }
}

fn key(worker: &WorkerId) -> SlotKey {
    (worker.host.clone(), worker.slot)
}
