//! [`JobCounters`]: the log's numbers over time: steps and their rate, goodput, and the use of the slots. Used by
//! `timeline`.

use std::collections::BTreeMap;

use elastic_protocol::Time;
use elastic_protocol::messages::GoodputStatus;
use serde_json::{Map, Value, json};

use crate::log::GoodputSign;

/// The last values, to which the next ones are compared.
#[derive(Debug, Default)]
pub(super) struct JobCounters {
    step: Option<(Time, u64)>,
    buckets: Option<(Time, BTreeMap<String, f64>)>,
}

impl JobCounters {
    /// Takes the step that a generation begins from, which may be lower than the last one.
    pub(super) fn handle_step(&mut self, at: Time, step: u64) -> Vec<(&'static str, Value)> {
        let is_new = self.step.replace((at, step)).is_none_or(|(_, last)| last != step);
        if is_new { vec![("step", json!({ "step": step }))] } else { Vec::new() }
    }

    /// Takes a line about goodput. Returns the counters that it moves, by name.
    pub(super) fn handle_goodput(
        &mut self,
        at: Time,
        sign: &GoodputSign,
    ) -> Vec<(&'static str, Value)> {
        let mut counts = Vec::new();
        if let Some(step) = sign.step {
            let before = self.step.replace((at, step));
            counts.push(("step", json!({ "step": step })));
            if let Some((since, from)) = before.filter(|(since, _)| *since < at) {
                let rate = step.saturating_sub(from) as f64 / at.since(since).as_secs_f64();
                counts.push(("steps a second", json!({ "steps a second": rounded(rate) })));
            }
        }
        let GoodputStatus { last_10_min, buckets, .. } = &sign.goodput;
        if let Some(share) = last_10_min {
            let percent = rounded(share * 100.0);
            counts.push(("goodput of 10 min in percent", json!({ "percent": percent })));
        }
        if let Some((since, from)) = self.buckets.replace((at, buckets.clone()))
            && since < at
        {
            let seconds = at.since(since).as_secs_f64();
            let slots = |(bucket, total): (&String, &f64)| {
                let spent = total - from.get(bucket).copied().unwrap_or_default();
                (bucket.clone(), json!(rounded(spent.max(0.0) / seconds)))
            };
            let values: Map<String, Value> = buckets.iter().map(slots).collect();
            counts.push(("slots", Value::Object(values)));
        }
        counts
    }
}

/// Two places after the point are enough for a picture.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
