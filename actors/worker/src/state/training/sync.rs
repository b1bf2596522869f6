//! How the members of a new generation come to hold one commit.

use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt};
use elastic_protocol::messages::SyncPlan;
use elastic_protocol::{GenerationId, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::error::Error;
use super::state::State;

/// Bytes of a commit that go into one broadcast: an abort is seen, and a peer's loss named, between them.
const CHUNK_BYTES: usize = 64 << 20;

/// Why a sync failed: with the collective, and so with the generation; or at this worker for good.
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

/// Brings this worker's state to the generation's commit. Returns whether training goes on from where it
/// was, rather than begin.
pub(super) fn sync<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    plan: SyncPlan,
    generation: GenerationId,
) -> Result<bool, SyncError> {
    let goes_on = match plan {
        SyncPlan::Skip => true,
        SyncPlan::FromRoot { root } if root == group.rank() => send(state, group, root)?,
        SyncPlan::FromRoot { root } => receive(state, group, root)?,
    };
    state.refresh()?;
    state.enter_generation(generation);
    Ok(goes_on)
}

/// What stands before a commit: length, step, digest, and whether training has begun.
type Header = [u64; 4];

fn send<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    root: u32,
) -> Result<bool, SyncError> {
    let goes_on = state.snapshot().bytes().is_some();
    state.save_initial()?;
    let snapshot = state.snapshot();
    let digest = snapshot.id().map_or(0, |id| id.digest);
    let step = snapshot.step().0;
    let length = snapshot.bytes().map_or(0, <[u8]>::len) as u64;
    let mut header: Header = [length, step, digest, u64::from(goes_on)];
    group.broadcast(&mut header, root)?;
    snapshot.with_bytes_mut(|bytes| {
        bytes.chunks_mut(CHUNK_BYTES).try_for_each(|chunk| group.broadcast(chunk, root))
    })?;
    Ok(goes_on)
}

fn receive<T: Serialize + DeserializeOwned>(
    state: &mut State<T>,
    group: &mut dyn Communicator,
    root: u32,
) -> Result<bool, SyncError> {
    let mut header: Header = [0; 4];
    group.broadcast(&mut header, root)?;
    let [length, step, digest, goes_on] = header;
    let length = usize::try_from(length).map_err(|_| Error::Corrupt { root })?;
    let held = state.commit_id().is_some_and(|id| (id.step.0, id.digest) == (step, digest));
    let snapshot = state.snapshot();
    let mut buffer = snapshot.receive_buffer(length);
    let received =
        buffer.chunks_mut(CHUNK_BYTES).try_for_each(|chunk| group.broadcast(chunk, root));
    if let Err(error) = received {
        snapshot.give_back(buffer);
        return Err(error.into());
    }
    if xxh3_64(&buffer) != digest {
        snapshot.give_back(buffer);
        return Err(Error::Corrupt { root }.into());
    }
    // The label is given by `enter_generation`, once all of it has gone well.
    let generation = GenerationId::default();
    snapshot.replace(buffer, generation, Step(step), Some(digest));
    if !held {
        state.restore()?;
    }
    Ok(goes_on != 0)
}
