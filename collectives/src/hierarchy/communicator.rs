//! The operations over two levels, and what their errors mean for the whole group.

use std::fmt;
use std::time::Duration;

use ring::rand::SystemRandom;

use super::chain::{Messages, Round, Schedule, piece_length};
use super::hosts::Hosts;
use crate::abort::AbortHandle;
use crate::backend::{Backend, Done, Membership, Places, Reduction};
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::{CollectiveError, FormError, PeerLoss};
use crate::reduce::{ReduceOp, accumulates_wide, divide, fold_ranks, narrow, widen};
use crate::shm::ShmCommunicator;
use crate::split::Ancestry;
use crate::tcp::{
    Chain, DOUBLING_RANKS, Doubling, Exchange, Flow, Incoming, Lane, Outgoing, SMALL,
    TcpCommunicator, TcpFabric, grace, stream_count, stripe,
};
use crate::wire::{FrameHeader, Operation};

/// Contributions of all ranks together, in bytes, up to which leaders exchange them instead of partial sums: one
/// message instead of one for each host of the chain.
const GATHERED: usize = 64 * 1024;
/// Hosts up to which middling reductions go down the chain; with more of them its length costs more than it saves.
const SHORT_CHAIN: usize = 4;
/// What a broadcast hands on at a time, in bytes.
const BROADCAST_PIECE: usize = 1024 * 1024;
/// The part of a generation that a host's ranks form.
const LOCAL_PART: u32 = 1;

/// The group of one generation over several hosts. [`crate::HostFabric::form`] makes it.
pub struct HierarchicalCommunicator {
    world: TcpCommunicator,
    /// The ranks of this host; none where this rank is alone there.
    local: Option<ShmCommunicator>,
    hosts: Hosts,
    deadline: Duration,
    /// Memory for what comes from other hosts, in words so that any element is aligned.
    scratch: Vec<u64>,
    /// Where 16-bit floats accumulate.
    wide: Vec<f32>,
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

/// Lets the ranks of each host share memory, beside the connections of `world`; where that would not help, or one of
/// them cannot, all go over the connections alone. `deadline` is what is left for it.
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
    let mut local = None;
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
            // Whoever is lost meanwhile is missed by the world's connections too.
            let shared =
                tcp.agree(deadline, |tcp| ShmCommunicator::share(tcp, &SystemRandom::new()));
            match shared {
                Ok(Some(segment)) => local = Some(ShmCommunicator::new(tcp, segment)),
                Ok(None) | Err(_) => ready = false,
            }
        }
    }
    let mut all_ready = [u8::from(ready)];
    let agreed = world.agree(deadline, |world| {
        world.all_reduce_bytes(&mut all_ready, DataType::U8, ReduceOp::Min)
    });
    if agreed.is_err() || all_ready == [0] {
        // Where the world has failed, it says so at the first operation.
        return Ok(Box::new(world));
    }
    let deadline = group.operation_deadline;
    let (scratch, wide) = (Vec::new(), Vec::new());
    let hierarchy = HierarchicalCommunicator { world, local, hosts, deadline, scratch, wide };
    Ok(Box::new(hierarchy))
}

/// How far an operation is: each wait may take a little longer than the one that others are in meanwhile, so that
/// who is missed is named by those who miss it, and not the leader who waits for it too.
#[derive(Clone, Copy)]
enum Phase {
    Within,
    Between,
    Back,
}

impl Phase {
    fn deadline(self, operation: Duration) -> Duration {
        let grace = grace(operation);
        match self {
            Phase::Within => operation,
            Phase::Between => operation + grace,
            Phase::Back => operation + 2 * grace,
        }
    }
}

/// Regions of one buffer: each leader sends its host's and receives the others'.
struct Regions<'a> {
    data: &'a mut [u8],
    hosts: &'a Hosts,
    places: &'a dyn Fn(usize) -> std::ops::Range<usize>,
    streams: u32,
}

impl Regions<'_> {
    /// The part of a host's region that goes over a stream, if one does.
    fn part(&self, host: usize, stream: u32) -> Option<std::ops::Range<usize>> {
        let region = (self.places)(host);
        let count = stream_count(region.len(), self.streams);
        (stream < count).then(|| stripe(region, stream, count, 1))
    }
}

impl Flow for Regions<'_> {
    fn streams(&self) -> u32 {
        self.streams
    }

    fn sends_to(&self, lane: Lane) -> bool {
        let leads = self.hosts.led_by(lane.rank).is_some();
        leads && self.part(self.hosts.own(), lane.stream).is_some()
    }

    fn receives_from(&self, lane: Lane) -> bool {
        let host = self.hosts.led_by(lane.rank);
        host.is_some_and(|host| self.part(host, lane.stream).is_some())
    }

    fn outgoing(&self, lane: Lane, moved: usize) -> Outgoing<'_> {
        match self.part(self.hosts.own(), lane.stream) {
            Some(part) if moved < part.len() => {
                Outgoing::Ready(&self.data[part.start + moved..part.end])
            }
            _ => Outgoing::Done,
        }
    }

    fn incoming(&mut self, lane: Lane, moved: usize) -> Incoming<'_> {
        match self.part(self.hosts.of(lane.rank), lane.stream) {
            Some(part) if moved < part.len() => {
                Incoming::Ready(&mut self.data[part.start + moved..part.end])
            }
            _ => Incoming::Done,
        }
    }

    fn length_to(&self, lane: Lane) -> u64 {
        self.part(self.hosts.own(), lane.stream).map_or(0, |part| part.len() as u64)
    }

    fn announced_to(&self, _rank: u32) -> u64 {
        (self.places)(self.hosts.own()).len() as u64
    }

    fn announced_from(&self, rank: u32) -> u64 {
        (self.places)(self.hosts.of(rank)).len() as u64
    }
}

fn bytes(words: &mut Vec<u64>, length: usize) -> &mut [u8] {
    let count = length.div_ceil(size_of::<u64>());
    if words.len() < count {
        words.resize(count, 0);
    }
    &mut bytemuck::cast_slice_mut(words)[..length]
}

/// Where an operation failed, and so whose ranks its error names.
enum Fault {
    Within(CollectiveError),
    Between(CollectiveError),
}

impl From<CollectiveError> for Fault {
    fn from(error: CollectiveError) -> Fault {
        Fault::Between(error)
    }
}

type Part = Result<(), Fault>;

impl HierarchicalCommunicator {
    fn leads(&self) -> bool {
        self.hosts.leader(self.hosts.own()) == self.world.engine.rank
    }

    /// One operation, in parts that all ranks of a host go through together.
    fn run(&mut self, operation: Operation, body: impl FnOnce(&mut Self) -> Part) -> Done {
        self.world.engine.usable()?;
        let entered = self.world.engine.check_abort().map_err(Fault::Between);
        let result = entered.and_then(|()| body(self)).map_err(|fault| match fault {
            Fault::Between(error) => error,
            Fault::Within(error) => self.of_the_world(operation, error),
        });
        // The connections tell why before this host's ranks are told that it is over.
        let result = self.world.engine.conclude(operation.kind, result);
        self.end_if_failed();
        result
    }

    /// An operation over the connections alone.
    fn flat(&mut self, body: impl FnOnce(&mut TcpCommunicator) -> Done) -> Done {
        let result = body(&mut self.world);
        self.end_if_failed();
        result
    }

    /// Lets the ranks of this host go, which may wait for this one in shared memory.
    fn end_if_failed(&mut self) {
        if let (Some(_), Some(local)) = (&self.world.engine.failure, &mut self.local) {
            Backend::close(local);
        }
    }

    /// A part within this host. A rank that is alone there has nothing to do.
    fn within(&mut self, phase: Phase, body: impl FnOnce(&mut ShmCommunicator) -> Done) -> Part {
        let Some(local) = &mut self.local else { return Ok(()) };
        Backend::set_operation_deadline(local, phase.deadline(self.deadline));
        body(local).map_err(Fault::Within)
    }

    /// A part between the leaders.
    fn between<F: Flow>(&mut self, operation: Operation, flow: &mut F) -> Part {
        self.world.engine.operation_deadline = Phase::Between.deadline(self.deadline);
        let result = self.world.engine.run_part(operation, flow);
        self.world.engine.operation_deadline = self.deadline;
        Ok(result?)
    }

    /// What an error among this host's ranks means for the whole group.
    fn of_the_world(&mut self, operation: Operation, error: CollectiveError) -> CollectiveError {
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
                // Who gave up for another's sake has said so over the connections.
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

    /// All leaders get all contributions, and fold them.
    fn reduce_gathered(
        &mut self,
        operation: Operation,
        data: &mut [u8],
        Reduction { data_type, op }: Reduction,
    ) -> Part {
        let Membership { world, .. } = self.membership();
        let length = data.len();
        let mut scratch = std::mem::take(&mut self.scratch);
        let gathered = bytes(&mut scratch, length * world as usize);
        // This host's contributions stand first, then those of the hosts behind it, and around the world.
        let first = self.hosts.leader(self.hosts.own());
        let place = |rank: u32| {
            let at = (rank + world - first) % world;
            at as usize * length..(at as usize + 1) * length
        };
        let own = 0..self.hosts.ranks(self.hosts.own()).len() * length;
        let result = (|| {
            if self.local.is_some() {
                let (input, output) = (&*data, &mut gathered[own]);
                self.within(Phase::Within, |local| {
                    local.all_gather(operation, input, output, &Places::Equal(length))
                })?;
            } else {
                gathered[own].copy_from_slice(data);
            }
            if self.leads() {
                self.gather_between(operation, gathered, length)?;
                data.copy_from_slice(&gathered[place(0)]);
                fold_ranks(data_type, op, data, 0, world, |rank| &gathered[place(rank)]);
            }
            self.within(Phase::Back, |local| local.broadcast(operation, data, 0))
        })();
        self.scratch = scratch;
        result
    }

    /// All leaders get the contributions of all hosts, `length` bytes a rank, in the order of hosts from the own one on.
    fn gather_between(&mut self, operation: Operation, gathered: &mut [u8], length: usize) -> Part {
        let hosts = self.hosts.clone();
        let (own, count) = (hosts.own(), hosts.count());
        let mut starts = vec![0];
        for behind in 0..count {
            let ranks = hosts.ranks((own + behind) % count).len();
            starts.push(starts[behind] + ranks * length);
        }
        if count >= DOUBLING_RANKS && length > 0 {
            let leaders: Vec<u32> = (0..count).map(|host| hosts.leader(host)).collect();
            let mut flow = Doubling::new(gathered, &starts, &leaders, own);
            return self.between(operation, &mut flow);
        }
        let places = |host: usize| {
            let behind = (host + count - own) % count;
            starts[behind]..starts[behind + 1]
        };
        let (hosts, places) = (&hosts, &places);
        let streams = self.world.streams();
        self.between(operation, &mut Regions { data: gathered, hosts, places, streams })
    }

    /// Partial sums go down the chain of hosts: see [`super::chain`].
    fn reduce_chained(
        &mut self,
        operation: Operation,
        data: &mut [u8],
        reduction: Reduction,
    ) -> Part {
        let piece = piece_length(data.len());
        let schedule = Schedule {
            host: self.hosts.own(),
            hosts: self.hosts.count(),
            pieces: data.len().div_ceil(piece),
        };
        let (mut scratch, mut wide) =
            (std::mem::take(&mut self.scratch), std::mem::take(&mut self.wide));
        let mut chain = Chained { operation, reduction, piece, length: data.len(), data };
        let result = (0..schedule.rounds())
            .try_for_each(|round| chain.round(self, schedule, round, &mut scratch, &mut wide));
        (self.scratch, self.wide) = (scratch, wide);
        result
    }

    fn neighbour(&self, host: Option<usize>) -> Option<u32> {
        host.filter(|host| *host < self.hosts.count()).map(|host| self.hosts.leader(host))
    }
}

/// A reduction down the chain.
struct Chained<'a> {
    operation: Operation,
    reduction: Reduction,
    piece: usize,
    length: usize,
    data: &'a mut [u8],
}

impl Chained<'_> {
    fn within(&self, piece: usize) -> std::ops::Range<usize> {
        piece * self.piece..((piece + 1) * self.piece).min(self.length)
    }

    /// The length of a partial sum on its way, in bytes.
    fn partial(&self, piece: usize) -> usize {
        let length = self.within(piece).len();
        if accumulates_wide(self.reduction.data_type) { 2 * length } else { length }
    }

    fn round(
        &mut self,
        group: &mut HierarchicalCommunicator,
        schedule: Schedule,
        round: usize,
        carry: &mut Vec<u64>,
        wide: &mut Vec<f32>,
    ) -> Part {
        let Round { fold, carry: carried, result, back } = schedule.round(round);
        let (host, last) = (schedule.host, schedule.host == schedule.hosts - 1);
        if let Some(piece) = fold {
            let carry = bytes(carry, self.partial(piece));
            self.fold(group, piece, carry, wide, last)?;
        }
        if group.leads() {
            let forward = fold.filter(|_| !last);
            let widened = accumulates_wide(self.reduction.data_type);
            let partial = forward
                .filter(|_| widened)
                .map(|piece| &bytemuck::cast_slice::<f32, u8>(wide)[..self.partial(piece)]);
            let carried = carried.map(|piece| self.partial(piece));
            let mut messages = Messages {
                partial,
                carry: bytes(carry, carried.unwrap_or(0)),
                previous: group.neighbour(host.checked_sub(1)),
                next: group.neighbour(Some(host + 1)),
                forward: forward.map(|piece| self.within(piece)),
                back: back.map(|piece| self.within(piece)),
                carried,
                result: result.map(|piece| self.within(piece)),
                data: self.data,
                streams: group.world.streams(),
            };
            group.between(self.operation, &mut messages)?;
        }
        if let Some(piece) = result {
            let (operation, within) = (self.operation, self.within(piece));
            let data = &mut self.data[within];
            group.within(Phase::Back, |local| local.broadcast(operation, data, 0))?;
        }
        Ok(())
    }

    /// Folds what came from the hosts before with the contributions of this one, in the order of ranks.
    fn fold(
        &mut self,
        group: &mut HierarchicalCommunicator,
        piece: usize,
        carry: &[u8],
        wide: &mut Vec<f32>,
        last: bool,
    ) -> Part {
        let Reduction { data_type, op } = self.reduction;
        let (operation, within) = (self.operation, self.within(piece));
        let carry = (group.leads() && group.hosts.own() > 0).then_some(carry);
        let data = &mut self.data[within];
        if !accumulates_wide(data_type) {
            return fold(group, operation, data, data_type, op, carry, last);
        }
        wide.resize(wide.len().max(data.len() / data_type.size_bytes()), 0.0);
        let wide = &mut wide[..data.len() / data_type.size_bytes()];
        widen(data_type, data, wide);
        let sums = bytemuck::cast_slice_mut(wide);
        fold(group, operation, sums, DataType::F32, op, carry, last)?;
        if last {
            narrow(data_type, wide, data);
        }
        Ok(())
    }
}

fn fold(
    group: &mut HierarchicalCommunicator,
    operation: Operation,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
    carry: Option<&[u8]>,
    last: bool,
) -> Part {
    let world = group.membership().world;
    // The quotient is of the sum of all, and so for the last host to take.
    let partial = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
    if let Some(carry) = carry {
        fold_ranks(data_type, partial, data, 1, 2, |_| carry);
    }
    let reduction = Reduction { data_type, op: partial };
    // The leader waits for its host's ranks alone, and they for it, which may wait for other hosts.
    let phase = if group.leads() { Phase::Within } else { Phase::Back };
    group.within(phase, |local| local.all_reduce(operation, data, reduction))?;
    if last && op == ReduceOp::Mean {
        divide(data_type, data, world);
    }
    Ok(())
}

impl Backend for HierarchicalCommunicator {
    fn membership(&self) -> Membership {
        self.world.membership()
    }

    fn all_reduce(&mut self, operation: Operation, data: &mut [u8], reduction: Reduction) -> Done {
        let (world, hosts) = (self.membership().world as usize, self.hosts.count());
        if data.len().saturating_mul(world) <= GATHERED {
            self.run(operation, |group| group.reduce_gathered(operation, data, reduction))
        } else if hosts <= SHORT_CHAIN || data.len() >= hosts * GATHERED {
            self.run(operation, |group| group.reduce_chained(operation, data, reduction))
        } else {
            self.flat(|world| world.all_reduce(operation, data, reduction))
        }
    }

    fn all_gather(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        places: &Places,
    ) -> Done {
        self.run(operation, |group| {
            let ranks = group.hosts.ranks(group.hosts.own());
            let hosts = group.hosts.clone();
            let of_host = |host: usize| {
                let ranks = hosts.ranks(host);
                places.of(ranks.start).start..places.of(ranks.end - 1).end
            };
            let own = of_host(hosts.own());
            let local = ranks.map(|rank| {
                let place = places.of(rank);
                place.start - own.start..place.end - own.start
            });
            let local = Places::Listed(local.collect());
            if group.local.is_some() {
                let output = &mut output[own.clone()];
                group.within(Phase::Within, |group| {
                    group.all_gather(operation, input, output, &local)
                })?;
            } else {
                output[own.clone()].copy_from_slice(input);
            }
            if group.leads() {
                let (hosts, places) = (&hosts, &of_host);
                let (data, streams) = (&mut *output, group.world.streams());
                group.between(operation, &mut Regions { data, hosts, places, streams })?;
            }
            let (before, rest) = output.split_at_mut(own.start);
            let after = &mut rest[own.len()..];
            for part in [before, after].into_iter().filter(|part| !part.is_empty()) {
                group.within(Phase::Back, |local| {
                    let operation = Operation { bytes: part.len() as u64, ..whole(operation) };
                    local.broadcast(operation, part, 0)
                })?;
            }
            Ok(())
        })
    }

    fn reduce_scatter(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        reduction: Reduction,
    ) -> Done {
        self.flat(|world| world.reduce_scatter(operation, input, output, reduction))
    }

    fn broadcast(&mut self, operation: Operation, data: &mut [u8], root: u32) -> Done {
        self.run(operation, |group| {
            let (own, at) = (group.hosts.own(), group.hosts.of(root));
            let count = group.hosts.count();
            // Around the hosts from the root's on.
            let place = (own + count - at) % count;
            let before = (place > 0).then(|| group.hosts.leader((own + count - 1) % count));
            let after = (place + 1 < count).then(|| group.hosts.leader((own + 1) % count));
            let small = data.len() <= SMALL;
            let mut rest = data;
            // At least once, so that all ranks meet.
            loop {
                let length = rest.len().min(BROADCAST_PIECE);
                let (piece, later) = rest.split_at_mut(length);
                let local_root = if own == at { root - group.hosts.leader(at) } else { 0 };
                if own == at {
                    group.within(Phase::Within, |local| {
                        local.broadcast(operation, piece, local_root)
                    })?;
                }
                if group.leads() && small {
                    group.broadcast_small(operation, piece, at)?;
                } else if group.leads() {
                    let streams = group.world.streams();
                    group.between(operation, &mut Chain::linked(piece, before, after, streams))?;
                }
                if own != at {
                    group.within(Phase::Back, |local| local.broadcast(operation, piece, 0))?;
                }
                if later.is_empty() {
                    return Ok(());
                }
                rest = later;
            }
        })
    }

    fn all_to_all(
        &mut self,
        operation: Operation,
        input: &[u8],
        sent: &Places,
        output: &mut [u8],
        received: &Places,
    ) -> Done {
        self.flat(|world| world.all_to_all(operation, input, sent, output, received))
    }

    fn barrier(&mut self, operation: Operation) -> Done {
        self.run(operation, |group| {
            group.within(Phase::Within, |local| Backend::barrier(local, operation))?;
            if group.leads() {
                let hosts = group.hosts.clone();
                let leader = |rank: u32| hosts.led_by(rank).map(|_| 0..0);
                let (input, output) = (&[], &mut []);
                let (to, from, streams) = (leader, leader, 1);
                let mut flow = Exchange { input, output, to, from, streams };
                group.between(operation, &mut flow)?;
            }
            group.within(Phase::Back, |local| Backend::barrier(local, operation))
        })
    }

    fn send(&mut self, operation: Operation, data: &[u8], to: u32) -> Done {
        self.flat(|world| world.send(operation, data, to))
    }

    fn receive(&mut self, operation: Operation, data: &mut [u8], from: u32) -> Done {
        self.flat(|world| world.receive(operation, data, from))
    }

    fn ancestry(&self) -> Ancestry {
        self.world.ancestry()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
        self.world.engine.operation_deadline = deadline;
    }

    fn close(&mut self) {
        Backend::close(&mut self.world);
        self.end_if_failed();
    }
}

impl HierarchicalCommunicator {
    /// From the leader of host `at` to all others at once.
    fn broadcast_small(&mut self, operation: Operation, data: &mut [u8], at: usize) -> Part {
        let (hosts, length) = (self.hosts.clone(), data.len());
        if hosts.own() == at {
            let to = |rank: u32| hosts.led_by(rank).map(|_| 0..length);
            let from = |_| None;
            self.between(
                operation,
                &mut Exchange { input: data, output: &mut [], to, from, streams: 1 },
            )
        } else {
            let from = |rank: u32| (rank == hosts.leader(at)).then_some(0..length);
            let to = |_| None;
            self.between(
                operation,
                &mut Exchange { input: &[], output: data, to, from, streams: 1 },
            )
        }
    }
}

/// An operation in which this host's ranks move one buffer, whatever the lengths of the ranks' parts are.
fn whole(operation: Operation) -> Operation {
    Operation { kind: crate::wire::OperationKind::Broadcast, ..operation }
}
