//! Resume from a checkpoint whose arrays stay in its files. All members are on one host and see the same files, so they
//! check them once for all: the root computes the digest of the whole, and each of the others compares a share of the
//! chunks with their checksums. After that, each member reads the arrays from the host's page cache straight into their
//! final memory, and compares them with the checked content. Called by `resume`.
//!
//! If any member cannot do its part, or finds damage, the checkpoint is read in the ordinary way, which names the damage.

use std::ops::Range;

use elastic_checkpoint::{CommitLayout, Damage, OpenedCommit, StoredCommit};
use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt as _};
use elastic_protocol::Step;
use elastic_protocol::messages::{BulkWork, MovedBytes};
use tracing::debug;

use super::resume::{Proposed, ResumePorts, fits};
use crate::state::training::snapshot::ContentId;

/// Shortest commit, in bytes, whose arrays are left in files: a shorter one is read at once.
const BYTES_MIN: usize = 1 << 20;

/// Most files of such a checkpoint: all of them stay open until the first commit.
const FILES_MAX: usize = 64;

impl Proposed<'_> {
    /// Checks the checkpoint together with the other members, and reads the bytes that belong to no array into
    /// `commit`. `None` if the checkpoint has to be read in the ordinary way. All ranks get the same result.
    pub(super) fn leave_in_files(
        &self,
        group: &mut dyn Communicator,
        commit: &mut [u8],
        ports: ResumePorts<'_>,
        is_wanted: bool,
    ) -> Result<Option<(ContentId, StoredCommit)>, CollectiveError> {
        let is_fitting = commit.len() >= BYTES_MIN && self.manifest.files.len() <= FILES_MAX;
        if !ports.is_one_host || !is_fitting {
            return Ok(None);
        }
        // All ranks have the same manifest.
        let Ok(layout) = CommitLayout::new(self.manifest) else { return Ok(None) };
        let (rank, world) = (group.rank(), group.world_size());
        let checked = if is_wanted { self.check_own(&layout, rank, world, ports) } else { None };
        if !all(group, checked.is_some())? {
            return Ok(None);
        }
        let Some((opened, own)) = checked else { return Ok(None) };
        let count = |rank| layout.checksums(share(&layout, rank, world, self.root));
        let counts: Vec<usize> = (0..world).map(count).collect();
        let mut sums = vec![0; counts.iter().sum()];
        group.all_gather_v(&own, &mut sums, &counts)?;
        let read = opened.checked(sums).ok().filter(|stored| {
            let read = stored.read_rest(commit);
            read.is_ok() && fits(self.manifest, commit, ports.fields).is_ok()
        });
        if !all(group, read.is_some())? {
            return Ok(None);
        }
        let (length, step) = (layout.length() as u64, Step(self.manifest.step));
        Ok(read.and_then(|stored| {
            let digest = self.manifest.digest()?;
            Some((ContentId { length, step, digest }, stored))
        }))
    }

    /// Does this rank's part of the check. Returns the opened files, and the checksums of its share; none if it cannot, or finds
    /// damage.
    fn check_own(
        &self,
        layout: &CommitLayout<'_>,
        rank: u32,
        world: u32,
        ports: ResumePorts<'_>,
    ) -> Option<(OpenedCommit, Vec<u64>)> {
        let own = share(layout, rank, world, self.root);
        let of_root = if rank == self.root { layout.length() as u64 } else { 0 };
        let (mut done, total) = (0, layout.bytes(own.clone()) + of_root);
        let mut count = |bytes| {
            done += bytes as u64;
            (ports.show)(MovedBytes { work: BulkWork::LoadsCheckpoint, done, total });
        };
        let mut check = || {
            let opened = OpenedCommit::open(ports.files, self.path, layout)?;
            if rank == self.root {
                self.manifest.check_digest(opened.digest(&mut count)?)?;
            }
            let sums = layout.check(ports.files, self.path, own.clone(), &mut count)?;
            Ok((opened, sums))
        };
        let checked: Result<_, Damage> = check();
        checked.inspect_err(|damage| debug!(%damage, "the arrays are not left in files")).ok()
    }
}

/// The chunks that a rank compares with their checksums. The root, which reads all of them, has none, unless it is alone. In the
/// order of the ranks they are all chunks.
fn share(layout: &CommitLayout<'_>, rank: u32, world: u32, root: u32) -> Range<usize> {
    match (world, rank) {
        (1, _) => layout.share(0, 1),
        (_, rank) if rank == root => 0..0,
        (_, rank) => layout.share(rank - u32::from(rank > root), world - 1),
    }
}

/// Whether it is so on every rank.
fn all(group: &mut dyn Communicator, is_so: bool) -> Result<bool, CollectiveError> {
    let mut of_ranks = vec![0_u8; group.world_size() as usize];
    group.all_gather(&[u8::from(is_so)], &mut of_ranks)?;
    Ok(of_ranks.iter().all(|is_so| *is_so != 0))
}
