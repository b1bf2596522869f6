//! Sync: brings all members of a new generation to the root's commit. Called by `membership`. Every rank
//! announces the commit that it holds. The ranks that hold the root's commit are the sources; the others take
//! it from all sources at once ([`super::transfer`]).

use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt};
use elastic_protocol::messages::{BulkWork, CheckpointSource, MovedBytes, SyncPlan};
use elastic_protocol::{GenerationId, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::checkpoint::{Resumed, resume};
use super::error::Error;
use super::snapshot::ContentId;
use super::state::State;
use super::transfer::Transfer;

/// Errors of a sync: a collective failed, which ends the generation; or this worker cannot go on at all.
pub(super) enum SyncError {
    Collective(CollectiveError),
    Fatal(Error),
}

impl From<CollectiveError> for SyncError {
    fn from(error: CollectiveError) -> Self {
        Self::Collective(error)
    }
}

impl From<Error> for SyncError {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// Brings this worker's state to the generation's commit. Returns whether training goes on, rather than begins.
/// `show` is told the bytes that have arrived.
pub(super) fn sync<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    plan: SyncPlan,
    source: Option<&CheckpointSource>,
    resumed: &dyn Fn(Option<Step>, Vec<String>),
    generation: GenerationId,
    show: &dyn Fn(MovedBytes),
) -> Result<bool, SyncError> {
    let goes_on = match plan {
        SyncPlan::Skip => true,
        SyncPlan::FromRoot { root } => from_root(state, group, root, source, resumed, show)?,
    };
    state.refresh()?;
    state.enter_generation(generation);
    Ok(goes_on)
}

/// The announcement of a rank: the commit that it holds, and the part of a commit that it received
/// incompletely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holding {
    /// The commit that the rank holds, if any.
    whole: Option<ContentId>,
    /// Whether training has begun.
    goes_on: bool,
    part: Option<(ContentId, u64)>,
}

type HoldingWords = [u64; 9];

impl Holding {
    fn encode(self) -> HoldingWords {
        let mut words = [0; 9];
        let flags = [self.whole.is_some(), self.goes_on, self.part.is_some()];
        words[0] = (0..).zip(flags).map(|(bit, flag)| u64::from(flag) << bit).sum();
        let id = |id: ContentId| [id.length, id.step.0, id.digest];
        words[1..4].copy_from_slice(&self.whole.map_or([0; 3], id));
        if let Some((part, bytes)) = self.part {
            words[4..7].copy_from_slice(&id(part));
            words[7] = bytes;
        }
        words
    }

    fn decode(words: &[u64]) -> Self {
        let flag = |bit: u32| words[0] >> bit & 1 == 1;
        let id = |at: usize| ContentId {
            length: words[at],
            step: Step(words[at + 1]),
            digest: words[at + 2],
        };
        Self {
            whole: flag(0).then(|| id(1)),
            goes_on: flag(1),
            part: flag(2).then(|| (id(4), words[7])),
        }
    }
}

fn from_root<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    root: u32,
    source: Option<&CheckpointSource>,
    resumed: &dyn Fn(Option<Step>, Vec<String>),
    show: &dyn Fn(MovedBytes),
) -> Result<bool, SyncError> {
    let (rank, world) = (group.rank(), group.world_size() as usize);
    if rank == root
        && !state.holds_commit()
        && let Some(source) = source
    {
        from_checkpoint(state, source, resumed, show)?;
    }
    let goes_on = state.holds_commit();
    if rank == root {
        state.save_initial()?;
    }
    let whole = state.content_id();
    let own = Holding { whole, goes_on, part: state.snapshot().part() };
    let mut words: Vec<HoldingWords> = vec![[0; 9]; world];
    group.all_gather(&own.encode(), words.as_flattened_mut())?;
    let holdings: Vec<Holding> = words.iter().map(|words| Holding::decode(words)).collect();
    let of_root = holdings[root as usize];
    let commit = of_root.whole.ok_or(Error::Corrupt { root })?;
    let length = usize::try_from(commit.length).map_err(|_| Error::Corrupt { root })?;
    let holds = |rank: &u32| holdings[*rank as usize].whole == Some(commit);
    let (sources, takers): (Vec<u32>, Vec<u32>) = (0..world as u32).partition(holds);
    // A part of the same commit that was received earlier is not sent again.
    let had = |rank: &u32| match holdings[*rank as usize].part {
        Some((part, bytes)) if part == commit => bytes as usize,
        _ => 0,
    };
    let done = takers.iter().map(had).min().unwrap_or(0).min(length);
    let transfer = Transfer { sources, takers, length, done };
    if !transfer.takers.contains(&rank) {
        transfer.give(group, state.whole_commit_mut())?;
        return Ok(of_root.goes_on);
    }
    let mut buffer = state.snapshot().receive_buffer(length);
    let mut arrived = done;
    let taken = transfer.take(group, &mut buffer, |bytes| {
        arrived = bytes;
        let (done, total) = (bytes as u64, length as u64);
        show(MovedBytes { work: BulkWork::TakesState, done, total });
    });
    let snapshot = state.snapshot();
    if let Err(error) = taken {
        snapshot.give_back(buffer, Some((commit, arrived as u64)));
        return Err(error.into());
    }
    if xxh3_64(&buffer) != commit.digest {
        snapshot.give_back(buffer, None);
        return Err(Error::Corrupt { root }.into());
    }
    state.take_over(buffer, commit)?;
    Ok(of_root.goes_on)
}

/// Takes the state of the newest checkpoint over, if there is one. `resumed` is told what was found.
fn from_checkpoint<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    source: &CheckpointSource,
    resumed: &dyn Fn(Option<Step>, Vec<String>),
    show: &dyn Fn(MovedBytes),
) -> Result<(), Error> {
    let read = &mut |done, total| show(MovedBytes { work: BulkWork::LoadsCheckpoint, done, total });
    let Resumed { loaded, notes } = resume(source, read).map_err(Error::Checkpoint)?;
    let step = loaded.as_ref().map(|loaded| Step(loaded.manifest.step));
    if let (Some(loaded), Some(step)) = (loaded, step) {
        state.take_over_checkpoint(loaded.bytes, step)?;
    }
    resumed(step, notes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_holds_survives_the_wire() {
        let id = |number| ContentId { length: number, step: Step(number + 1), digest: number + 2 };
        let whole = Holding { whole: Some(id(5)), goes_on: true, part: None };
        let part = Holding { whole: None, goes_on: false, part: Some((id(7), 9)) };
        for holding in [whole, part, Holding::default()] {
            assert_eq!(Holding::decode(&holding.encode()), holding);
        }
    }
}
