//! A generation's communicator, shared by the training thread and the actor: the queued operations, those that have
//! passed, and the first reason to stop.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use elastic_collectives::wire::OperationKind;
use elastic_protocol::Stamp;

use crate::actor::core::ProgressSample;
use crate::cuda::{CudaError, CudaEvent, Stream};
use crate::nccl::{Comm, CommError, GpuPatience, NcclError, Operations};

/// Operations that may be under way at once: a thread that queues more waits for the oldest.
pub const UNDER_WAY_MAX: usize = 1_024;

/// An operation that was queued.
#[derive(Debug)]
struct QueuedOperation {
    kind: OperationKind,
    sequence: u64,
    since: Instant,
    /// The mark behind it; none while it is still being queued.
    passed: Option<CudaEvent>,
}

/// A generation's communicator.
#[derive(Debug)]
pub struct NcclSession {
    stamp: Stamp,
    comm: Arc<Comm>,
    /// By rank in the generation: NCCL's.
    ranks: Vec<u32>,
    flights: Mutex<QueuedOperations>,
    verdict: OnceLock<SessionFailure>,
}

/// Failure after which a communicator cannot go on.
#[derive(Debug)]
struct SessionFailure {
    reason: String,
    /// The operation under way at the abort: once the communicator is aborted, its operations count as passed.
    culprit: Option<(OperationKind, u64)>,
}

#[derive(Debug, Default)]
struct QueuedOperations {
    queued: u64,
    under_way: VecDeque<QueuedOperation>,
    /// Marks that can be used again.
    free: Vec<CudaEvent>,
}

impl NcclSession {
    pub(crate) fn new(stamp: Stamp, comm: Arc<Comm>, ranks: Vec<u32>) -> NcclSession {
        NcclSession { stamp, comm, ranks, flights: Mutex::default(), verdict: OnceLock::new() }
    }

    /// The generation.
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The communicator.
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// NCCL's rank of a member.
    pub(crate) fn nccl_rank(&self, rank: u32) -> u32 {
        self.ranks[rank as usize]
    }

    /// Whether NCCL counts as the generation does.
    pub(crate) fn is_in_order(&self) -> bool {
        self.ranks.iter().enumerate().all(|(rank, nccl)| rank == *nccl as usize)
    }

    /// The generation cannot go on here: waits end.
    pub(crate) fn fail(&self, reason: String) {
        let culprit = self.oldest().map(|(kind, sequence, _)| (kind, sequence));
        // The first reason stands.
        let _ = self.verdict.set(SessionFailure { reason, culprit });
    }

    /// The reason why it cannot go on, if there is one.
    pub fn verdict(&self) -> Option<&str> {
        self.verdict.get().map(|verdict| verdict.reason.as_str())
    }

    /// The operation to name for a failure: the one under way when the communicator failed, or else the oldest that
    /// is under way now, or else the next.
    pub(crate) fn culprit(&self, next: OperationKind) -> (OperationKind, u64) {
        let failed = self.verdict.get().and_then(|verdict| verdict.culprit);
        let flights = self.lock();
        let oldest = flights.under_way.front().map(|flight| (flight.kind, flight.sequence));
        failed.or(oldest).unwrap_or((next, flights.queued))
    }

    /// Queues an operation, and gives its number.
    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    pub(crate) fn queue(
        &self,
        kind: OperationKind,
        stream: &Stream,
        patience: &GpuPatience<'_>,
        queue: impl FnOnce(&Operations<'_>) -> Result<(), NcclError>,
    ) -> Result<u64, CommError> {
        if self.lock().under_way.len() >= UNDER_WAY_MAX {
            patience.wait("an operation of before", || {
                let mut flights = self.lock();
                flights.land()?;
                Ok(flights.under_way.len() < UNDER_WAY_MAX)
            })?;
        }
        let since = Instant::now();
        let sequence = {
            let mut flights = self.lock();
            flights.queued += 1;
            let sequence = flights.queued - 1;
            // On the list before the call, so that one that hangs in it is seen.
            flights.under_way.push_back(QueuedOperation { kind, sequence, since, passed: None });
            sequence
        };
        self.comm.enqueue(stream, patience, queue)?;
        let mut flights = self.lock();
        let mark = match flights.free.pop() {
            Some(event) => event,
            None => CudaEvent::new(stream.device())?,
        };
        mark.record(stream)?;
        if let Some(flight) = flights.under_way.back_mut() {
            flight.passed = Some(mark);
        }
        Ok(sequence)
    }

    /// Whether this operation, and with it all before it, has passed.
    pub(crate) fn has_passed(&self, sequence: u64) -> Result<bool, CudaError> {
        let mut flights = self.lock();
        flights.land()?;
        Ok(flights.under_way.front().is_none_or(|oldest| oldest.sequence > sequence))
    }

    /// Its progress. Never waits for a call of NCCL's.
    pub(crate) fn sample(&self) -> ProgressSample {
        let error = match self.comm.peek_error() {
            Ok(error) => error.map(|error| error.to_string()),
            Err(CommError::Ended) => None,
            Err(error) => Some(error.to_string()),
        };
        let mut flights = self.lock();
        let broken = flights.land().err().map(|error| error.to_string());
        let oldest = flights.under_way.front().map(|oldest| {
            (oldest.since.elapsed(), format!("{} #{}", oldest.kind, oldest.sequence))
        });
        ProgressSample { oldest, error: error.or(broken) }
    }

    /// The oldest operation that is under way, and since when.
    pub(crate) fn oldest(&self) -> Option<(OperationKind, u64, Duration)> {
        let flights = self.lock();
        flights
            .under_way
            .front()
            .map(|flight| (flight.kind, flight.sequence, flight.since.elapsed()))
    }

    fn lock(&self) -> MutexGuard<'_, QueuedOperations> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedOperations {
    /// Removes passed operations from the list.
    fn land(&mut self) -> Result<(), CudaError> {
        while let Some(oldest) = self.under_way.front() {
            let has_passed = match &oldest.passed {
                Some(mark) => mark.is_passed()?,
                None => false,
            };
            if !has_passed {
                break;
            }
            let landed = self.under_way.pop_front();
            self.free.extend(landed.and_then(|landed| landed.passed));
        }
        Ok(())
    }
}
