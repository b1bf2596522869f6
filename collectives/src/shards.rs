//! Reduction by logical shard: the fold goes over a fixed tree of the job's shards and never over ranks, so that a
//! world of three gives the bits of a world of seven. Called by `CommunicatorExt::all_reduce_shards` and by callers
//! that fold a rank's shards one after the other.
//!
//! The tree is that of RFC 6962: the left part of a node over n shards has the largest power of two below n. Its nodes
//! do not depend on the world, so a rank combines the shards of a node that is whole on it before anything is sent: a
//! rank moves at most `2 log2 N` partial results, and a single one where the world divides the shards into nodes.

use std::borrow::Cow;
use std::ops::Range;

use crate::check;
use crate::communicator::Communicator;
use crate::element::{DataType, Element};
use crate::error::CollectiveError;
use crate::operation::HostOperation;
use crate::reduce::{ReduceOp, divide, fold_ranks};
use crate::wire::{Composition, OperationKind, OperationSignature};

const KIND: OperationKind = OperationKind::AllReduce;
/// Approximate memory of one piece of all partial results together, in bytes.
const PIECE: usize = 4 << 20;

/// The dealing of a job's logical shards to ranks: each rank has neighbouring shards, and a lower rank has lower ones.
/// This is the only place that decides which rank carries which shards. The driver says how many each carries where some
/// are slower than others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShardDeal {
    /// The first shard of each rank, and the number of shards at the end.
    starts: Vec<u32>,
}

impl ShardDeal {
    /// Deals evenly: a lower rank has at most one shard more than a higher one. Ranks beyond the number of shards have
    /// none.
    pub fn even(shards: u32, world: u32) -> Self {
        let starts = (0..world).map(|rank| even_part(shards, rank, world).start);
        Self { starts: starts.chain([shards]).collect() }
    }

    /// The deal of a job: by the driver's number of shards for each rank, or evenly where it gave none for these shards and
    /// this world.
    pub fn of_job(shards: u32, world: u32, counts: &[u32]) -> Self {
        let mut starts = vec![0];
        let mut end = 0_u32;
        for count in counts {
            end = end.saturating_add(*count);
            starts.push(end);
        }
        let fits = counts.len() == world as usize && end == shards && !counts.contains(&0);
        if fits { Self { starts } } else { Self::even(shards, world) }
    }

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        self.starts.last().copied().unwrap_or_default()
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.starts.len().saturating_sub(1) as u32
    }

    /// The shards of a rank. None for a rank outside of the world.
    pub fn of(&self, rank: u32) -> Range<u32> {
        let at = rank as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(start), Some(end)) => *start..*end,
            _ => 0..0,
        }
    }

    /// The nodes of the tree that a rank combines by itself, in order: the largest that lie in its shards.
    pub fn nodes_of(&self, rank: u32) -> Vec<Range<u32>> {
        nodes(self.shards(), self.of(rank))
    }

    /// Bytes that a rank sends and receives in one reduction of `bytes`: its partial results to the ranks that fold
    /// them, and the folded parts to all.
    pub fn bytes_moved(&self, rank: u32, bytes: u64) -> u64 {
        let world = u64::from(self.world());
        if world < 2 {
            return 0;
        }
        let (own, all) = (self.nodes_of(rank).len() as u64, (0..world as u32));
        let others = all.map(|other| self.nodes_of(other).len() as u64).sum::<u64>() - own;
        let part = bytes / world;
        part * ((world - 1) * own + others + 2 * (world - 1))
    }
}

/// Part `part` of `total` things that are dealt evenly to `parts`.
fn even_part(total: u32, part: u32, parts: u32) -> Range<u32> {
    let (each, rest) = (total / parts, total % parts);
    let start = part * each + part.min(rest);
    start..start + each + u32::from(part < rest)
}

/// The largest nodes of the tree over `total` shards that lie in `range`, in order.
fn nodes(total: u32, range: Range<u32>) -> Vec<Range<u32>> {
    let mut found: Vec<Range<u32>> = Vec::new();
    for shard in range {
        push(
            &mut found,
            shard..shard + 1,
            |pair| are_siblings(total, pair),
            |left, right| left.start..right.end,
        );
    }
    found
}

/// Whether two nodes beside each other are the two parts of a node of the tree over `total` shards.
pub fn are_siblings(total: u32, (left, right): (&Range<u32>, &Range<u32>)) -> bool {
    let (size, whole) =
        (left.end - left.start, u64::from(left.start) + 2 * u64::from(left.end - left.start));
    size.is_power_of_two()
        && left.start.is_multiple_of(size * 2)
        && left.end == right.start
        && u64::from(right.end) == whole.min(u64::from(total))
}

/// Puts a node behind others, and combines those at the end as long as they are siblings.
fn push<N>(
    nodes: &mut Vec<N>,
    node: N,
    are_siblings: impl Fn((&N, &N)) -> bool,
    mut combine: impl FnMut(N, N) -> N,
) {
    let mut last = node;
    while let Some(before) = nodes.pop_if(|before| are_siblings((before, &last))) {
        last = combine(before, last);
    }
    nodes.push(last);
}

/// The partial results of one rank's shards, which come one after the other. Each is combined with those before it as
/// soon as a node of the tree is whole, so memory is at most `2 log2 N` partial results.
///
/// 16-bit floats are rounded at each node.
#[derive(Clone, Debug)]
pub struct ShardFold<'a, E: Element> {
    total: u32,
    range: Range<u32>,
    next: u32,
    op: ReduceOp,
    nodes: Vec<(Range<u32>, Cow<'a, [E]>)>,
}

impl<'a, E: Element> ShardFold<'a, E> {
    /// Begins the fold of the shards of `rank`.
    pub fn new(deal: &ShardDeal, rank: u32, op: ReduceOp) -> Self {
        let range = deal.of(rank);
        Self { total: deal.shards(), next: range.start, range, op, nodes: Vec::new() }
    }

    /// Adds the contribution of the next shard.
    ///
    /// # Errors
    /// The rank has no shard left, or the length differs from that of the shard before.
    pub fn add(&mut self, contribution: impl Into<Cow<'a, [E]>>) -> Result<(), CollectiveError> {
        let contribution = contribution.into();
        let (total, op) = (self.total, self.op);
        if self.next >= self.range.end {
            let range = &self.range;
            let reason = format!("all shards of this rank are given already: {range:?}");
            return Err(check::invalid(KIND, reason));
        }
        if let Some((_, before)) = self.nodes.last() {
            check::length(KIND, "shard", size_of_val(&*contribution), size_of_val(&**before))?;
        }
        let node = (self.next..self.next + 1, contribution);
        self.next += 1;
        let are_siblings = |((left, _), (right, _)): (&_, &_)| are_siblings(total, (left, right));
        push(&mut self.nodes, node, are_siblings, |(left, mut sum), (right, other)| {
            let into = bytemuck::cast_slice_mut(sum.to_mut());
            combine(E::DATA_TYPE, op, into, bytemuck::cast_slice(&other));
            (left.start..right.end, sum)
        });
        Ok(())
    }

    /// The partial results so far: of the nodes of [`ShardDeal::nodes_of`], once all shards are added.
    pub fn partial(&self) -> impl Iterator<Item = &[E]> {
        self.nodes.iter().map(|(_, sum)| &**sum)
    }

    /// Reduces the partial results of all ranks into `output`, which every rank then has alike.
    ///
    /// # Errors
    /// Shards of this rank are missing; or any [`CollectiveError`].
    pub fn all_reduce<C: Communicator + ?Sized>(
        &self,
        group: &mut C,
        deal: &ShardDeal,
        output: &mut [E],
    ) -> Result<(), CollectiveError> {
        let lengths = [size_of_val(&*output)];
        self.all_reduce_of(group, deal, output, lengths.into_iter())
    }

    /// As [`ShardFold::all_reduce`], of an output that is made of buffers of these lengths, in bytes.
    fn all_reduce_of<C: Communicator + ?Sized>(
        &self,
        group: &mut C,
        deal: &ShardDeal,
        output: &mut [E],
        lengths: impl Iterator<Item = usize>,
    ) -> Result<(), CollectiveError> {
        if self.next != self.range.end {
            let (given, due) = (self.next - self.range.start, &self.range);
            let reason = format!("{given} shards are given, {} are due: {due:?}", due.len());
            return Err(check::invalid(KIND, reason));
        }
        let nodes: Vec<&[u8]> =
            self.nodes.iter().map(|(_, sum)| bytemuck::cast_slice(sum)).collect();
        let output = bytemuck::cast_slice_mut(output);
        let composition = Composition::of_shards(&deal.starts, lengths);
        all_reduce_nodes(group, deal, composition, &nodes, output, E::DATA_TYPE, self.op)
    }
}

/// `left` = `left` op `right`, where a mean is still a sum.
fn combine(data_type: DataType, op: ReduceOp, left: &mut [u8], right: &[u8]) {
    let op = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
    fold_ranks(data_type, op, left, 0, 2, &|_| right);
}

/// Reduces partial results into `output`: this rank gives those of [`ShardDeal::nodes_of`], in order.
///
/// # Errors
/// Any [`CollectiveError`].
fn all_reduce_nodes<C: Communicator + ?Sized>(
    group: &mut C,
    deal: &ShardDeal,
    composition: Composition,
    partial: &[&[u8]],
    output: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    check::buffer(KIND, &&*output, data_type)?;
    check::reduction(KIND, data_type, op)?;
    if deal.shards() == 0 {
        return Err(check::invalid(KIND, "there are no shards to reduce".to_owned()));
    }
    let due = deal.nodes_of(group.rank());
    if partial.len() != due.len() {
        let reason = format!("{} partial results are given, {} are due", partial.len(), due.len());
        return Err(check::invalid(KIND, reason));
    }
    for node in partial {
        check::buffer(KIND, node, data_type)?;
        check::length(KIND, "shard", node.len(), output.len())?;
    }
    let nodes: Vec<Vec<Range<u32>>> =
        (0..group.world_size()).map(|rank| deal.nodes_of(rank)).collect();
    let moved: usize = nodes.iter().map(Vec::len).sum();
    let size = data_type.size_bytes();
    let piece = (PIECE / moved / size).max(1) * size;
    let mut scratch = Scratch::default();
    let mut start = 0;
    // The loop runs at least once, so that all ranks meet.
    loop {
        let end = (start + piece).min(output.len());
        let within: Vec<&[u8]> = partial.iter().map(|node| &node[start..end]).collect();
        let into = &mut output[start..end];
        scratch.reduce(group, &nodes, composition, &within, into, data_type, op)?;
        start = end;
        if start == output.len() {
            return Ok(());
        }
    }
}

/// Scratch memory, reused for each piece; in words, so that any element is aligned.
#[derive(Default)]
struct Scratch {
    sent: Vec<u64>,
    received: Vec<u64>,
    folded: Vec<u64>,
}

fn bytes(words: &mut Vec<u64>, length: usize) -> &mut [u8] {
    words.resize(length.div_ceil(size_of::<u64>()), 0);
    &mut bytemuck::cast_slice_mut(words)[..length]
}

impl Scratch {
    /// Reduces one piece: each rank receives one slice of every partial result, folds it, and gives the result to all.
    #[expect(clippy::too_many_arguments, reason = "the plan of a reduction and its memory")]
    fn reduce<C: Communicator + ?Sized>(
        &mut self,
        group: &mut C,
        nodes: &[Vec<Range<u32>>],
        composition: Composition,
        partial: &[&[u8]],
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let (rank, world) = (group.rank(), group.world_size());
        let size = data_type.size_bytes();
        let elements = (output.len() / size) as u32;
        let slice = |of: u32| {
            let slice = even_part(elements, of, world);
            slice.start as usize * size..slice.end as usize * size
        };
        let slices: Vec<usize> = (0..world).map(|of| slice(of).len() / size).collect();
        let sent = bytes(&mut self.sent, partial.len() * output.len());
        let mut end = 0;
        for other in 0..world {
            for node in partial {
                let part = &node[slice(other)];
                sent[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
        }
        let own = slice(rank).len();
        let moved: usize = nodes.iter().map(Vec::len).sum();
        let received = bytes(&mut self.received, moved * own);
        let to: Vec<usize> = slices.iter().map(|length| length * partial.len()).collect();
        let from: Vec<usize> = nodes.iter().map(|nodes| nodes.len() * own / size).collect();
        let exchange = HostOperation::AllToAll {
            input: sent,
            output: received,
            counts: Some((&to, &from)),
            data_type,
        };
        let compared = Compared { composition, op, bytes: output.len() };
        compared.run(group, exchange)?;
        let folded = bytes(&mut self.folded, own);
        fold_nodes(
            nodes.iter().flatten().cloned(),
            composition.shards,
            received,
            own,
            data_type,
            op,
        );
        folded.copy_from_slice(&received[..own]);
        let counts = Some(&*slices);
        compared.run(group, HostOperation::AllGather { input: folded, output, counts, data_type })
    }
}

/// The part of a reduction by shard that ranks compare beside the operations that carry it out.
#[derive(Clone, Copy)]
struct Compared {
    composition: Composition,
    op: ReduceOp,
    /// The length of a piece of the output.
    bytes: usize,
}

impl Compared {
    fn run<C: Communicator + ?Sized>(
        self,
        group: &mut C,
        part: HostOperation<'_>,
    ) -> Result<(), CollectiveError> {
        let signature = part.check(group.rank(), group.world_size())?;
        let signature = OperationSignature {
            reduce_op: Some(self.op),
            bytes: self.bytes as u64,
            composition: Some(self.composition),
            ..signature
        };
        group.run_part(signature, part)
    }
}

/// Folds partial results over the tree of `total` shards: those of the nodes `order`, which stand one after the other in
/// `received` with `length` bytes each. The result replaces the first. It decides the order of every addition between
/// ranks.
fn fold_nodes(
    order: impl Iterator<Item = Range<u32>>,
    total: u32,
    received: &mut [u8],
    length: usize,
    data_type: DataType,
    op: ReduceOp,
) {
    let mut stack: Vec<(Range<u32>, usize)> = Vec::new();
    for (place, node) in order.enumerate() {
        let are_siblings = |((left, _), (right, _)): (&_, &_)| are_siblings(total, (left, right));
        push(&mut stack, (node, place * length), are_siblings, |(left, into), (right, from)| {
            let (head, tail) = received.split_at_mut(from);
            combine(data_type, op, &mut head[into..into + length], &tail[..length]);
            (left.start..right.end, into)
        });
    }
    if op == ReduceOp::Mean {
        divide(data_type, &mut received[..length], total);
    }
}

/// Folds the partial results of all ranks, in the order of ranks, of one element each, as the ranks of a group do
/// together. `None`: they are not as many as the deal has nodes. Called by the simulation.
pub fn fold_partial<E: Element>(deal: &ShardDeal, partial: &[E], op: ReduceOp) -> Option<E> {
    let nodes: Vec<Range<u32>> = (0..deal.world()).flat_map(|rank| deal.nodes_of(rank)).collect();
    let mut partial = partial.to_vec();
    if nodes.len() != partial.len() {
        return None;
    }
    let received = bytemuck::cast_slice_mut(&mut partial);
    fold_nodes(nodes.into_iter(), deal.shards(), received, size_of::<E>(), E::DATA_TYPE, op);
    partial.first().copied()
}

/// See [`crate::CommunicatorExt::all_reduce_shards`].
pub(crate) fn all_reduce<C: Communicator + ?Sized, E: Element>(
    group: &mut C,
    deal: &ShardDeal,
    shards: &[&[E]],
    output: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    check_count(shards.len(), &deal.of(group.rank()))?;
    let mut fold = ShardFold::new(deal, group.rank(), op);
    shards.iter().try_for_each(|shard| fold.add(*shard))?;
    fold.all_reduce(group, deal, output)
}

/// See [`crate::CommunicatorExt::all_reduce_shards_many`].
pub(crate) fn all_reduce_many<C: Communicator + ?Sized, E: Element>(
    group: &mut C,
    deal: &ShardDeal,
    shards: &[&[&[E]]],
    outputs: &mut [&mut [E]],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    check_count(shards.len(), &deal.of(group.rank()))?;
    let mut fold = ShardFold::new(deal, group.rank(), op);
    for shard in shards {
        if shard.len() != outputs.len() {
            let reason = format!("{} buffers are given, {} are due", shard.len(), outputs.len());
            return Err(check::invalid(KIND, reason));
        }
        for (buffer, output) in shard.iter().zip(&*outputs) {
            check::length(KIND, "shard", size_of_val(*buffer), size_of_val(&**output))?;
        }
        // Every operation is on single elements, so their neighbours do not change them.
        fold.add(shard.concat())?;
    }
    let elements = outputs.iter().map(|output| output.len()).sum();
    let mut whole = vec![E::zeroed(); elements];
    let lengths = outputs.iter().map(|output| size_of_val(&**output));
    fold.all_reduce_of(group, deal, &mut whole, lengths)?;
    let mut rest = whole.as_slice();
    for output in outputs {
        let (own, others) = rest.split_at(output.len());
        output.copy_from_slice(own);
        rest = others;
    }
    Ok(())
}

fn check_count(given: usize, due: &Range<u32>) -> Result<(), CollectiveError> {
    if given == due.len() {
        return Ok(());
    }
    let reason = format!("{given} shards are given, {} are due: {due:?}", due.len());
    Err(check::invalid(KIND, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_dealt_once_and_in_order() {
        for (total, world) in [(4, 3), (4, 4), (3, 8), (64, 7), (1, 1)] {
            let deal = ShardDeal::even(total, world);
            let mut next = 0;
            for rank in 0..world {
                let own = deal.of(rank);
                assert_eq!(own.start, next);
                next = own.end;
            }
            assert_eq!((next, deal.shards()), (total, total));
            assert_eq!(deal.of(world), 0..0);
        }
    }

    #[test]
    fn the_drivers_counts_deal_the_shards_of_a_job_and_others_are_dealt_evenly() {
        let deal = ShardDeal::of_job(8, 3, &[4, 1, 3]);
        assert_eq!([deal.of(0), deal.of(1), deal.of(2)], [0..4, 4..5, 5..8]);
        assert_eq!((deal.shards(), deal.world()), (8, 3));
        // None, of other shards, of another world, and with a rank that has none.
        for counts in [&[][..], &[4, 1, 4], &[4, 4], &[8, 0, 0], &[u32::MAX, 8, 1]] {
            assert_eq!(ShardDeal::of_job(8, 3, counts), ShardDeal::even(8, 3), "{counts:?}");
        }
    }

    #[test]
    fn the_nodes_of_all_ranks_become_one_tree_in_any_world() {
        /// The tree over the shards from `start` to `end`, in words.
        fn tree(start: u32, end: u32) -> String {
            if end - start == 1 {
                return start.to_string();
            }
            let left = (end - start).next_power_of_two() / 2;
            format!("({} {})", tree(start, start + left), tree(start + left, end))
        }
        for total in 1..40 {
            // Even deals, and deals in which one rank has all that the others leave.
            let evenly = (1..=total).map(|world| ShardDeal::even(total, world));
            let most = (0..3.min(total)).map(|rank| {
                let mut counts = vec![1; 3.min(total as usize)];
                counts[rank as usize] = total + 1 - counts.len() as u32;
                ShardDeal::of_job(total, counts.len() as u32, &counts)
            });
            for deal in evenly.chain(most) {
                let world = deal.world();
                let mut stack: Vec<(Range<u32>, String)> = Vec::new();
                for rank in 0..world {
                    let nodes = deal.nodes_of(rank);
                    assert!(nodes.len() <= 2 * (total.ilog2() as usize + 1), "{nodes:?}");
                    for node in nodes {
                        let text = tree(node.start, node.end);
                        let siblings =
                            |((left, _), (right, _)): (&_, &_)| are_siblings(total, (left, right));
                        push(&mut stack, (node, text), siblings, |(left, one), (right, other)| {
                            (left.start..right.end, format!("({one} {other})"))
                        });
                    }
                }
                assert_eq!(stack, [(0..total, tree(0, total))], "{total} shards, {world} ranks");
            }
        }
    }

    #[test]
    fn a_world_that_divides_the_shards_moves_one_result_a_rank() {
        for (total, world) in [(8, 1), (8, 2), (8, 4), (8, 8), (64, 16)] {
            let deal = ShardDeal::even(total, world);
            assert!((0..world).all(|rank| deal.nodes_of(rank).len() == 1), "{total} by {world}");
        }
        assert_eq!(ShardDeal::even(8, 3).nodes_of(0), [0..2, 2..3]);
        assert_eq!(ShardDeal::even(8, 2).bytes_moved(0, 1_000), 2_000, "as a plain all-reduce");
    }
}
