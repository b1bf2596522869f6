//! Resume: brings the members of a generation to a checkpoint if none of them holds a commit, or if the checkpoint is
//! later than all commits. The root chooses the newest checkpoint that is whole and fits, or the one that was asked
//! for. If the root finds none and another rank does, that rank chooses (`search`). Every member reads a share of the
//! checkpoint, and they exchange the shares. Called by `sync` on the training thread of every member at once.
//!
//! A share that its reader cannot read is read by the root: only if that fails, too, is the checkpoint damaged. So a host
//! that does not have the directory costs time, not the checkpoint.
//!
//! If all members are on one host, they exchange nothing, unless a read fails. Once a share was read, it is in the
//! host's page cache, and each member reads it from there into its place, which costs less than to send it. A state
//! that has memory for its arrays leaves them in the files until it copies them into that memory (`in_files`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use elastic_checkpoint::{CommitLayout, Damage, FileSystem, Manifest, StateFields, StoredCommit};
use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt as _};
use elastic_protocol::Step;
use elastic_protocol::messages::{BulkWork, CheckpointSource, MovedBytes};
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use super::search::{CheckpointOffer, LeadSearch, find_search_leader};
use super::shares::exchange;
use crate::state::sampler::SampleLedger;
use crate::state::training::error::Error;
use crate::state::training::fields::{other_elements, other_type};
use crate::state::training::snapshot::{ContentId, StateSnapshot};
use crate::state::training::sync::SyncError;

/// Most bytes of a checkpoint's manifest and path.
const OFFER_BYTES_MAX: usize = 512 << 20;

/// Ports of a resume to its environment.
#[derive(Clone, Copy)]
pub(in crate::state::training) struct ResumePorts<'a> {
    /// The file system of this host.
    pub(in crate::state::training) files: &'a dyn FileSystem,
    /// Called at the rank that searches, with the step to go on from, whether the job's last checkpoint is gone, and notes for the
    /// user. No step: training begins from the start.
    pub(in crate::state::training) resumed: &'a dyn Fn(Option<Step>, bool, Vec<String>),
    /// Called with a warning for the user, before the search has ended.
    pub(in crate::state::training) warn: &'a dyn Fn(String),
    /// Waits before the store is asked once more.
    pub(in crate::state::training) pause: &'a dyn Fn(Duration),
    /// Called with the progress of the resume: the bytes that were read, and those that have arrived.
    pub(in crate::state::training) show: &'a dyn Fn(MovedBytes),
    /// Whether all members are on this host; the same on each of them.
    pub(in crate::state::training) is_one_host: bool,
    /// The state's fields, where its type is a struct.
    pub(in crate::state::training) fields: Option<&'a StateFields>,
}

/// A commit of a checkpoint.
pub(in crate::state::training) struct LoadedCommit {
    /// The checkpoint's directory.
    pub(in crate::state::training) path: PathBuf,
    /// In a buffer that the snapshot lent.
    pub(in crate::state::training) bytes: Vec<u8>,
    pub(in crate::state::training) commit: ContentId,
    /// The files that its arrays are in; their places in `bytes` are empty then.
    pub(in crate::state::training) stored: Option<StoredCommit>,
}

/// Reads a checkpoint together with the other members. Returns the commit; none if there is no checkpoint.
/// If it `stays_in_files`, and all members are on one host and can read them, arrays are not read, but checked.
///
/// # Errors
/// [`SyncError`]: a collective failed; no member can read the directory, at the root; there are checkpoints and none can be
/// taken, there is none and must be one, or one is in the way, at the rank that searches.
pub(in crate::state::training) fn resume(
    snapshot: &mut StateSnapshot,
    group: &mut dyn Communicator,
    root: u32,
    source: &CheckpointSource,
    ports: ResumePorts<'_>,
    stays_in_files: bool,
) -> Result<Option<LoadedCommit>, SyncError> {
    let (root, mut search) = find_search_leader(group, root, source, ports)?;
    if let Some(gone) = search.as_ref().and_then(LeadSearch::gone).filter(|it| it.must_exist)
        && let (gone, Some(search)) = (gone.clone(), search.take())
    {
        // The others learn it from the broken group.
        return Err(Error::Checkpoint(search.give_up(gone, ports)).into());
    }
    loop {
        let mut text = match &mut search {
            Some(search) => search.offer().map_err(Error::Checkpoint)?,
            None => Vec::new(),
        };
        group.broadcast_vec(&mut text, root, OFFER_BYTES_MAX)?;
        if text.is_empty() {
            if let Some(search) = search {
                search.conclude(None, ports).map_err(Error::Checkpoint)?;
            }
            return Ok(None);
        }
        let offer: CheckpointOffer =
            postcard::from_bytes(&text).map_err(|_| Error::Corrupt { root })?;
        let manifest = Manifest::decode(&offer.manifest).map_err(|_| Error::Corrupt { root })?;
        let proposed = Proposed { path: Path::new(&offer.path), manifest: &manifest, root };
        let mut buffer = snapshot.receive_buffer(manifest.length as usize);
        let notes = search.as_mut().map(|search| search.notes());
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
                if search.is_some() {
                    info!(checkpoint = offer.path, "loaded");
                }
                if let Err(error) = begin_from(group, (root, search), source, commit.step, ports) {
                    snapshot.give_back(buffer, None);
                    return Err(error);
                }
                let path = PathBuf::from(offer.path);
                return Ok(Some(LoadedCommit { path, bytes: buffer, commit, stored }));
            }
            Ok(Err(damage)) => {
                snapshot.give_back(buffer, None);
                if let Some(search) = &mut search {
                    let offered = (text, offer.path, manifest.step);
                    search.not_taken(offered, damage, ports).map_err(Error::Checkpoint)?;
                }
            }
            Err(error) => {
                snapshot.give_back(buffer, None);
                return Err(error);
            }
        }
    }
}

/// Ends the search: training goes on from this step. Where the user has chosen it, nobody does so before the root has set aside
/// what is later.
fn begin_from(
    group: &mut dyn Communicator,
    (root, search): (u32, Option<LeadSearch<'_>>),
    source: &CheckpointSource,
    step: Step,
    ports: ResumePorts<'_>,
) -> Result<(), SyncError> {
    if let Some(search) = search {
        search.conclude(Some(step), ports).map_err(Error::Checkpoint)?;
    }
    if source.exactly.is_some() {
        // The content means nothing: it comes only if the root begins.
        group.broadcast(&mut [0_u8], root)?;
    }
    Ok(())
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
        let fitting = whole.clone().and_then(|()| fits(self.manifest, commit, ports.fields));
        if let Err(damage) = agree(group, root, fitting)? {
            return Ok(Err(damage));
        }
        // The root has found the digest right, so the bytes that arrived here differ from those that were read.
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

/// Beginning of a commit's bytes: lengths of memory beside the state, and the sampler's ledger.
type CommitHead = (Vec<u64>, SampleLedger);

/// Checks that the commit has the ledger that its manifest names, and the fields of this program's state with their
/// types.
pub(super) fn fits(
    manifest: &Manifest,
    commit: &[u8],
    fields: Option<&StateFields>,
) -> Result<(), Damage> {
    if let (Some(saved), Some(own)) = (&manifest.fields, fields)
        && *saved != own.names
    {
        let (saved, own) = (saved.join(", "), own.names.join(", "));
        return Err(Damage::OtherState { saved, own });
    }
    if let Some(own) = fields {
        let other = manifest.field_types.as_ref().and_then(|saved| other_type(saved, &own.types));
        let other = other.or_else(|| other_elements(&manifest.tensors, &own.types));
        if let Some(difference) = other {
            let reason = format!("the state in it is of another type: {difference}");
            return Err(Damage::Undecodable { reason });
        }
    }
    let wrong = |reason: &str| Damage::Manifest { reason: reason.to_owned() };
    let ((_lengths, ledger), _state) = postcard::take_from_bytes::<CommitHead>(commit)
        .map_err(|_| wrong("its commit does not begin with a sampler's ledger"))?;
    let position = serde_json::to_value(&ledger).unwrap_or_default();
    if position != manifest.position {
        return Err(wrong("the sampler's ledger is that of another step"));
    }
    Ok(())
}
