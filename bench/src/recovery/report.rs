//! The report of `recovery`: medians of all kills, for ours and each peer.

use std::collections::BTreeMap;

use serde::Serialize;

use super::kill::KillSample;
use crate::statistics::{median, percentile};

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct RecoveryReport {
    #[serde(flatten)]
    pub(crate) ours: Figures,
    /// By name, as far as they could be measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) peers: BTreeMap<&'static str, Figures>,
}

/// The figures of one contestant, in milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    kills: usize,
    median_ms: f64,
    p99_ms: f64,
    /// Medians by phase.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    phases_ms: BTreeMap<&'static str, f64>,
}

impl Figures {
    /// Of all kills; none of none.
    pub(crate) fn of(samples: &[KillSample]) -> Option<Self> {
        let totals: Vec<f64> = samples.iter().map(|sample| sample.total_ms).collect();
        let mut phases: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for (name, ms) in samples.iter().flat_map(|sample| &sample.phases_ms) {
            phases.entry(name).or_default().push(*ms);
        }
        let medians = phases.into_iter().map(|(name, ms)| Some((name, median(&ms)?)));
        Some(Self {
            kills: samples.len(),
            median_ms: median(&totals)?,
            p99_ms: percentile(&totals, 0.99)?,
            phases_ms: medians.collect::<Option<_>>()?,
        })
    }
}
