//! The numbers that the program reports, over time: for each name the mean over the members, and the lowest and the highest
//! of them. Used by `page`.

use std::collections::BTreeMap;

use elastic_protocol::Time;
use elastic_protocol::messages::StatusReport;
use serde::{Serialize, Serializer};

use super::history::ms;

/// Names that are charted: the first ones.
const NAMES_CHARTED_MAX: usize = 8;

/// Most points. When there would be more, two neighbours become one.
const POINTS_MAX: usize = 400;

/// Interval between two looks at reported values, in milliseconds; at first each of them is a point.
const SAMPLED_EVERY_MS: u64 = 1_000;

/// The members' values of one name, over the time of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ValueSpread {
    mean: f64,
    low: f64,
    high: f64,
    /// Number of values.
    count: f64,
}

impl ValueSpread {
    const fn of(value: f64) -> Self {
        Self { mean: value, low: value, high: value, count: 1.0 }
    }

    fn and(self, other: Self) -> Self {
        let count = self.count + other.count;
        // The mean moves by a part of the distance: no sum that could overflow.
        let share = other.count / count;
        Self {
            mean: self.mean * (1.0 - share) + other.mean * share,
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            count,
        }
    }
}

/// The reported numbers over time.
#[derive(Debug)]
pub(super) struct ReportedHistory {
    /// Time that a point stands for, in milliseconds.
    width_ms: u64,
    /// Time of the last look in milliseconds since 1970; none before the first.
    sampled: Option<u64>,
    /// Time of each point in milliseconds since 1970.
    times: Vec<u64>,
    /// For each name a value at each point; `None` if nobody had reported it.
    series: BTreeMap<String, Vec<Option<ValueSpread>>>,
}

impl Default for ReportedHistory {
    fn default() -> Self {
        let (times, series) = (Vec::new(), BTreeMap::new());
        Self { width_ms: SAMPLED_EVERY_MS, sampled: None, times, series }
    }
}

impl ReportedHistory {
    /// Takes the members' reported values, if a look is due.
    pub(super) fn handle_status(&mut self, now: Time, status: &StatusReport) {
        let is_due = |last: u64| ms(now) >= last.saturating_add(SAMPLED_EVERY_MS);
        if !self.sampled.is_none_or(is_due) {
            return;
        }
        self.sampled = Some(ms(now));
        let mut spreads: BTreeMap<&str, ValueSpread> = BTreeMap::new();
        for worker in status.workers.iter().filter(|worker| worker.rank.is_some()) {
            for (name, value) in worker.reported.iter() {
                let one = ValueSpread::of(value);
                spreads.entry(name).and_modify(|all| *all = all.and(one)).or_insert(one);
            }
        }
        if spreads.is_empty() {
            return;
        }
        for name in spreads.keys() {
            if self.series.len() < NAMES_CHARTED_MAX && !self.series.contains_key(*name) {
                self.series.insert((*name).to_owned(), vec![None; self.times.len()]);
            }
        }
        let is_over = |start: &u64| ms(now) >= start.saturating_add(self.width_ms);
        if self.times.last().is_none_or(is_over) {
            self.times.push(ms(now));
            self.series.values_mut().for_each(|values| values.push(None));
        }
        for (name, values) in &mut self.series {
            if let (Some(point), Some(new)) = (values.last_mut(), spreads.get(name.as_str())) {
                *point = Some(point.map_or(*new, |before| before.and(*new)));
            }
        }
        if self.times.len() > POINTS_MAX {
            self.widen();
        }
    }

    /// Doubles the time that a point stands for.
    fn widen(&mut self) {
        self.width_ms *= 2;
        self.times = self.times.chunks(2).map(|pair| pair[0]).collect();
        for values in self.series.values_mut() {
            let pairs = values
                .chunks(2)
                .map(|pair| pair.iter().copied().flatten().reduce(ValueSpread::and));
            *values = pairs.collect();
        }
    }
}

/// The curves in JSON: `t`, and for each name `mean`, `low` and `high` at each of these times.
impl Serialize for ReportedHistory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Lines {
            mean: Vec<Option<f64>>,
            low: Vec<Option<f64>>,
            high: Vec<Option<f64>>,
        }
        #[derive(Serialize)]
        struct Content<'a> {
            t: &'a [u64],
            series: BTreeMap<&'a str, Lines>,
        }
        let lines = |values: &[Option<ValueSpread>]| {
            let line = |part: fn(ValueSpread) -> f64| {
                values.iter().map(|spread| spread.map(|it| shortened(part(it)))).collect()
            };
            Lines { mean: line(|it| it.mean), low: line(|it| it.low), high: line(|it| it.high) }
        };
        let series = self.series.iter().map(|(name, values)| (name.as_str(), lines(values)));
        Content { t: &self.times, series: series.collect() }.serialize(serializer)
    }
}

/// A value with six digits: more cannot be seen.
fn shortened(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}
