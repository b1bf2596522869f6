//! `HierarchicalCommunicator`: its operations over two levels, and the translation of their errors to the whole
//! group. Made by `HostFabric` and `form_in_hosts`.

use std::fmt;
use std::time::Duration;

use ring::rand::SystemRandom;

use super::hosts::Hosts;
use super::regions::Regions;
use crate::abort::AbortHandle;
use crate::backend::{CpuBackend, GroupMembership};
use crate::communicator::{Communicator, CommunicatorExt};
use crate::element::DataType;
use crate::error::{CollectiveError, CollectiveResult, FormError, PeerLoss};
use crate::fusion::all_reduce_grouped;
use crate::operation::{HostOperation, Operation, PartRanges};
use crate::reduce::ReduceOp;
use crate::shm::ShmCommunicator;
use crate::split::Ancestry;
use crate::tcp::{Chain, Exchange, Flow, SMALL, TcpCommunicator, TcpFabric, grace};
use crate::wire::{FrameHeader, OperationKind, OperationSignature};

/// The total of all ranks' contributions, in bytes, up to which leaders exchange contributions instead of partial
/// sums: one message instead of one for each host of the chain.
const GATHERED: usize = 64 * 1024;
/// Most hosts for which middling reductions go down the chain; with more hosts its length costs more than it saves.
const SHORT_CHAIN: usize = 4;
/// The piece of a broadcast that is passed on at a time, in bytes.
const BROADCAST_PIECE: usize = 1024 * 1024;
/// The number of the part of a generation that a host's ranks form.
const LOCAL_PART: u32 = 1;

/// The group of one generation over several hosts. [`crate::HostFabric::form`] makes it.
pub struct HierarchicalCommunicator {
    pub(super) world: TcpCommunicator,
    /// The group of this host's ranks; none where this rank is alone there.
    pub(super) local: Option<Box<dyn Communicator>>,
    pub(super) hosts: Hosts,
    deadline: Duration,
    /// Memory for data from other hosts, in words so that any element is aligned.
    pub(super) scratch: Vec<u64>,
    /// Accumulators of 16-bit floats.
    pub(super) wide: Vec<f32>,
    /// Memory for a reduction to another rank, in words.
    copied: Vec<u64>,
}

impl fmt::Debug for HierarchicalCommunicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HierarchicalCommunicator")
            .field("world", &self.world)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Lets the ranks of each host share memory, beside the connections of `world`. If the placement of the ranks gives
/// no hierarchy ([`Hosts::new`]), or a rank cannot share memory, all use the connections alone. `deadline` is the
/// time left for it.
///
/// # Errors
///
/// Forming a host's group failed.
pub(crate) fn form(
    mut world: TcpCommunicator,
    fabric: &mut TcpFabric,
    deadline: Duration,
    abort: &AbortHandle,
) -> Result<Box<dyn Communicator>, FormError> {
    let origin = std::sync::Arc::clone(&world.engine.origin);
    let group = &origin.group;
    let Some(hosts) = Hosts::new(&group.hosts, group.rank) else {
        return Ok(Box::new(world));
    };
    let ranks = hosts.ranks(hosts.own());
    let within = ranks.start as usize..ranks.end as usize;
    let mut local: Option<Box<dyn Communicator>> = None;
    let mut ready = true;
    if ranks.len() > 1 {
        let host = crate::tcp::GroupSpec {
            rank: group.rank - ranks.start,
            peers: group.peers[within.clone()].to_vec(),
            hosts: group.hosts[within.clone()].to_vec(),
            host_names: group.host_names.get(within).unwrap_or_default().to_vec(),
            form_deadline: deadline,
            ..group.clone()
        };
        let mut tcp = fabric.form_part(&host, LOCAL_PART, abort)?;
        ready = crate::shm::serves(ranks.len() as u32);
        if ready {
            // The world's connections also detect the loss of a rank in this step.
            let shared =
                tcp.agree(deadline, |tcp| ShmCommunicator::share(tcp, &SystemRandom::new()));
            match shared {
                Ok(Some(segment)) => local = Some(Box::new(ShmCommunicator::new(tcp, segment))),
                Ok(None) | Err(_) => ready = false,
            }
        }
    }
    let mut all_ready = [u8::from(ready)];
    let agreed = world.agree(deadline, |world| world.all_reduce(&mut all_ready, ReduceOp::Min));
    if agreed.is_err() || all_ready == [0] {
        // A world that has failed returns the error from its first operation.
        return Ok(Box::new(world));
    }
    Ok(Box::new(HierarchicalCommunicator::new(world, local, hosts)))
}

/// The phase of an operation. Each wait may take a little longer than the waits of the phase before, so that an
/// absent rank is named by the ranks that wait for it directly, and not the leader, who waits for it too.
#[derive(Clone, Copy)]
pub(super) enum WaitPhase {
    Within,
    Between,
    Back,
}

impl WaitPhase {
    fn deadline(self, operation: Duration) -> Duration {
        let grace = grace(operation);
        match self {
            WaitPhase::Within => operation,
            WaitPhase::Between => operation + grace,
            WaitPhase::Back => operation + 2 * grace,
        }
    }
}

pub(super) fn bytes(words: &mut Vec<u64>, length: usize) -> &mut [u8] {
    let count = length.div_ceil(size_of::<u64>());
    if words.len() < count {
        words.resize(count, 0);
    }
    &mut bytemuck::cast_slice_mut(words)[..length]
}

/// The level at which an operation failed: it determines which ranks the error names.
pub(super) enum LevelFailure {
    Within(CollectiveError),
    Between(CollectiveError),
}

impl From<CollectiveError> for LevelFailure {
    fn from(error: CollectiveError) -> LevelFailure {
        LevelFailure::Between(error)
    }
}

pub(super) type PartResult = Result<(), LevelFailure>;

impl HierarchicalCommunicator {
    /// The group over `world`, in which the ranks of this host have the group `local`.
    pub(super) fn new(
        world: TcpCommunicator,
        local: Option<Box<dyn Communicator>>,
        hosts: Hosts,
    ) -> HierarchicalCommunicator {
        let deadline = world.engine.operation_deadline;
        let (scratch, wide, copied) = (Vec::new(), Vec::new(), Vec::new());
        HierarchicalCommunicator { world, local, hosts, deadline, scratch, wide, copied }
    }

    pub(super) fn leads(&self) -> bool {
        self.hosts.leader(self.hosts.own()) == self.world.engine.rank
    }

    /// Runs one operation, in parts that all ranks of a host go through together.
    fn run_over_hosts(
        &mut self,
        operation: OperationSignature,
        body: impl FnOnce(&mut Self) -> PartResult,
    ) -> CollectiveResult {
        self.world.engine.usable()?;
        let entered = self.world.engine.check_abort().map_err(LevelFailure::Between);
        let result = entered.and_then(|()| body(self)).map_err(|fault| match fault {
            LevelFailure::Between(error) => error,
            LevelFailure::Within(error) => self.of_the_world(operation, error),
        });
        // The connections carry the reason before this host's ranks learn of the end.
        let result = self.world.engine.conclude(operation.kind, result);
        self.end_if_failed();
        result
    }

    /// Runs an operation over the connections alone.
    fn flat(
        &mut self,
        signature: OperationSignature,
        operation: HostOperation<'_>,
    ) -> CollectiveResult {
        let result = self.world.carry_out(signature, operation);
        self.end_if_failed();
        result
    }

    /// Releases the ranks of this host, which may wait for this one in shared memory.
    fn end_if_failed(&mut self) {
        if let (Some(_), Some(local)) = (&self.world.engine.failure, &mut self.local) {
            local.close();
        }
    }

    /// Runs a part within this host. A rank that is alone there has nothing to do.
    pub(super) fn within(
        &mut self,
        phase: WaitPhase,
        signature: OperationSignature,
        part: HostOperation<'_>,
    ) -> PartResult {
        let Some(local) = &mut self.local else { return Ok(()) };
        local.set_operation_deadline(phase.deadline(self.deadline));
        local.run_part(signature, part).map_err(LevelFailure::Within)
    }

    /// Broadcasts the leader's data to its host's ranks.
    pub(super) fn broadcast_within(
        &mut self,
        signature: OperationSignature,
        data: &mut [u8],
        data_type: DataType,
    ) -> PartResult {
        self.within(WaitPhase::Back, signature, Operation::Broadcast { data, data_type, root: 0 })
    }

    /// Runs a part between the leaders.
    pub(super) fn between<F: Flow>(
        &mut self,
        operation: OperationSignature,
        flow: &mut F,
    ) -> PartResult {
        self.world.engine.operation_deadline = WaitPhase::Between.deadline(self.deadline);
        let result = self.world.engine.run_part(operation, flow);
        self.world.engine.operation_deadline = self.deadline;
        Ok(result?)
    }

    /// Translates an error among this host's ranks to the whole group.
    fn of_the_world(
        &mut self,
        operation: OperationSignature,
        error: CollectiveError,
    ) -> CollectiveError {
        let first = self.hosts.leader(self.hosts.own());
        let number = |header: Box<FrameHeader>| FrameHeader {
            sequence: self.world.engine.sequence,
            ..*header
        };
        match error {
            CollectiveError::Mismatch { rank, ours, theirs, .. } => {
                CollectiveError::mismatch(first + rank, number(ours), number(theirs))
            }
            CollectiveError::DeadlinePassed { waiting_for, details, .. } => {
                let ranks = waiting_for.into_iter().map(|rank| first + rank).collect();
                self.world.engine.deadline_passed(operation.kind, ranks, details.entered)
            }
            CollectiveError::PeerLost { rank, source } => {
                // A rank that gave up because of another one has said so over the connections.
                self.world.engine.explain(operation).unwrap_or_else(|| {
                    let source = match source {
                        PeerLoss::Reported { by } => PeerLoss::Reported { by: first + by },
                        source => source,
                    };
                    CollectiveError::PeerLost { rank: first + rank, source }
                })
            }
            CollectiveError::Protocol { rank, source } => {
                CollectiveError::Protocol { rank: first + rank, source }
            }
            error => error,
        }
    }
}

impl CpuBackend for HierarchicalCommunicator {
    fn membership(&self) -> GroupMembership {
        self.world.membership()
    }

    fn carry_out(
        &mut self,
        signature: OperationSignature,
        operation: HostOperation<'_>,
    ) -> CollectiveResult {
        match operation {
            Operation::AllReduce { data, data_type, op } => {
                self.all_reduce_over_hosts(signature, data, data_type, op)
            }
            Operation::GroupedAllReduce { buffers, op } => all_reduce_grouped(self, buffers, op),
            Operation::Reduce { data, data_type, op, root } => {
                if self.membership().rank == root {
                    return self.all_reduce_over_hosts(signature, data, data_type, op);
                }
                // The data of other ranks stays as it is.
                let mut words = std::mem::take(&mut self.copied);
                let copy = bytes(&mut words, data.len());
                copy.copy_from_slice(data);
                let result = self.all_reduce_over_hosts(signature, copy, data_type, op);
                self.copied = words;
                result
            }
            Operation::Broadcast { data, data_type, root } => self
                .run_over_hosts(signature, |group| {
                    group.broadcast_over_hosts(signature, data, data_type, root)
                }),
            Operation::AllGather { input, output, counts, data_type } => {
                let parts = PartRanges::new(counts, input.len(), data_type);
                self.run_over_hosts(signature, |group| {
                    group.all_gather_over_hosts(signature, input, output, &parts, data_type)
                })
            }
            Operation::Barrier => {
                self.run_over_hosts(signature, |group| group.barrier_over_hosts(signature))
            }
            // Each byte goes from one rank to one other: leaders would only pass it on.
            Operation::Gather { .. }
            | Operation::Scatter { .. }
            | Operation::ReduceScatter { .. }
            | Operation::AllToAll { .. }
            | Operation::Send { .. }
            | Operation::Recv { .. } => self.flat(signature, operation),
        }
    }

    fn ancestry(&self) -> Ancestry {
        self.world.ancestry()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
        self.world.engine.operation_deadline = deadline;
    }

    fn close(&mut self) {
        CpuBackend::close(&mut self.world);
        self.end_if_failed();
    }
}

impl HierarchicalCommunicator {
    fn all_reduce_over_hosts(
        &mut self,
        signature: OperationSignature,
        data: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> CollectiveResult {
        let (world, hosts) = (self.membership().world as usize, self.hosts.count());
        if data.len().saturating_mul(world) <= GATHERED {
            self.run_over_hosts(signature, |group| {
                group.reduce_gathered(signature, data, data_type, op)
            })
        } else if hosts <= SHORT_CHAIN || data.len() >= hosts * GATHERED {
            self.run_over_hosts(signature, |group| {
                group.reduce_chained(signature, data, data_type, op)
            })
        } else {
            self.flat(signature, Operation::AllReduce { data, data_type, op })
        }
    }

    fn all_gather_over_hosts(
        &mut self,
        signature: OperationSignature,
        input: &[u8],
        output: &mut [u8],
        parts: &PartRanges,
        data_type: DataType,
    ) -> PartResult {
        let hosts = self.hosts.clone();
        let of_host = |host: usize| {
            let ranks = hosts.ranks(host);
            parts.of(ranks.start).start..parts.of(ranks.end - 1).end
        };
        let own = of_host(hosts.own());
        if self.local.is_some() {
            let size = data_type.size_bytes();
            let local = hosts.ranks(hosts.own()).map(|rank| parts.of(rank).len() / size);
            let counts: Vec<usize> = local.collect();
            let (output, counts) = (&mut output[own.clone()], Some(&*counts));
            let gather = Operation::AllGather { input, output, counts, data_type };
            self.within(WaitPhase::Within, signature, gather)?;
        } else {
            output[own.clone()].copy_from_slice(input);
        }
        if self.leads() {
            let (hosts, places) = (&hosts, &of_host);
            let (data, streams) = (&mut *output, self.world.streams());
            self.between(signature, &mut Regions { data, hosts, places, streams })?;
        }
        let (before, rest) = output.split_at_mut(own.start);
        let after = &mut rest[own.len()..];
        for part in [before, after].into_iter().filter(|part| !part.is_empty()) {
            // This host's ranks move one whole buffer here, whatever the lengths of the ranks' parts.
            let (kind, bytes) = (OperationKind::Broadcast, part.len() as u64);
            let whole = OperationSignature { kind, bytes, ..signature };
            self.broadcast_within(whole, part, data_type)?;
        }
        Ok(())
    }

    fn broadcast_over_hosts(
        &mut self,
        signature: OperationSignature,
        data: &mut [u8],
        data_type: DataType,
        root: u32,
    ) -> PartResult {
        let (own, at) = (self.hosts.own(), self.hosts.of(root));
        let count = self.hosts.count();
        // The chain goes around the hosts from the root's on.
        let place = (own + count - at) % count;
        let before = (place > 0).then(|| self.hosts.leader((own + count - 1) % count));
        let after = (place + 1 < count).then(|| self.hosts.leader((own + 1) % count));
        let small = data.len() <= SMALL;
        let mut rest = data;
        // The loop runs at least once, so that all ranks meet.
        loop {
            let length = rest.len().min(BROADCAST_PIECE);
            let (piece, later) = rest.split_at_mut(length);
            if own == at {
                let root = root - self.hosts.leader(at);
                let broadcast = Operation::Broadcast { data: &mut *piece, data_type, root };
                self.within(WaitPhase::Within, signature, broadcast)?;
            }
            if self.leads() && small {
                self.broadcast_small(signature, piece, at)?;
            } else if self.leads() {
                let streams = self.world.streams();
                self.between(signature, &mut Chain::linked(piece, before, after, streams))?;
            }
            if own != at {
                self.broadcast_within(signature, piece, data_type)?;
            }
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    /// Broadcasts a small message from the leader of host `at` to all other leaders at once.
    fn broadcast_small(
        &mut self,
        signature: OperationSignature,
        data: &mut [u8],
        at: usize,
    ) -> PartResult {
        let (hosts, length) = (self.hosts.clone(), data.len());
        if hosts.own() == at {
            let to = |rank: u32| hosts.led_by(rank).map(|_| 0..length);
            let from = |_| None;
            let (input, output, streams) = (data, &mut [], 1);
            self.between(signature, &mut Exchange { input, output, to, from, streams })
        } else {
            let from = |rank: u32| (rank == hosts.leader(at)).then_some(0..length);
            let to = |_| None;
            let (input, output, streams) = (&[], data, 1);
            self.between(signature, &mut Exchange { input, output, to, from, streams })
        }
    }

    fn barrier_over_hosts(&mut self, signature: OperationSignature) -> PartResult {
        self.within(WaitPhase::Within, signature, Operation::Barrier)?;
        if self.leads() {
            let hosts = self.hosts.clone();
            let leader = |rank: u32| hosts.led_by(rank).map(|_| 0..0);
            let (input, output) = (&[], &mut []);
            let (to, from, streams) = (leader, leader, 1);
            self.between(signature, &mut Exchange { input, output, to, from, streams })?;
        }
        self.within(WaitPhase::Back, signature, Operation::Barrier)
    }
}
