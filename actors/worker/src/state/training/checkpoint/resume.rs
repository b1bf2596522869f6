//! Loads the state that no member holds: the newest checkpoint that is whole and fits, or the one that was asked for.
//! Called by the root, on the training thread, before it gives its state to the others.

use std::path::Path;

use elastic_checkpoint::{
    CheckpointLoadError, Damage, LoadedCheckpoint, LocalFiles, clear_partial, load, newest,
    set_aside_after,
};
use elastic_protocol::messages::CheckpointSource;
use tracing::{info, warn};

use crate::state::sampler::SampleLedger;

/// What was found.
#[derive(Debug)]
pub(in crate::state::training) struct Resumed {
    /// The checkpoint; none: training begins from the start.
    pub(in crate::state::training) loaded: Option<LoadedCheckpoint>,
    /// Checkpoints that were passed over or set aside, with the reasons.
    pub(in crate::state::training) notes: Vec<String>,
}

/// Looks for the checkpoint to begin from. Those after it are set aside: training will write their steps again.
/// `read` is told the bytes that were read, of how many.
///
/// # Errors
/// [`CheckpointLoadError`]: the one that was asked for cannot be taken, or there are some and none can.
pub(in crate::state::training) fn resume(
    source: &CheckpointSource,
    read: &mut dyn FnMut(u64, u64),
) -> Result<Resumed, CheckpointLoadError> {
    let directory = Path::new(&source.directory);
    let name = source.name.as_deref();
    let (loaded, passed_over) = match &source.exactly {
        _ if source.begins_anew => (None, Vec::new()),
        Some(path) => {
            let loaded = load(&LocalFiles, Path::new(path), read)?;
            fits(&loaded).map_err(|damage| CheckpointLoadError::Damaged {
                path: loaded.path.clone(),
                damage,
            })?;
            (Some(loaded), Vec::new())
        }
        None => newest(&LocalFiles, directory, name, &fits, read)?,
    };
    let mut notes: Vec<String> = passed_over
        .into_iter()
        .map(|(name, damage)| {
            warn!(checkpoint = name, %damage, "passed over");
            format!("{name} was passed over: {damage}")
        })
        .collect();
    if let Some(loaded) = &loaded {
        info!(checkpoint = %loaded.path.display(), "loaded");
    }
    notes.extend(clear_partial(&LocalFiles, directory));
    let step = loaded.as_ref().map(|loaded| loaded.manifest.step);
    let (set_aside, troubles) = set_aside_after(&LocalFiles, directory, step);
    notes.extend(set_aside.into_iter().map(|name| format!("set aside as {name}")));
    notes.extend(troubles);
    Ok(Resumed { loaded, notes })
}

/// What a commit begins with: lengths of memory beside the state, and the sampler's ledger.
type CommitHead = (Vec<u64>, SampleLedger);

/// Checks that the commit has the ledger that its manifest names.
fn fits(loaded: &LoadedCheckpoint) -> Result<(), Damage> {
    let wrong = |reason: &str| Damage::Manifest { reason: reason.to_owned() };
    let ((_lengths, ledger), _state) = postcard::take_from_bytes::<CommitHead>(&loaded.bytes)
        .map_err(|_| wrong("its commit does not begin with a sampler's ledger"))?;
    let position = serde_json::to_value(&ledger).unwrap_or_default();
    if position != loaded.manifest.position {
        return Err(wrong("the sampler's ledger is that of another step"));
    }
    Ok(())
}
