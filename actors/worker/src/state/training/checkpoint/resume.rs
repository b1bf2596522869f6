//! Brings the members of a generation to a checkpoint when none of them holds a commit. The root chooses: the newest that is whole
//! and fits, or the one that was asked for. Every member reads a share of it, and they exchange the shares. Called by `sync`
//! on the training thread of every member at once.
//!
//! A share that its reader cannot read is read by the root: only if that fails, too, is the checkpoint damaged. So a host
//! that does not have the directory costs time, not the checkpoint.
//!
//! Where all members are on one host, they exchange nothing: once a share was read, the host's page cache has it, and each member
//! reads it from there into its place, which costs less than to send it. A state that has memory for its arrays leaves them in the
//! files until it copies them there (`in_files`).

use std::path::Path;

use elastic_checkpoint::{
    CheckpointLoadError, CheckpointSearch, CommitLayout, Damage, FileSystem, Manifest,
    StoredCommit, clear_partial, set_aside_after,
};
use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt as _};
use elastic_protocol::Step;
use elastic_protocol::messages::{BulkWork, CheckpointSource, MovedBytes};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use super::shares::exchange;
use crate::state::sampler::SampleLedger;
use crate::state::training::error::Error;
use crate::state::training::snapshot::{ContentId, StateSnapshot};
use crate::state::training::sync::SyncError;

/// Most bytes of a checkpoint's manifest and path.
const OFFER_BYTES_MAX: usize = 512 << 20;

/// What a resume needs of its surroundings.
#[derive(Clone, Copy)]
pub(in crate::state::training) struct ResumePorts<'a> {
    /// The file system of this host.
    pub(in crate::state::training) files: &'a dyn FileSystem,
    /// Is told the step to go on from and what a person should know, at the root. No step: training begins from the start.
    pub(in crate::state::training) resumed: &'a dyn Fn(Option<Step>, Vec<String>),
    /// Is told the bytes that were read, and those that have arrived.
    pub(in crate::state::training) show: &'a dyn Fn(MovedBytes),
    /// Whether all members are on this host; the same on each of them.
    pub(in crate::state::training) is_one_host: bool,
}

/// The root's search for a checkpoint.
pub(in crate::state::training) struct RootSearch<'a> {
    source: &'a CheckpointSource,
    search: CheckpointSearch,
    notes: Vec<String>,
}

/// A commit of a checkpoint.
pub(in crate::state::training) struct LoadedCommit {
    /// In a buffer that the snapshot lent.
    pub(in crate::state::training) bytes: Vec<u8>,
    pub(in crate::state::training) commit: ContentId,
    /// The files that its arrays are in; their places in `bytes` are empty then.
    pub(in crate::state::training) stored: Option<StoredCommit>,
}

/// What the root proposes; the others read it as an empty text if there is nothing to propose.
#[derive(Deserialize, Serialize)]
struct CheckpointOffer {
    /// The directory of the step.
    path: String,
    /// The manifest's text.
    manifest: Vec<u8>,
}

impl<'a> RootSearch<'a> {
    /// Begins the search. None if training begins from the start whatever there is: then the search has ended, and the driver
    /// was told.
    ///
    /// # Errors
    /// [`CheckpointLoadError::List`].
    pub(in crate::state::training) fn begin(
        source: &'a CheckpointSource,
        ports: ResumePorts<'_>,
    ) -> Result<Option<Self>, CheckpointLoadError> {
        let files = ports.files;
        if source.begins_anew {
            tidy(source, None, Vec::new(), ports);
            return Ok(None);
        }
        let search = match &source.exactly {
            Some(path) => CheckpointSearch::exactly(files, Path::new(path)),
            None => {
                let (directory, name) = (Path::new(&source.directory), source.name.as_deref());
                CheckpointSearch::newest(files, directory, name)?
            }
        };
        Ok(Some(Self { source, search, notes: Vec::new() }))
    }

    /// The next proposal, as text; empty if nothing is left, and training begins from the start.
    fn offer(&mut self) -> Result<Vec<u8>, CheckpointLoadError> {
        let Some((path, manifest)) = self.search.offer()? else { return Ok(Vec::new()) };
        let path = path.to_string_lossy().into_owned();
        let offer = CheckpointOffer { path, manifest: manifest.encode() };
        Ok(postcard::to_stdvec(&offer).expect("texts are always encoded"))
    }

    /// The search has ended with this step.
    fn conclude(self, step: Option<Step>, ports: ResumePorts<'_>) {
        let mut notes: Vec<String> = Vec::new();
        for (name, damage) in self.search.passed_over() {
            warn!(checkpoint = name, %damage, "passed over");
            notes.push(format!("{name} was passed over: {damage}"));
        }
        notes.extend(self.notes);
        tidy(self.source, step, notes, ports);
    }
}

/// Clears the directory of what training from this step makes invalid, and tells the driver.
fn tidy(
    source: &CheckpointSource,
    step: Option<Step>,
    mut notes: Vec<String>,
    ports: ResumePorts<'_>,
) {
    let directory = Path::new(&source.directory);
    notes.extend(clear_partial(ports.files, directory));
    let (set_aside, troubles) = set_aside_after(ports.files, directory, step.map(|step| step.0));
    notes.extend(set_aside.into_iter().map(|name| format!("set aside as {name}")));
    notes.extend(troubles);
    (ports.resumed)(step, notes);
}

/// Reads a checkpoint together with the other members. Returns the commit; none if there is no checkpoint. `search` is the root's.
/// If it `stays_in_files`, and all members are on one host and can read them, arrays are not read, but checked.
///
/// # Errors
/// [`SyncError`]: a collective failed; or there are checkpoints and none can be taken, at the root.
pub(in crate::state::training) fn resume(
    snapshot: &mut StateSnapshot,
    group: &mut dyn Communicator,
    root: u32,
    mut search: Option<RootSearch<'_>>,
    ports: ResumePorts<'_>,
    stays_in_files: bool,
) -> Result<Option<LoadedCommit>, SyncError> {
    loop {
        let mut text = match &mut search {
            Some(search) => search.offer().map_err(Error::Checkpoint)?,
            None => Vec::new(),
        };
        group.broadcast_vec(&mut text, root, OFFER_BYTES_MAX)?;
        if text.is_empty() {
            if let Some(search) = search {
                search.conclude(None, ports);
            }
            return Ok(None);
        }
        let offer: CheckpointOffer =
            postcard::from_bytes(&text).map_err(|_| Error::Corrupt { root })?;
        let manifest = Manifest::decode(&offer.manifest).map_err(|_| Error::Corrupt { root })?;
        let proposed = Proposed { path: Path::new(&offer.path), manifest: &manifest, root };
        let mut buffer = snapshot.receive_buffer(manifest.length as usize);
        let notes = search.as_mut().map(|search| &mut search.notes);
        let read = match proposed.leave_in_files(group, &mut buffer, ports, stays_in_files) {
            Ok(Some((commit, stored))) => Ok(Ok((commit, Some(stored)))),
            Ok(None) => {
                let read = proposed.read_together(group, &mut buffer, notes, ports);
                read.map(|read| read.map(|commit| (commit, None)))
            }
            Err(error) => Err(error.into()),
        };
        match read {
            Ok(Ok((commit, stored))) => {
                if let Some(search) = search {
                    info!(checkpoint = offer.path, "loaded");
                    search.conclude(Some(commit.step), ports);
                }
                return Ok(Some(LoadedCommit { bytes: buffer, commit, stored }));
            }
            Ok(Err(damage)) => {
                snapshot.give_back(buffer, None);
                if let Some(search) = &mut search {
                    search.search.pass_over(manifest.step, damage);
                }
            }
            Err(error) => {
                snapshot.give_back(buffer, None);
                return Err(error);
            }
        }
    }
}

/// A checkpoint that the root proposes.
pub(super) struct Proposed<'a> {
    pub(super) path: &'a Path,
    pub(super) manifest: &'a Manifest,
    pub(super) root: u32,
}

impl Proposed<'_> {
    /// Brings the checkpoint into `commit` on every rank. The inner error is the root's verdict, the same on all ranks; its text
    /// counts at the root only.
    fn read_together(
        &self,
        group: &mut dyn Communicator,
        commit: &mut [u8],
        notes: Option<&mut Vec<String>>,
        ports: ResumePorts<'_>,
    ) -> Result<Result<ContentId, Damage>, SyncError> {
        let (world, root) = (group.world_size(), self.root);
        let layout = match CommitLayout::new(self.manifest) {
            Ok(layout) => layout,
            // All ranks have the same manifest.
            Err(damage) => return Ok(Err(damage)),
        };
        let read_by_root = match self.read_shares(&layout, group, commit, ports)? {
            Ok(read_by_root) => read_by_root,
            Err(damage) => return Ok(Err(damage)),
        };
        if let Some(notes) = notes.filter(|_| !read_by_root.is_empty()) {
            let ranks: Vec<String> = read_by_root.iter().map(u32::to_string).collect();
            let (path, ranks) = (self.path.display(), ranks.join(", "));
            notes.push(format!(
                "rank {root} read the shares of ranks that cannot read {path}: {ranks}"
            ));
        }
        let total = layout.length() as u64;
        let has_all = ports.is_one_host
            && read_by_root.is_empty()
            && self.read_others(&layout, group, commit, ports)?;
        if !has_all {
            let giver_of = |share: &u32| if read_by_root.contains(share) { root } else { *share };
            let given_by = |rank: u32| {
                let shares = (0..world).filter(|share| giver_of(share) == rank);
                shares.flat_map(|share| layout.ranges(layout.share(share, world))).collect()
            };
            exchange(group, (0..world).map(given_by).collect(), commit, |done| {
                (ports.show)(MovedBytes { work: BulkWork::TakesState, done, total });
            })?;
        }
        let digest = xxh3_64(commit);
        let whole = self.manifest.check_digest(digest);
        let fitting = whole.clone().and_then(|()| fits(self.manifest, commit));
        if let Err(damage) = agree(group, root, fitting)? {
            return Ok(Err(damage));
        }
        // The root has found the digest right: what came here is not what was read.
        whole.map_err(|_| Error::Corrupt { root })?;
        Ok(Ok(ContentId { length: total, step: Step(self.manifest.step), digest }))
    }

    /// Reads every rank's share, each at its rank, or at the root where the rank cannot read it. Returns the latter.
    fn read_shares(
        &self,
        layout: &CommitLayout<'_>,
        group: &mut dyn Communicator,
        commit: &mut [u8],
        ports: ResumePorts<'_>,
    ) -> Result<Result<Vec<u32>, Damage>, SyncError> {
        let (rank, world) = (group.rank(), group.world_size());
        let own = self.read_share(layout, rank, world, commit, ports);
        let mut unread = vec![0_u8; world as usize];
        group.all_gather(&[u8::from(own.is_err())], &mut unread)?;
        let unread: Vec<u32> = (0..world).filter(|rank| unread[*rank as usize] != 0).collect();
        if unread.is_empty() {
            return Ok(Ok(unread));
        }
        let mut verdict = Ok(());
        if rank == self.root {
            let mut others = unread.iter().filter(|share| **share != rank);
            verdict = own.and_then(|()| {
                others.try_for_each(|share| self.read_share(layout, *share, world, commit, ports))
            });
        }
        Ok(agree(group, self.root, verdict)?.map(|()| unread))
    }

    /// Reads the shares that the other ranks have read. Returns whether every rank could.
    fn read_others(
        &self,
        layout: &CommitLayout<'_>,
        group: &mut dyn Communicator,
        commit: &mut [u8],
        ports: ResumePorts<'_>,
    ) -> Result<bool, CollectiveError> {
        let (rank, world) = (group.rank(), group.world_size());
        let mut others = (1..world).map(|distance| (rank + distance) % world);
        let read =
            others.try_for_each(|share| self.read_share(layout, share, world, commit, ports));
        let mut unread = vec![0_u8; world as usize];
        group.all_gather(&[u8::from(read.is_err())], &mut unread)?;
        Ok(unread.iter().all(|unread| *unread == 0))
    }

    /// Reads the share of a rank into its places in `commit`.
    fn read_share(
        &self,
        layout: &CommitLayout<'_>,
        of: u32,
        world: u32,
        commit: &mut [u8],
        ports: ResumePorts<'_>,
    ) -> Result<(), Damage> {
        let share = layout.share(of, world);
        let (mut done, total) = (0, layout.bytes(share.clone()));
        let read = layout.read(ports.files, self.path, share, commit, &mut |bytes| {
            done += bytes as u64;
            (ports.show)(MovedBytes { work: BulkWork::LoadsCheckpoint, done, total });
        });
        if let Err(damage) = &read {
            warn!(checkpoint = %self.path.display(), share = of, %damage, "a share cannot be read");
        }
        read
    }
}

/// Gives the root's verdict to all ranks. Elsewhere than at the root, the text of an error means nothing.
fn agree(
    group: &mut dyn Communicator,
    root: u32,
    verdict: Result<(), Damage>,
) -> Result<Result<(), Damage>, CollectiveError> {
    let mut is_damaged = [u8::from(verdict.is_err())];
    group.broadcast(&mut is_damaged, root)?;
    if group.rank() == root || is_damaged == [0] {
        return Ok(if is_damaged == [0] { Ok(()) } else { verdict });
    }
    Ok(Err(Damage::Manifest { reason: "the root has passed it over".to_owned() }))
}

/// What a commit begins with: lengths of memory beside the state, and the sampler's ledger.
type CommitHead = (Vec<u64>, SampleLedger);

/// Checks that the commit has the ledger that its manifest names.
pub(super) fn fits(manifest: &Manifest, commit: &[u8]) -> Result<(), Damage> {
    let wrong = |reason: &str| Damage::Manifest { reason: reason.to_owned() };
    let ((_lengths, ledger), _state) = postcard::take_from_bytes::<CommitHead>(commit)
        .map_err(|_| wrong("its commit does not begin with a sampler's ledger"))?;
    let position = serde_json::to_value(&ledger).unwrap_or_default();
    if position != manifest.position {
        return Err(wrong("the sampler's ledger is that of another step"));
    }
    Ok(())
}
