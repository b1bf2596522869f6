//! The broken links that members of one generation report. Kept by `Quarrels`.
//!
//! A member whose link breaks tells its peers why it gives up, and these report the same link. They have not seen it
//! break: a member that only passes on another one's report is no second witness, and its host has no part in the quarrel.

use std::collections::BTreeMap;

use elastic_protocol::WorkerId;
use elastic_protocol::job::shorten;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

/// Reports of broken links, by reporter and peer.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Accusations(
    #[serde(with = "crate::recording::readable::pairs")] BTreeMap<(WorkerId, WorkerId), Accusation>,
);

#[derive(Debug, Deserialize, Serialize)]
struct Accusation {
    /// The member from which the reporter has it; none if it has seen the link break itself.
    told_by: Option<WorkerId>,
    error: String,
}

impl Accusations {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Notes a report. A link that a member has seen break itself takes precedence over one that it was told of.
    pub(super) fn note(
        &mut self,
        reporter: &WorkerId,
        peer: &WorkerId,
        told_by: Option<WorkerId>,
        error: &str,
    ) {
        let told_by = told_by.filter(|_| !is_planted(Bug::HearsayCounts));
        let known = self.0.get(&(reporter.clone(), peer.clone()));
        if told_by.is_none() || known.is_none() {
            let accusation = Accusation { told_by, error: shorten(error) };
            self.0.insert((reporter.clone(), peer.clone()), accusation);
        }
    }

    /// Each pair of a witness and a peer, with a report: the witness's own one, if there is one. A witness whose own report
    /// has not come is known from the members that pass it on.
    pub(super) fn of_witnesses(self) -> BTreeMap<(WorkerId, WorkerId), String> {
        let mut reports = BTreeMap::new();
        for ((reporter, peer), accusation) in &self.0 {
            let witness = self.witness_of(reporter, peer).clone();
            let (is_own, error) = (witness == *reporter, accusation.error.clone());
            let pair = (witness, peer.clone());
            if is_own || !reports.contains_key(&pair) {
                reports.insert(pair, error);
            }
        }
        reports
    }

    /// The member that has seen the reported link break: the end of the chain of those that were told.
    fn witness_of<'a>(&'a self, reporter: &'a WorkerId, peer: &WorkerId) -> &'a WorkerId {
        let mut witness = reporter;
        // The chain is not longer than the number of reports, unless reporters name each other.
        for _ in 0..self.0.len() {
            match self.0.get(&(witness.clone(), peer.clone())) {
                Some(Accusation { told_by: Some(by), .. }) => witness = by,
                _ => break,
            }
        }
        witness
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, Incarnation};

    use super::*;

    fn worker(slot: u32) -> WorkerId {
        WorkerId { host: HostName::new("a").expect("a literal"), slot, incarnation: Incarnation(1) }
    }

    #[test]
    fn each_reporter_and_peer_counts_once() {
        let mut accusations = Accusations::default();
        assert_eq!(accusations.len(), 0);
        for (reporter, peer) in [(1, 2), (1, 2), (2, 1), (1, 3)] {
            accusations.note(&worker(reporter), &worker(peer), None, "no route");
        }
        assert_eq!(accusations.len(), 3, "bounds are on this number");
    }
}
