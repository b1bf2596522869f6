//! Sync: brings all members of a new generation to the root's commit. Called by `membership`. Every rank announces the
//! commit that it holds. The ranks that hold the root's commit are the sources. The others take it from all sources at
//! once ([`super::transfer`]). If no rank holds a commit, or a checkpoint is later, all ranks read the checkpoint
//! ([`super::checkpoint`]).

use std::num::NonZeroU64;

use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt};
use elastic_protocol::messages::{BulkWork, CheckpointSource, MovedBytes, SyncPlan};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{GenerationId, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::checkpoint::{ResumePorts, begin_anew, resume};
use super::error::Error;
use super::fields::digest;
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
/// `source` is the source of checkpoints if no member holds a commit, or if a checkpoint is later than all commits. It
/// is the same at all members.
pub(super) fn sync<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    plan: SyncPlan,
    source: Option<&CheckpointSource>,
    ports: ResumePorts<'_>,
    generation: GenerationId,
) -> Result<bool, SyncError> {
    let goes_on = match plan {
        SyncPlan::Skip => true,
        SyncPlan::FromRoot { root } => from_root(state, group, root, source, ports)?,
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
    /// Whether the rank has begun to look for a checkpoint, and all follow it.
    searches: bool,
    /// Digest of the fields of its state; none if its type has no list of them.
    fields: Option<NonZeroU64>,
}

type HoldingWords = [u64; 9];

impl Holding {
    fn encode(self) -> HoldingWords {
        let mut words = [0; 9];
        let flags = [self.whole.is_some(), self.goes_on, self.part.is_some(), self.searches];
        words[0] = (0..).zip(flags).map(|(bit, flag)| u64::from(flag) << bit).sum();
        let id = |id: ContentId| [id.length, id.step.0, id.digest];
        words[1..4].copy_from_slice(&self.whole.map_or([0; 3], id));
        if let Some((part, bytes)) = self.part {
            words[4..7].copy_from_slice(&id(part));
            words[7] = bytes;
        }
        words[8] = self.fields.map_or(0, NonZeroU64::get);
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
            searches: flag(3),
            fields: NonZeroU64::new(words[8]),
        }
    }
}

fn from_root<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    root: u32,
    source: Option<&CheckpointSource>,
    ports: ResumePorts<'_>,
) -> Result<bool, SyncError> {
    let is_root = group.rank() == root;
    // Where there are others, they decode it.
    let is_decoded = source.is_some() && group.world_size() == 1;
    let searched = source.filter(|source| !source.begins_anew);
    if let Some(source) = source.filter(|source| is_root && source.begins_anew) {
        begin_anew(source, ports).map_err(Error::Checkpoint)?;
    }
    let holdings =
        announce(state, group, root, (is_root && searched.is_some(), is_decoded), ports)?;
    check_fields(&holdings, group.rank(), root)?;
    if !holdings[root as usize].searches {
        return from_holders(state, group, root, &holdings, ports.show);
    }
    // The driver has told all members the same.
    let source = searched.ok_or(Error::Corrupt { root })?;
    let stays_in_files = state.leaves_arrays_in_files();
    match resume(state.snapshot(), group, root, source, ports, stays_in_files)? {
        Some(loaded) => state.take_loaded(loaded).map(|()| true).map_err(Into::into),
        None => {
            let holdings = announce(state, group, root, (false, is_decoded), ports)?;
            from_holders(state, group, root, &holdings, ports.show)
        }
    }
}

/// Announces this rank's [`Holding`] to all ranks, and returns those of all ranks. The root has a commit afterwards,
/// unless it searches for one. If it `is_decoded`, the first commit is decoded once.
fn announce<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    root: u32,
    (searches, is_decoded): (bool, bool),
    ports: ResumePorts<'_>,
) -> Result<Vec<Holding>, SyncError> {
    let goes_on = state.holds_commit();
    if group.rank() == root && !searches {
        state.save_initial()?;
        if !goes_on && is_decoded {
            state.check_decodes()?;
        }
    }
    let whole = state.content_id();
    let (part, fields) = (state.snapshot().part(), ports.fields.map(digest));
    let own = Holding { whole, goes_on, part, searches, fields };
    let mut words: Vec<HoldingWords> = vec![[0; 9]; group.world_size() as usize];
    group.all_gather(&own.encode(), words.as_flattened_mut())?;
    Ok(words.iter().map(|words| Holding::decode(words)).collect())
}

/// Refuses a commit that this rank would misread: its program is another than the root's.
fn check_fields(holdings: &[Holding], rank: u32, root: u32) -> Result<(), Error> {
    let fields = |rank: u32| holdings[rank as usize].fields;
    match (fields(rank), fields(root)) {
        (Some(own), Some(of_root)) if own != of_root => Err(Error::OtherFields { root }),
        _ => Ok(()),
    }
}

/// Takes the root's commit from all ranks that hold it, or gives it to those that do not.
fn from_holders<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    root: u32,
    holdings: &[Holding],
    show: &dyn Fn(MovedBytes),
) -> Result<bool, SyncError> {
    let rank = group.rank();
    let of_root = holdings[root as usize];
    let commit = of_root.whole.ok_or(Error::Corrupt { root })?;
    let length = usize::try_from(commit.length).map_err(|_| Error::Corrupt { root })?;
    let holds = |rank: &u32| match holdings[*rank as usize].whole {
        Some(whole) if is_planted(Bug::StepsComparedAlone) => whole.step == commit.step,
        whole => whole == Some(commit),
    };
    let (sources, takers): (Vec<u32>, Vec<u32>) = (0..group.world_size()).partition(holds);
    // A part of the same commit that was received earlier is not sent again.
    let had = |rank: &u32| match holdings[*rank as usize].part {
        Some((part, bytes)) if part == commit => bytes as usize,
        _ => 0,
    };
    let done = takers.iter().map(had).min().unwrap_or(0).min(length);
    let transfer = Transfer { sources, takers, length, done };
    if !transfer.takers.contains(&rank) {
        transfer.give(group, state.whole_commit()?)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_holds_survives_the_wire() {
        let id = |number| ContentId { length: number, step: Step(number + 1), digest: number + 2 };
        let whole = Holding { whole: Some(id(5)), goes_on: true, ..Holding::default() };
        let part = Holding { part: Some((id(7), 9)), ..Holding::default() };
        let searches = Holding { searches: true, ..Holding::default() };
        let fields = Holding { fields: NonZeroU64::new(11), ..Holding::default() };
        for holding in [whole, part, searches, fields, Holding::default()] {
            assert_eq!(Holding::decode(&holding.encode()), holding);
        }
    }
}
