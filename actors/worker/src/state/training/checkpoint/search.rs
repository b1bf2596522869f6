//! The search for a checkpoint, and the rank that leads it. The root leads. If it cannot read the directory, or does not
//! find the job's last checkpoint there, the first rank that finds it leads in its place, since a single host may lack the
//! mount or see an old state of it. While no rank finds it, and the job may not begin without it or a rank cannot read the
//! directory, the store counts as faulty rather than a host, and all ranks try again. Called by `resume`, on every member at
//! once.

use std::cmp::Reverse;
use std::path::Path;
use std::time::Duration;

use elastic_checkpoint::{
    CheckpointLoadError, CheckpointSearch, CheckpointTrace, Damage, clear_partial, set_aside_after,
    set_aside_all_after,
};
use elastic_collectives::{Communicator, CommunicatorExt as _};
use elastic_protocol::Step;
use elastic_protocol::messages::{CheckpointSource, LastCheckpoint};
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::resume::ResumePorts;
use crate::state::training::error::Error;
use crate::state::training::life::chain;
use crate::state::training::sync::SyncError;

/// Pause before a directory is read again that the root could not read; the first pause before a checkpoint's data are.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Total length of the pauses after which the members try again to read the directory, or data of a checkpoint. After that
/// the root fails, or an earlier checkpoint is taken.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// A search for a checkpoint, at the rank that leads it.
pub(super) struct LeadSearch<'a> {
    source: &'a CheckpointSource,
    search: CheckpointSearch,
    notes: Vec<String>,
    /// Whether neither the job's last checkpoint was found, nor a later one.
    is_gone: bool,
    /// A proposal whose data could not be read, to be made again.
    again: Option<Vec<u8>>,
    /// Total length of the pauses before proposals were made again.
    waited: Duration,
}

/// A proposal of the leading rank. The others read an empty text if there is nothing to propose.
#[derive(Deserialize, Serialize)]
pub(super) struct CheckpointOffer {
    /// The directory of the step.
    pub(super) path: String,
    /// The manifest's text.
    pub(super) manifest: Vec<u8>,
}

/// The number in a rank's look that means no step.
const NO_STEP: u64 = u64::MAX;

/// A rank's look into the directory, as it tells the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct DirectoryLook {
    found: DirectoryFinding,
    /// The newest step that it can offer.
    newest: Option<u64>,
}

/// The result of a rank's look into the directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
enum DirectoryFinding {
    /// It cannot read it, or was not asked.
    Unread = 0,
    /// No checkpoint, or not the job's last one.
    Nothing = 1,
    /// A checkpoint: the job's last one, or a later one, if it has any.
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
                let mut search = CheckpointSearch::newest(files, directory, name)?;
                if let Some(last) =
                    source.last.as_ref().filter(|it| it.directory != source.directory)
                {
                    search.add_from(files, Path::new(&last.directory), last.step.0);
                }
                search
            }
        };
        let is_gone = source
            .last
            .as_ref()
            .is_some_and(|last| search.trace_of(last.step.0) != CheckpointTrace::There);
        let (notes, again, waited) = (Vec::new(), None, Duration::ZERO);
        Ok(Self { source, search, notes, is_gone, again, waited })
    }

    /// Adds a note that names the leader, if the root does not lead.
    fn with_note(mut self, leader: u32, root: u32, is_unread: bool) -> Self {
        if leader != root {
            let what = match (is_unread, &self.source.last) {
                (true, _) => "cannot read".to_owned(),
                (false, None) => "finds no checkpoint in".to_owned(),
                (false, Some(last)) => format!("does not find that of step {} in", last.step),
            };
            let directory = &self.source.directory;
            self.notes.push(format!(
                "rank {leader} looked for checkpoints, because rank {root} {what} {directory}"
            ));
        }
        self
    }

    /// The next proposal, as text; empty if nothing is left, and training begins from the start.
    pub(super) fn offer(&mut self) -> Result<Vec<u8>, CheckpointLoadError> {
        if let Some(again) = self.again.take() {
            return Ok(again);
        }
        let Some((path, manifest)) = self.search.offer()? else { return Ok(Vec::new()) };
        let path = path.to_string_lossy().into_owned();
        let offer = CheckpointOffer { path, manifest: manifest.encode() };
        Ok(postcard::to_stdvec(&offer).expect("texts are always encoded"))
    }

    /// Handles an offered checkpoint that was not taken. If its data cannot be read, it is offered again after a pause, which
    /// doubles each time, until [`READ_WITHIN`]. Otherwise it is passed over.
    ///
    /// # Errors
    /// It cannot be read, and training may not begin without it.
    pub(super) fn not_taken(
        &mut self,
        (offer, path, step): (Vec<u8>, String, u64),
        damage: Damage,
        ports: ResumePorts<'_>,
    ) -> Result<(), CheckpointLoadError> {
        if matches!(damage, Damage::Unreadable { .. }) {
            let pause = self.waited.max(READ_AGAIN_AFTER).min(READ_WITHIN - self.waited);
            if !pause.is_zero() {
                if self.waited.is_zero() {
                    (ports.warn)(self.unreadable(&damage));
                }
                (ports.pause)(pause);
                self.waited += pause;
                self.again = Some(offer);
                return Ok(());
            }
            if self.source.last.as_ref().is_some_and(|last| last.must_exist && last.step.0 <= step)
            {
                return Err(CheckpointLoadError::Damaged { path: path.into(), damage });
            }
        }
        if matches!(damage, Damage::OtherState { .. } | Damage::Undecodable { .. }) {
            // The program has changed: an earlier checkpoint fits no better, and would lose steps.
            return Err(CheckpointLoadError::Damaged { path: path.into(), damage });
        }
        self.search.pass_over(step, damage);
        Ok(())
    }

    fn unreadable(&self, damage: &Damage) -> String {
        let (directory, seconds) = (&self.source.directory, READ_WITHIN.as_secs());
        format!(
            "a checkpoint in {directory} cannot be read: {damage}; it is tried again for {seconds} s"
        )
    }

    /// The job's last checkpoint, if it was not found, nor a later one.
    pub(super) fn gone(&self) -> Option<&LastCheckpoint> {
        self.source.last.as_ref().filter(|_| self.is_gone)
    }

    /// Ends the search, since the job's last checkpoint is gone and training may not begin without it. The driver is told, and
    /// ends the job. Nothing is set aside: the job may be started again from what is there.
    pub(super) fn give_up(
        self,
        gone: LastCheckpoint,
        ports: ResumePorts<'_>,
    ) -> CheckpointLoadError {
        (ports.resumed)(self.search.newest_step().map(Step), true, self.notes);
        CheckpointLoadError::Gone { step: gone.step.0, path: gone.directory.into() }
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
        let is_gone = self.is_gone;
        let mut notes: Vec<String> = Vec::new();
        for (name, damage) in self.search.passed_over() {
            warn!(checkpoint = name, %damage, "passed over");
            notes.push(format!("{name} was passed over: {damage}"));
        }
        notes.extend(self.notes);
        tidy(self.source, (step, is_gone), notes, ports)
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
    tidy(source, (None, false), Vec::new(), ports)
}

/// Clears the directory of checkpoints that training from this step makes invalid, and tells the driver.
///
/// # Errors
/// The user has chosen the step, and a later checkpoint cannot be set aside. Where the newest one is taken, those after it
/// are damaged: they are passed over again.
fn tidy(
    source: &CheckpointSource,
    (step, is_gone): (Option<Step>, bool),
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
    (ports.resumed)(step, is_gone, notes);
    Ok(())
}

/// Finds the rank that leads the search: the root, or the first rank that finds the job's last checkpoint where the root does
/// not. Returns it, with the search at that rank.
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
    let mut told = [DirectoryLook::of(of_root.as_ref()).found as u8];
    group.broadcast(&mut told, root)?;
    if told == [DirectoryFinding::Candidate as u8] || source.exactly.is_some() {
        // The one that was asked for is the root's to read, and an error of it is told by `offer`.
        return Ok((root, of_root.transpose().map_err(Error::Checkpoint)?));
    }
    let mut own = of_root.unwrap_or_else(|| LeadSearch::begin(source, ports));
    let mut waited = Duration::ZERO;
    loop {
        let mut looks = vec![0; group.world_size() as usize * LOOK_BYTES];
        group.all_gather(&DirectoryLook::of(Some(&own)).encode(), &mut looks)?;
        let looks: Vec<DirectoryLook> =
            looks.chunks_exact(LOOK_BYTES).map(DirectoryLook::decode).collect();
        let is_over = waited >= READ_WITHIN || is_planted(Bug::UnlistedAtOnceFatal);
        let waits_for_last = !is_over
            && source.last.as_ref().is_some_and(|last| {
                last.must_exist || looks.iter().any(|look| look.found == DirectoryFinding::Unread)
            });
        if let Some(leader) = leader(&looks, root, waits_for_last) {
            let lead = own.ok().filter(|_| group.rank() == leader).map(|search| {
                let is_unread = looks[root as usize].found == DirectoryFinding::Unread;
                search.with_note(leader, root, is_unread)
            });
            return Ok((leader, lead));
        }
        if is_over {
            // The others learn it from the broken group.
            let lead = if is_root { Some(own.map_err(Error::Checkpoint)?) } else { None };
            return Ok((root, lead));
        }
        if is_root && waited.is_zero() {
            let (trouble, seconds) = (trouble(&own, source), READ_WITHIN.as_secs());
            (ports.warn)(format!("{trouble}; it is tried again for {seconds} s"));
        }
        (ports.pause)(READ_AGAIN_AFTER);
        waited += READ_AGAIN_AFTER;
        own = LeadSearch::begin(source, ports);
    }
}

/// The rank that leads, by the looks of all ranks: the first that finds the checkpoint. `None` while all wait for it: the root
/// cannot read the directory, or the job's last checkpoint is awaited. If that is not found, the rank with the newest one leads.
fn leader(looks: &[DirectoryLook], root: u32, waits_for_last: bool) -> Option<u32> {
    let ranks = || (0..).zip(looks);
    let first = ranks().find(|(_, look)| look.found == DirectoryFinding::Candidate);
    if first.is_some() || waits_for_last {
        return first.map(|(rank, _)| rank);
    }
    let newest = ranks().filter(|(_, look)| look.newest.is_some());
    let newest = newest.max_by_key(|(rank, look)| (look.newest, *rank == root, Reverse(*rank)));
    let root_reads = looks[root as usize].found != DirectoryFinding::Unread;
    newest.map(|(rank, _)| rank).or_else(|| root_reads.then_some(root))
}

/// Reason for which all ranks look again, as the root knows it.
fn trouble(
    search: &Result<LeadSearch<'_>, CheckpointLoadError>,
    source: &CheckpointSource,
) -> String {
    let directory = &source.directory;
    match (search, &source.last) {
        (Err(error), _) => chain(error),
        (Ok(lead), last) => match (lead.search.unreadable(), last) {
            (Some(damage), _) => format!("a checkpoint in {directory} cannot be read: {damage}"),
            (None, Some(last)) => {
                format!("the checkpoint of step {} is not found in {}", last.step, last.directory)
            }
            (None, None) => format!("the checkpoints in {directory} cannot be read"),
        },
    }
}

/// Bytes of an encoded [`DirectoryLook`].
const LOOK_BYTES: usize = 9;

impl DirectoryLook {
    fn of(search: Option<&Result<LeadSearch<'_>, CheckpointLoadError>>) -> Self {
        let Some(Ok(lead)) = search else {
            return Self { found: DirectoryFinding::Unread, newest: None };
        };
        let found = match &lead.source.last {
            Some(last) => match lead.search.trace_of(last.step.0) {
                CheckpointTrace::There => DirectoryFinding::Candidate,
                CheckpointTrace::Unreadable => DirectoryFinding::Unread,
                CheckpointTrace::None => DirectoryFinding::Nothing,
            },
            None if lead.search.has_candidate() => DirectoryFinding::Candidate,
            None if lead.search.unreadable().is_some() => DirectoryFinding::Unread,
            None => DirectoryFinding::Nothing,
        };
        Self { found, newest: lead.search.newest_step() }
    }

    fn encode(self) -> [u8; LOOK_BYTES] {
        let mut bytes = [self.found as u8; LOOK_BYTES];
        bytes[1..].copy_from_slice(&self.newest.unwrap_or(NO_STEP).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let found = match bytes[0] {
            2 => DirectoryFinding::Candidate,
            1 => DirectoryFinding::Nothing,
            _ => DirectoryFinding::Unread,
        };
        let newest = bytes[1..].try_into().map_or(NO_STEP, u64::from_le_bytes);
        Self { found, newest: (newest != NO_STEP).then_some(newest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_finds_a_checkpoint_leads_where_the_root_does_not() {
        let [unread, nothing, candidate] =
            [DirectoryFinding::Unread, DirectoryFinding::Nothing, DirectoryFinding::Candidate]
                .map(|found| DirectoryLook { found, newest: None });
        let leader = |looks: &[DirectoryLook], root| leader(looks, root, false);
        assert_eq!(leader(&[nothing, candidate, candidate], 0), Some(1));
        assert_eq!(leader(&[unread, unread, candidate], 1), Some(2));
        assert_eq!(leader(&[candidate, nothing], 1), Some(0));
        // The root's word counts: a rank that lists an empty directory may lack the mount.
        assert_eq!(leader(&[nothing, unread], 0), Some(0));
        assert_eq!(leader(&[nothing, unread], 1), None);
        assert_eq!(leader(&[unread, unread], 0), None);
    }

    #[test]
    fn l_1_where_nobody_finds_the_last_checkpoint_all_wait_and_then_the_newest_is_taken() {
        let found = |found, newest| DirectoryLook { found, newest };
        let older = |newest| found(DirectoryFinding::Nothing, Some(newest));
        let candidate = found(DirectoryFinding::Candidate, Some(9));
        let nothing = found(DirectoryFinding::Nothing, None);
        assert_eq!(leader(&[older(5), candidate], 0, true), Some(1), "it is found");
        assert_eq!(leader(&[older(5), nothing, older(7)], 0, true), None);
        assert_eq!(leader(&[older(5), nothing, older(7), older(7)], 0, false), Some(2));
        assert_eq!(leader(&[older(7), older(7)], 1, false), Some(1), "the root, if it has it");
    }

    #[test]
    fn a_look_is_told_as_it_is() {
        for found in
            [DirectoryFinding::Unread, DirectoryFinding::Nothing, DirectoryFinding::Candidate]
        {
            for newest in [None, Some(0), Some(1 << 40)] {
                let look = DirectoryLook { found, newest };
                assert_eq!(DirectoryLook::decode(&look.encode()), look);
            }
        }
    }
}
