//! [`OperationWatch`]: the position of a process among its collectives, so that a hang can be named. The threads that
//! run collectives write it, the thread of the worker's actors reads it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use elastic_protocol::messages::{CollectivePosition, CurrentCollective};
use ring::digest;

use crate::communicator::Communicator;
use crate::error::CollectiveError;
use crate::operation::HostOperation;
use crate::waited::{WaitReading, WaitUnderWay, WaitedTime};
use crate::wire::{OperationKind, OperationSignature};

/// The position of a process among its collectives. Clones are the same watch.
///
/// Each value is read alone, so a reading may mix two moments. A thread that stands still gives the same reading
/// twice; readers wait for that.
#[derive(Clone, Debug, Default)]
pub struct OperationWatch(Arc<WatchedPosition>);

#[derive(Debug, Default)]
struct WatchedPosition {
    /// Calls on the group of all ranks that were begun in this generation.
    entered: AtomicU64,
    /// Calls that are under way, on all groups, and on the group of all ranks.
    inside: AtomicU32,
    inside_of_all: AtomicU32,
    /// The code of the operation begun last; 0 before the first of a call.
    kind: AtomicU32,
    /// The group of the call begun last, and its number of ranks.
    group: AtomicU64,
    ranks: AtomicU32,
    waited: WaitedTime,
}

/// A group whose calls a watch sees.
#[derive(Clone, Debug)]
pub struct WatchedGroup {
    watch: OperationWatch,
    /// The same number on each rank of the group; [`ALL`] for that of all ranks.
    group: u64,
    /// The number of its ranks; zero for the group of all.
    ranks: u32,
    /// Number of splits of the group: all of its ranks split it together.
    splits: Arc<AtomicU64>,
}

/// The number of the group of all ranks.
const ALL: u64 = 0;

/// A call that is under way. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct WatchedCall(Option<WatchedGroup>);

impl OperationWatch {
    /// Begins to count anew, while no call is under way.
    pub fn begin_generation(&self) {
        self.0.entered.store(0, Ordering::Relaxed);
    }

    /// The watch over the group of all ranks.
    pub fn over_all(&self) -> WatchedGroup {
        WatchedGroup { watch: self.clone(), group: ALL, ranks: 0, splits: Arc::default() }
    }

    /// The present place; in which section of its program the thread is, its owner knows.
    pub fn position(&self) -> CollectivePosition {
        let inside = (self.0.inside.load(Ordering::Acquire) > 0).then(|| {
            let code = self.0.kind.load(Ordering::Relaxed);
            let mut kinds = OperationKind::ALL.into_iter();
            let kind = kinds.find(|kind| u32::from(*kind as u8) == code);
            // While calls of several groups are under way, one of all ranks counts: nobody goes on without it.
            let is_of_all = self.0.inside_of_all.load(Ordering::Relaxed) > 0;
            CurrentCollective {
                kind: kind.map_or_else(|| "collective".to_owned(), |kind| kind.to_string()),
                is_of_all,
                group: if is_of_all { ALL } else { self.0.group.load(Ordering::Relaxed) },
                ranks: if is_of_all { 0 } else { self.0.ranks.load(Ordering::Relaxed) },
            }
        });
        let entered = self.0.entered.load(Ordering::Relaxed);
        CollectivePosition { entered, inside, section: None }
    }

    /// The present moment, with the time that the process has been blocked in collectives.
    pub fn waited(&self) -> WaitReading {
        self.0.waited.reading()
    }
}

impl WatchedGroup {
    /// The watch over the sub-group of this colour, of so many ranks, that the last split of this group has made.
    pub fn over_part(&self, colour: u32, ranks: u32) -> Self {
        let splits = self.splits.load(Ordering::Relaxed);
        let mut name = [0; 20];
        name[..8].copy_from_slice(&self.group.to_le_bytes());
        name[8..16].copy_from_slice(&splits.to_le_bytes());
        name[16..].copy_from_slice(&colour.to_le_bytes());
        let digest = digest::digest(&digest::SHA256, &name);
        let folded =
            digest.as_ref().iter().take(8).fold(0, |folded, byte| folded << 8 | u64::from(*byte));
        let group = folded.max(ALL + 1);
        Self { watch: self.watch.clone(), group, ranks, splits: Arc::default() }
    }

    const fn is_of_all(&self) -> bool {
        self.group == ALL
    }

    /// A call begins.
    pub(crate) fn enter(group: Option<&Self>) -> WatchedCall {
        if let Some(entered @ Self { watch, .. }) = group {
            let is_of_all = entered.is_of_all();
            watch.0.kind.store(0, Ordering::Relaxed);
            watch.0.group.store(entered.group, Ordering::Relaxed);
            watch.0.ranks.store(entered.ranks, Ordering::Relaxed);
            watch.0.entered.fetch_add(u64::from(is_of_all), Ordering::Relaxed);
            watch.0.inside_of_all.fetch_add(u32::from(is_of_all), Ordering::Relaxed);
            watch.0.inside.fetch_add(1, Ordering::Release);
        }
        WatchedCall(group.cloned())
    }

    /// A thread begins to wait for collectives.
    pub(crate) fn wait(group: Option<&Self>) -> WaitUnderWay {
        WaitedTime::begin(group.map(|group| &group.watch.0.waited))
    }

    /// A communicator whose operations are named to the watch, if there is one.
    pub(crate) fn naming(
        group: Option<&Self>,
        inner: Box<dyn Communicator>,
    ) -> Box<dyn Communicator> {
        match group {
            Some(group) => Box::new(NamingCommunicator { inner, group: group.clone() }),
            None => inner,
        }
    }
}

impl Drop for WatchedCall {
    fn drop(&mut self) {
        if let Some(left @ WatchedGroup { watch, .. }) = &self.0 {
            watch.0.inside.fetch_sub(1, Ordering::Release);
            watch.0.inside_of_all.fetch_sub(u32::from(left.is_of_all()), Ordering::Relaxed);
        }
    }
}

/// A communicator that tells the watch which operation it runs.
struct NamingCommunicator {
    inner: Box<dyn Communicator>,
    group: WatchedGroup,
}

impl NamingCommunicator {
    fn begins(&self, kind: OperationKind) {
        self.group.watch.0.kind.store(u32::from(kind as u8), Ordering::Relaxed);
    }
}

impl Communicator for NamingCommunicator {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }

    fn term(&self) -> u64 {
        self.inner.term()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn run(&mut self, operation: HostOperation<'_>) -> Result<(), CollectiveError> {
        self.begins(operation.kind());
        self.inner.run(operation)
    }

    fn run_part(
        &mut self,
        signature: OperationSignature,
        part: HostOperation<'_>,
    ) -> Result<(), CollectiveError> {
        self.begins(signature.kind);
        self.inner.run_part(signature, part)
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        self.begins(OperationKind::Split);
        self.group.splits.fetch_add(1, Ordering::Relaxed);
        self.inner.split(colour, key)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self.inner.as_any_mut()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.inner.set_operation_deadline(deadline);
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asynchronous::{AsyncCommunicator, ProgressThread};
    use crate::communicator::CommunicatorExt as _;
    use crate::solo::SoloCommunicator;

    #[test]
    fn a_call_is_seen_while_it_is_under_way_and_counted_on_the_group_of_all() {
        let watch = OperationWatch::default();
        let group = Box::new(SoloCommunicator::new());
        let (progress, all) = (ProgressThread::new(), watch.over_all());
        let group = AsyncCommunicator::watched(group, None, &progress, Some(all));
        assert_eq!(watch.position(), CollectivePosition::default());
        let seen = group.call(|group| {
            let before = watch.position();
            group.barrier().map(|()| (before, watch.position()))
        });
        let (before, named) = seen.expect("a world of one");
        let inside = |kind: &str| {
            let kind = kind.to_owned();
            Some(CurrentCollective { kind, is_of_all: true, group: ALL, ranks: 0 })
        };
        assert_eq!((before.entered, before.inside), (1, inside("collective")));
        assert_eq!((named.entered, named.inside), (1, inside("barrier")));
        assert_eq!((watch.position().entered, watch.position().inside), (1, None));

        let part = group.beside(Box::new(SoloCommunicator::new()), 7);
        let launched = watch.clone();
        let seen = part.launch(move |group| group.barrier().map(|()| launched.position()));
        let seen = seen.wait().expect("a world of one");
        let inside = seen.inside.expect("the barrier");
        assert_eq!((seen.entered, inside.kind.as_str(), inside.is_of_all), (1, "barrier", false));
        assert!(inside.group != ALL && inside.ranks == 1, "{inside:?}");
        watch.begin_generation();
        assert_eq!(watch.position().entered, 0);
    }

    #[test]
    fn a_sub_group_has_one_number_on_all_ranks_and_each_other_one_another() {
        let rank = || {
            let watch = OperationWatch::default();
            let all = watch.over_all();
            let mut named = WatchedGroup::naming(Some(&all), Box::new(SoloCommunicator::new()));
            let mut split = |colour: Option<u32>| {
                let _part = named.split(colour, 0).expect("a world of one");
                all.over_part(colour.unwrap_or_default(), 2)
            };
            let first = split(Some(0));
            // A rank that is in none of the parts has split the group all the same.
            let _none = split(None);
            let (second, third) = (split(Some(0)), all.over_part(1, 2));
            let nested = first.over_part(0, 2);
            [first.group, second.group, third.group, nested.group]
        };
        let numbers = rank();
        assert_eq!(numbers, rank(), "on each rank the same");
        let distinct: std::collections::BTreeSet<u64> = numbers.into_iter().chain([ALL]).collect();
        assert_eq!(distinct.len(), 5, "{numbers:?}");
    }
}
