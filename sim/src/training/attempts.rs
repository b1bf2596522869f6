//! One of each collective that a training function can call or launch, with results that are known. Called by `program`.

use elastic_collectives::ReduceOp;
use elastic_worker::state::training::{Error, Result, Worker};

/// Calls them all, in the same order on each rank. `require` is told what holds.
pub(super) fn try_all(worker: &Worker, require: impl Fn(bool, &str)) -> Result<()> {
    called(worker, &require)?;
    launched(worker, &require)?;
    parts(worker, &require)?;
    worker.barrier()
}

fn called(worker: &Worker, require: &impl Fn(bool, &str)) -> Result<()> {
    let (rank, size) = (worker.rank(), worker.size());
    let ranks: Vec<u32> = (0..size).collect();
    let sum: u32 = ranks.iter().sum();
    let (last, is_last) = (size - 1, rank == size - 1);
    let mut reduced = [rank, 1];
    worker.reduce(&mut reduced, ReduceOp::Sum, last)?;
    require(reduced == if is_last { [sum, size] } else { [rank, 1] }, "reduce");
    let mut gathered = vec![0; if is_last { ranks.len() } else { 0 }];
    worker.gather(&[rank], is_last.then_some(gathered.as_mut_slice()), last)?;
    require(!is_last || gathered == ranks, "gather");
    let mut own = [0];
    worker.scatter(is_last.then_some(ranks.as_slice()), &mut own, last)?;
    require(own == [rank], "scatter");
    let mut all = vec![0; ranks.len()];
    worker.all_gather(&[rank], &mut all)?;
    require(all == ranks, "all_gather");
    let mut part = [0];
    worker.reduce_scatter(&ranks, &mut part, ReduceOp::Max)?;
    require(part == [rank], "reduce_scatter");
    let mut received = vec![0; ranks.len()];
    worker.all_to_all(&vec![rank; ranks.len()], &mut received)?;
    require(received == ranks, "all_to_all");
    let counts: Vec<usize> = (1..=ranks.len()).collect();
    let mut uneven = vec![0_u32; counts.iter().sum()];
    worker.all_gather_v(&vec![rank; rank as usize + 1], &mut uneven, &counts)?;
    let due = ranks.iter().flat_map(|of| vec![*of; *of as usize + 1]);
    require(uneven == due.collect::<Vec<u32>>(), "all_gather_v");
    let ones = vec![1; ranks.len()];
    worker.all_to_all_v(&ranks, &ones, &mut received, &ones)?;
    require(received == vec![rank; ranks.len()], "all_to_all_v");
    let (mut few, mut many) = ([rank as f32], [1.5_f32, rank as f32]);
    worker.all_reduce_many(&mut [&mut few, &mut many], ReduceOp::Min)?;
    require((few, many) == ([0.0], [1.5, 0.0]), "all_reduce_many");
    let mut text = if is_last { b"of the last rank".to_vec() } else { Vec::new() };
    worker.broadcast_vec(&mut text, last, 64)?;
    require(text == b"of the last rank", "broadcast_vec");
    let too_long = worker.broadcast_vec(&mut text, last, 3);
    require(
        matches!(too_long, Err(Error::Collective(_)) | Err(Error::Aborted { .. })),
        "a refusal",
    );
    if let Err(error @ Error::Aborted { .. }) = too_long {
        return Err(error);
    }
    let mut mean = [rank as f32];
    worker.broadcast(&mut mean, 0)?;
    require(mean == [0.0], "broadcast");
    let total = worker.job_shards().unwrap_or(size);
    let own: Vec<[f64; 1]> = worker.own_shards(total).map(|shard| [f64::from(shard)]).collect();
    let own: Vec<&[f64]> = own.iter().map(|shard| shard.as_slice()).collect();
    let mut folded = [0.0];
    worker.all_reduce_shards(&own, total, &mut folded, ReduceOp::Sum)?;
    require(folded == [f64::from(total * (total - 1) / 2)], "all_reduce_shards");
    let pairs: Vec<[&[f64]; 2]> = own.iter().map(|shard| [*shard, *shard]).collect();
    let pairs: Vec<&[&[f64]]> = pairs.iter().map(|pair| pair.as_slice()).collect();
    let mut other = [0.0];
    worker.all_reduce_shards_many(&pairs, total, &mut [&mut folded, &mut other], ReduceOp::Max)?;
    require((folded, other) == ([f64::from(total - 1)], [f64::from(total - 1)]), "of several");
    Ok(())
}

fn launched(worker: &Worker, require: &impl Fn(bool, &str)) -> Result<()> {
    let (rank, size) = (worker.rank(), worker.size());
    let (ranks, last): (Vec<u32>, u32) = ((0..size).collect(), size - 1);
    let sum: u32 = ranks.iter().sum();
    let reduced = worker.all_reduce_async(vec![rank], ReduceOp::Sum)?;
    let at_last = worker.reduce_async(vec![rank], ReduceOp::Sum, last)?;
    let content = worker.broadcast_async(vec![rank], last)?;
    let gathered = worker.gather_async(vec![rank], last)?;
    let given = (rank == last).then(|| ranks.clone());
    let scattered = worker.scatter_async(given, vec![0], last)?;
    let all = worker.all_gather_async(vec![rank])?;
    let part = worker.reduce_scatter_async(ranks.clone(), ReduceOp::Sum)?;
    let exchanged = worker.all_to_all_async(vec![rank; ranks.len()])?;
    let barrier = worker.barrier_async()?;
    // Without a driver there is a thread that runs it.
    require(barrier.test() || worker.generation() == 0, "a launch that runs at once");
    require(reduced.wait()? == [sum], "launched all_reduce");
    require(at_last.wait()? == [if rank == last { sum } else { rank }], "launched reduce");
    require(content.wait()? == [last], "launched broadcast");
    require(gathered.wait()? == (rank == last).then(|| ranks.clone()), "launched gather");
    require(scattered.wait()? == [rank], "launched scatter");
    require(all.wait()? == ranks, "launched all_gather");
    require(part.wait()? == [rank * size], "launched reduce_scatter");
    require(exchanged.wait()? == ranks, "launched all_to_all");
    barrier.wait()?;
    if size > 1 {
        let sent = worker.send_async(vec![rank], (rank + 1) % size)?;
        let from = (rank + size - 1) % size;
        require(worker.recv_async(vec![0], from)?.wait()? == [from], "launched recv");
        require(sent.wait()? == [rank], "launched send");
        worker.send(&[rank, 7], (rank + 1) % size)?;
        let mut received = [0, 0];
        worker.recv(&mut received, from)?;
        require(received == [from, 7], "recv");
    }
    Ok(())
}

/// Groups of every second rank, in the opposite order.
fn parts(worker: &Worker, require: &impl Fn(bool, &str)) -> Result<()> {
    let (rank, size) = (worker.rank(), worker.size());
    let Some(part) = worker.split(Some(rank % 2), -(rank as i32))? else {
        require(false, "a part of the world");
        return Ok(());
    };
    let of_part: Vec<u32> = (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
    let mut all = vec![0; of_part.len()];
    part.all_gather(&[rank], &mut all)?;
    require(all == of_part && part.size() as usize == of_part.len(), "a group's ranks");
    require(of_part.get(part.rank() as usize) == Some(&rank), "a group's rank");
    let none = worker.split(None, 0)?;
    require(none.is_none(), "no colour, no group");
    Ok(())
}
