//! The search for a checkpoint, and the rank that leads it. The root leads. If it cannot read the directory, or finds
//! no checkpoint there, the first rank that finds one leads in its place, since a single host may lack the mount. While
//! the root cannot read the directory and no rank finds a checkpoint, the store counts as faulty rather than a host,
//! and all ranks try again. Called by `resume`, on every member at once.

use std::path::Path;
use std::time::Duration;

use elastic_checkpoint::{
    CheckpointLoadError, CheckpointSearch, Damage, clear_partial, set_aside_after,
    set_aside_all_after,
};
use elastic_collectives::{Communicator, CommunicatorExt as _};
use elastic_protocol::Step;
use elastic_protocol::messages::CheckpointSource;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::resume::ResumePorts;
use crate::state::training::error::Error;
use crate::state::training::life::chain;
use crate::state::training::sync::SyncError;

/// Pause before a directory is read again that the root could not read.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Total length of the pauses after which the members try again to read the directory. After that the root fails.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// A search for a checkpoint, at the rank that leads it.
pub(super) struct LeadSearch<'a> {
    source: &'a CheckpointSource,
    search: CheckpointSearch,
    notes: Vec<String>,
}

/// A proposal of the leading rank. The others read an empty text if there is nothing to propose.
#[derive(Deserialize, Serialize)]
pub(super) struct CheckpointOffer {
    /// The directory of the step.
    pub(super) path: String,
    /// The manifest's text.
    pub(super) manifest: Vec<u8>,
}

/// The result of a rank's look into the directory, as it tells the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
enum DirectoryFinding {
    /// It cannot read it, or was not asked.
    Unread = 0,
    /// No checkpoint that can be offered.
    Nothing = 1,
    /// A checkpoint.
    Candidate = 2,
}

impl<'a> LeadSearch<'a> {
    fn begin(
        source: &'a CheckpointSource,
        ports: ResumePorts<'_>,
    ) -> Result<Self, CheckpointLoadError> {
        let files = ports.files;
        let search = match &source.exactly {
            Some(path) => CheckpointSearch::exactly(files, Path::new(path)),
            None => {
                let (directory, name) = (Path::new(&source.directory), source.name.as_deref());
                CheckpointSearch::newest(files, directory, name)?
            }
        };
        Ok(Self { source, search, notes: Vec::new() })
    }

    /// Adds a note that names the leader, if the root does not lead.
    fn with_note(mut self, leader: u32, root: u32, is_unread: bool) -> Self {
        if leader != root {
            let what = if is_unread { "cannot read" } else { "finds no checkpoint in" };
            let directory = &self.source.directory;
            self.notes.push(format!(
                "rank {leader} looked for checkpoints, because rank {root} {what} {directory}"
            ));
        }
        self
    }

    /// The next proposal, as text; empty if nothing is left, and training begins from the start.
    pub(super) fn offer(&mut self) -> Result<Vec<u8>, CheckpointLoadError> {
        let Some((path, manifest)) = self.search.offer()? else { return Ok(Vec::new()) };
        let path = path.to_string_lossy().into_owned();
        let offer = CheckpointOffer { path, manifest: manifest.encode() };
        Ok(postcard::to_stdvec(&offer).expect("texts are always encoded"))
    }

    /// Passes over the checkpoint of a step, which was offered.
    pub(super) fn pass_over(&mut self, step: u64, damage: Damage) {
        self.search.pass_over(step, damage);
    }

    /// Notes on the search, for people.
    pub(super) fn notes(&mut self) -> &mut Vec<String> {
        &mut self.notes
    }

    /// The search has ended with this step.
    ///
    /// # Errors
    /// Those of [`tidy`].
    pub(super) fn conclude(
        self,
        step: Option<Step>,
        ports: ResumePorts<'_>,
    ) -> Result<(), CheckpointLoadError> {
        let mut notes: Vec<String> = Vec::new();
        for (name, damage) in self.search.passed_over() {
            warn!(checkpoint = name, %damage, "passed over");
            notes.push(format!("{name} was passed over: {damage}"));
        }
        notes.extend(self.notes);
        tidy(self.source, step, notes, ports)
    }
}

/// Training begins from the start, even if there are checkpoints. Called at the root.
///
/// # Errors
/// Those of [`tidy`].
pub(in crate::state::training) fn begin_anew(
    source: &CheckpointSource,
    ports: ResumePorts<'_>,
) -> Result<(), CheckpointLoadError> {
    tidy(source, None, Vec::new(), ports)
}

/// Clears the directory of checkpoints that training from this step makes invalid, and tells the driver.
///
/// # Errors
/// The user has chosen the step, and a later checkpoint cannot be set aside. Where the newest one is taken, those after it
/// are damaged: they are passed over again.
fn tidy(
    source: &CheckpointSource,
    step: Option<Step>,
    mut notes: Vec<String>,
    ports: ResumePorts<'_>,
) -> Result<(), CheckpointLoadError> {
    let (directory, after) = (Path::new(&source.directory), step.map(|step| step.0));
    notes.extend(clear_partial(ports.files, directory));
    let (set_aside, troubles) = if source.exactly.is_some() || source.begins_anew {
        set_aside_all_after(ports.files, directory, after)?
    } else {
        set_aside_after(ports.files, directory, after)
    };
    notes.extend(set_aside.into_iter().map(|name| format!("set aside as {name}")));
    notes.extend(troubles);
    (ports.resumed)(step, notes);
    Ok(())
}

/// Finds the rank that leads the search: the root, or the first rank that finds a checkpoint where the root does not. Returns it, with
/// the search at that rank.
///
/// # Errors
/// [`SyncError`]: a collective failed; or the root cannot list the directory, and nobody has found a checkpoint within
/// [`READ_WITHIN`], at the root.
pub(super) fn find_search_leader<'a>(
    group: &mut dyn Communicator,
    root: u32,
    source: &'a CheckpointSource,
    ports: ResumePorts<'_>,
) -> Result<(u32, Option<LeadSearch<'a>>), SyncError> {
    let is_root = group.rank() == root;
    let of_root = is_root.then(|| LeadSearch::begin(source, ports));
    let mut told = [DirectoryFinding::of(of_root.as_ref()) as u8];
    group.broadcast(&mut told, root)?;
    if told == [DirectoryFinding::Candidate as u8] || source.exactly.is_some() {
        // The one that was asked for is the root's to read, and an error of it is told by `offer`.
        return Ok((root, of_root.transpose().map_err(Error::Checkpoint)?));
    }
    let mut own = of_root.unwrap_or_else(|| LeadSearch::begin(source, ports));
    let mut waited = Duration::ZERO;
    loop {
        let mut found = vec![0; group.world_size() as usize];
        group.all_gather(&[DirectoryFinding::of(Some(&own)) as u8], &mut found)?;
        if let Some(leader) = leader(&found, root) {
            let lead = own.ok().filter(|_| group.rank() == leader).map(|search| {
                search.with_note(
                    leader,
                    root,
                    found[root as usize] == DirectoryFinding::Unread as u8,
                )
            });
            return Ok((leader, lead));
        }
        if waited >= READ_WITHIN || is_planted(Bug::UnlistedAtOnceFatal) {
            // The others learn it from the broken group.
            let lead = if is_root { Some(own.map_err(Error::Checkpoint)?) } else { None };
            return Ok((root, lead));
        }
        if let Some(trouble) = trouble(&own).filter(|_| is_root && waited.is_zero()) {
            let seconds = READ_WITHIN.as_secs();
            (ports.warn)(format!("{trouble}; it is tried again for {seconds} s"));
        }
        (ports.pause)(READ_AGAIN_AFTER);
        waited += READ_AGAIN_AFTER;
        own = LeadSearch::begin(source, ports);
    }
}

/// The rank that leads, by the findings of all ranks; `None` while the root cannot read the directory and no rank has
/// found a checkpoint.
fn leader(found: &[u8], root: u32) -> Option<u32> {
    let first = (0..).zip(found).find(|(_, found)| **found == DirectoryFinding::Candidate as u8);
    let root_reads = found[root as usize] != DirectoryFinding::Unread as u8;
    first.map(|(rank, _)| rank).or_else(|| root_reads.then_some(root))
}

/// Reason for which the directory, or a checkpoint in it, could not be read; `None` if there was no such failure.
fn trouble(search: &Result<LeadSearch<'_>, CheckpointLoadError>) -> Option<String> {
    match search {
        Ok(lead) => {
            let damage = lead.search.unreadable()?;
            Some(format!("a checkpoint in {} cannot be read: {damage}", lead.source.directory))
        }
        Err(error) => Some(chain(error)),
    }
}

impl DirectoryFinding {
    fn of(search: Option<&Result<LeadSearch<'_>, CheckpointLoadError>>) -> Self {
        match search {
            Some(Ok(lead)) if lead.search.has_candidate() => Self::Candidate,
            Some(search) if trouble(search).is_none() => Self::Nothing,
            _ => Self::Unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_finds_a_checkpoint_leads_where_the_root_does_not() {
        let [unread, nothing, candidate] =
            [DirectoryFinding::Unread, DirectoryFinding::Nothing, DirectoryFinding::Candidate]
                .map(|found| found as u8);
        assert_eq!(leader(&[nothing, candidate, candidate], 0), Some(1));
        assert_eq!(leader(&[unread, unread, candidate], 1), Some(2));
        assert_eq!(leader(&[candidate, nothing], 1), Some(0));
        // The root's word counts: a rank that lists an empty directory may lack the mount.
        assert_eq!(leader(&[nothing, unread], 0), Some(0));
        assert_eq!(leader(&[nothing, unread], 1), None);
        assert_eq!(leader(&[unread, unread], 0), None);
    }
}
