//! The change from one table to the next, for members that hold the former one. Made by the driver, applied by
//! a worker's State.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Assignment, HostSeats};
use crate::ids::HostName;

/// The change from one table to another, host by host. It carries the digests of both, so that it is never
/// applied to any table but its base.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AssignmentDelta {
    base: u64,
    digest: u64,
    edits: Vec<Edit>,
}

/// One step through the base's hosts.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Edit {
    /// This number of the base's next hosts stay as they are.
    Keep(u32),
    /// This number of the base's next hosts leave, or stand elsewhere.
    Drop(u32),
    /// This host comes next.
    Put(Arc<HostSeats>),
}

/// The delta was made against another table than the one that is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the delta is not for the table that is held")]
pub struct BaseMismatch;

impl AssignmentDelta {
    /// The delta that turns `base` into `next`.
    ///
    /// The hosts that are kept are the longest sequence that has the same order in both (patience sorting), so
    /// a host that changes its place costs as much as a new one. Takes O(n log n) for n hosts.
    pub fn between(base: &Assignment, next: &Assignment) -> Self {
        let places: BTreeMap<&HostName, usize> =
            base.hosts.iter().enumerate().map(|(place, host)| (&host.name, place)).collect();
        let same: Vec<Option<usize>> = next
            .hosts
            .iter()
            .map(|host| places.get(&host.name).copied().filter(|place| base.hosts[*place] == *host))
            .collect();
        let kept = longest_ascent(&same);
        let mut script = Script::default();
        let mut at = 0;
        for (host, kept_from) in next.hosts.iter().zip(kept) {
            match kept_from {
                Some(place) => {
                    script.drop(place - at);
                    script.keep();
                    at = place + 1;
                }
                None => script.edits.push(Edit::Put(Arc::clone(host))),
            }
        }
        script.drop(base.hosts.len() - at);
        Self { base: base.digest, digest: next.digest, edits: script.edits }
    }

    /// Number of members that the delta names.
    pub fn members_named(&self) -> u32 {
        let put = self.edits.iter().map(|edit| match edit {
            Edit::Put(host) => host.len(),
            Edit::Keep(_) | Edit::Drop(_) => 0,
        });
        put.sum()
    }

    /// The digest of the table that the delta applies to.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The digest of the table that results.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Applies the delta to the table that is held; gives the next table.
    ///
    /// # Errors
    /// [`BaseMismatch`] if the delta was made against another table.
    pub fn apply(&self, held: &Assignment) -> Result<Assignment, BaseMismatch> {
        let next = self.apply_unchecked(held)?;
        if held.digest != self.base || next.digest != self.digest {
            return Err(BaseMismatch);
        }
        Ok(next)
    }

    /// Like `apply`, without a check of the digests: for a caller that knows which table is held.
    ///
    /// # Errors
    /// [`BaseMismatch`] if the table has other than the expected number of hosts, or the result too many
    /// members.
    pub fn apply_unchecked(&self, held: &Assignment) -> Result<Assignment, BaseMismatch> {
        let mut rest = held.hosts.as_slice();
        let mut take = |number: u32| {
            let number = usize::try_from(number).map_err(|_| BaseMismatch)?;
            let (taken, others) = rest.split_at_checked(number).ok_or(BaseMismatch)?;
            rest = others;
            Ok(taken)
        };
        let mut hosts = Vec::new();
        for edit in &self.edits {
            match edit {
                Edit::Keep(number) => hosts.extend(take(*number)?.iter().cloned()),
                Edit::Drop(number) => {
                    take(*number)?;
                }
                Edit::Put(host) => hosts.push(Arc::clone(host)),
            }
        }
        if !rest.is_empty() {
            return Err(BaseMismatch);
        }
        Assignment::of_hosts(hosts).ok_or(BaseMismatch)
    }
}

#[derive(Default)]
struct Script {
    edits: Vec<Edit>,
}

impl Script {
    fn keep(&mut self) {
        match self.edits.last_mut() {
            Some(Edit::Keep(number)) => *number += 1,
            _ => self.edits.push(Edit::Keep(1)),
        }
    }

    fn drop(&mut self, number: usize) {
        if number > 0 {
            self.edits.push(Edit::Drop(u32::try_from(number).unwrap_or(u32::MAX)));
        }
    }
}

/// The given places, without those outside of their longest ascending subsequence.
fn longest_ascent(places: &[Option<usize>]) -> Vec<Option<usize>> {
    // `ends`: for each length of a sequence, the index of its smallest possible end. `before`: for each index,
    // its predecessor.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; places.len()];
    for (index, place) in places.iter().enumerate() {
        let Some(place) = place else { continue };
        let length = ends.partition_point(|end| places[*end].is_some_and(|other| other < *place));
        before[index] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut kept = vec![None; places.len()];
    let mut next = ends.last().copied();
    while let Some(index) = next {
        kept[index] = places[index];
        next = before[index];
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::{table, worker};
    use super::*;

    fn change(base: &[(&str, u32)], next: &[(&str, u32)]) -> AssignmentDelta {
        let (base, next) = (table(base), table(next));
        let delta = AssignmentDelta::between(&base, &next);
        assert_eq!(delta.apply(&base), Ok(next));
        delta
    }

    #[test]
    fn a_delta_is_as_small_as_the_change() {
        let four = [("a", 2), ("b", 2), ("c", 2), ("d", 2)];
        assert_eq!(change(&four, &four).edits, [Edit::Keep(4)]);
        let lost = change(&four, &[("a", 2), ("c", 2), ("d", 2)]);
        assert_eq!(lost.edits, [Edit::Keep(1), Edit::Drop(1), Edit::Keep(2)]);
        let come = change(&[("a", 2)], &[("a", 2), ("b", 1)]);
        assert_eq!(come.members_named(), 1);
        let smaller = change(&four, &[("a", 2), ("b", 1), ("c", 2), ("d", 2)]);
        assert_eq!(smaller.members_named(), 1);
    }

    #[test]
    fn a_host_that_changes_its_place_costs_no_more_than_one_that_comes() {
        let delta = change(&[("a", 2), ("b", 2), ("c", 2)], &[("c", 2), ("a", 2), ("b", 2)]);
        assert_eq!(delta.members_named(), 2);
        let delta = change(&[("a", 2), ("b", 2), ("c", 2)], &[("b", 2), ("c", 2), ("a", 2)]);
        assert_eq!(delta.members_named(), 2);
    }

    #[test]
    fn another_life_of_a_process_is_a_change() {
        let base = Assignment::new([worker("a", 0, 1), worker("b", 0, 2)]);
        let next = Assignment::new([worker("a", 0, 3), worker("b", 0, 2)]);
        let delta = AssignmentDelta::between(&base, &next);
        assert_eq!((delta.members_named(), delta.apply(&base)), (1, Ok(next)));
    }

    #[test]
    fn a_delta_is_never_applied_to_another_table() {
        let base = table(&[("a", 2), ("b", 2), ("c", 2)]);
        let delta = AssignmentDelta::between(&base, &table(&[("a", 2), ("c", 2)]));
        let alike = table(&[("a", 2), ("x", 2), ("c", 2)]);
        assert!(delta.apply_unchecked(&alike).is_ok(), "it would fit");
        assert_eq!(delta.apply(&alike), Err(BaseMismatch));
        assert_eq!(delta.apply(&table(&[("a", 2)])), Err(BaseMismatch));
        assert_eq!(delta.apply(&Assignment::default()), Err(BaseMismatch));
    }

    proptest! {
        #[test]
        fn any_table_is_reached_from_any_other(
            base in vec((0_u8..12, 1_u32..4), 0..12),
            next in vec((0_u8..12, 1_u32..4), 0..12),
        ) {
            let of = |hosts: &[(u8, u32)]| {
                Assignment::new(hosts.iter().enumerate().flat_map(|(index, (host, slots))| {
                    let lives = index as u64 % 2;
                    (0..*slots).map(move |slot| worker(&format!("h{host}"), slot, lives))
                }))
            };
            let (base, next) = (of(&base), of(&next));
            let delta = AssignmentDelta::between(&base, &next);
            prop_assert!(delta.members_named() <= next.world_size());
            prop_assert_eq!(delta.apply(&base), Ok(next));
        }
    }

    #[test]
    fn a_delta_that_was_changed_on_its_way_is_refused() {
        let base = table(&[("a", 2), ("b", 2), ("c", 2)]);
        let next = table(&[("a", 2), ("c", 2)]);
        let mut delta = AssignmentDelta::between(&base, &next);
        delta.edits = vec![Edit::Drop(1), Edit::Keep(2)];
        assert_eq!(delta.apply(&base), Err(BaseMismatch));
        delta.edits = vec![Edit::Keep(u32::MAX)];
        assert_eq!(delta.apply(&base), Err(BaseMismatch));
    }
}
