//! The heat map: each rank's time of computation in a step, compared with the median of all, over time. Used by `page`.

use elastic_protocol::Time;
use elastic_protocol::messages::{StatusReport, WorkerStatus};
use serde::{Serialize, Serializer};

use super::history::ms;

/// Most rows. With more ranks a row stands for several, and shows the slowest of them.
const ROWS_MAX: usize = 64;

/// Most columns. When there would be more, two neighbours become one.
const COLUMNS_MAX: usize = 120;

/// Interval between two looks, in milliseconds; at first each of them is a column.
const SAMPLED_EVERY_MS: u64 = 1_000;

/// A cell's letter stands for a tenth of the median: `a` for half of it or less, `z` for three times as much or more. A dot is
/// a cell without a measurement.
const LOWEST: f64 = 0.5;
const LETTER: f64 = 0.1;
const LETTERS: f64 = 26.0;

/// The ranks of one row, in one column: the mean of the looks in it.
#[derive(Clone, Copy, Debug, Default)]
struct HeatCell {
    sum: f64,
    looks: f64,
}

impl HeatCell {
    fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.looks += other.looks;
    }

    /// The hotter one of two: of a row that stands for several ranks, the slowest counts.
    fn hotter(self, other: Self) -> Self {
        if other.mean() > self.mean() { other } else { self }
    }

    fn mean(self) -> Option<f64> {
        (self.looks > 0.0).then(|| self.sum / self.looks)
    }

    fn letter(self) -> char {
        let Some(mean) = self.mean() else { return '.' };
        let number = ((mean - LOWEST) / LETTER).round().clamp(0.0, LETTERS - 1.0);
        char::from(b'a' + number as u8)
    }
}

/// The slowest rank of a row at the last look.
#[derive(Debug, Serialize)]
struct RowNow {
    rank: u32,
    host: String,
    /// Its time of computation, divided by the median.
    factor: f64,
    compute_ms: f64,
    waiting_ms: Option<f64>,
    step_ms: Option<f64>,
}

/// Compute times by rank over time.
#[derive(Debug)]
pub(super) struct PaceHistory {
    /// Time that a column stands for, in milliseconds.
    width_ms: u64,
    /// Number of ranks that a row stands for.
    ranks_a_row: usize,
    /// Time of the last look in milliseconds since 1970; none before the first.
    sampled: Option<u64>,
    /// Time of each column in milliseconds since 1970.
    times: Vec<u64>,
    /// For each row a cell in each column.
    rows: Vec<Vec<HeatCell>>,
    /// For each row its slowest rank, if one is measured.
    now: Vec<Option<RowNow>>,
    /// The median at the last look, in milliseconds.
    median_ms: Option<f64>,
}

impl Default for PaceHistory {
    fn default() -> Self {
        Self {
            width_ms: SAMPLED_EVERY_MS,
            ranks_a_row: 1,
            sampled: None,
            times: Vec::new(),
            rows: Vec::new(),
            now: Vec::new(),
            median_ms: None,
        }
    }
}

impl PaceHistory {
    /// Takes how long the members compute, if a look is due.
    pub(super) fn handle_status(&mut self, now: Time, status: &StatusReport) {
        let is_due = |last: u64| ms(now) >= last.saturating_add(SAMPLED_EVERY_MS);
        if !self.sampled.is_none_or(is_due) {
            return;
        }
        self.sampled = Some(ms(now));
        let members = status.workers.iter().filter_map(|worker| Some((worker.rank?, worker)));
        let measured: Vec<(usize, &WorkerStatus, f64)> = members
            .filter_map(|(rank, worker)| Some((rank as usize, worker, worker.compute_ms?)))
            .collect();
        self.now.iter_mut().for_each(|row| *row = None);
        self.median_ms = median(measured.iter().map(|(_, _, compute)| *compute).collect());
        let Some(median) = self.median_ms else { return };
        let ranks = measured.iter().map(|(rank, ..)| rank + 1).max().unwrap_or(0);
        self.grow(ranks);
        let is_over = |start: &u64| ms(now) >= start.saturating_add(self.width_ms);
        if self.times.last().is_none_or(is_over) {
            self.times.push(ms(now));
            self.rows.iter_mut().for_each(|row| row.push(HeatCell::default()));
        }
        for (rank, worker, compute_ms) in measured {
            let factor = if median > 0.0 { compute_ms / median } else { 1.0 };
            let Some(row) = self.now.get_mut(rank / self.ranks_a_row) else { continue };
            if row.as_ref().is_none_or(|slowest| factor > slowest.factor) {
                *row = Some(RowNow {
                    rank: rank as u32,
                    host: worker.host.to_string(),
                    factor,
                    compute_ms,
                    waiting_ms: worker.waiting_ms,
                    step_ms: worker.step_ms,
                });
            }
        }
        for (row, slowest) in self.rows.iter_mut().zip(&self.now) {
            if let (Some(cell), Some(slowest)) = (row.last_mut(), slowest) {
                cell.add(HeatCell { sum: slowest.factor, looks: 1.0 });
            }
        }
        if self.times.len() > COLUMNS_MAX {
            self.widen();
        }
    }

    /// Makes room for this many ranks.
    fn grow(&mut self, ranks: usize) {
        while ranks.div_ceil(self.ranks_a_row) > ROWS_MAX {
            self.ranks_a_row *= 2;
            self.rows = self.rows.chunks(2).map(hotter_row).collect();
            self.now.clear();
        }
        let rows = ranks.div_ceil(self.ranks_a_row).max(self.rows.len());
        let empty = vec![HeatCell::default(); self.times.len()];
        self.rows.resize(rows, empty);
        self.now.resize_with(rows, || None);
    }

    /// Doubles the time that a column stands for.
    fn widen(&mut self) {
        self.width_ms *= 2;
        self.times = self.times.chunks(2).map(|pair| pair[0]).collect();
        for row in &mut self.rows {
            let sum = |pair: &[HeatCell]| {
                let mut all = HeatCell::default();
                pair.iter().for_each(|cell| all.add(*cell));
                all
            };
            *row = row.chunks(2).map(sum).collect();
        }
    }
}

fn hotter_row(pair: &[Vec<HeatCell>]) -> Vec<HeatCell> {
    match pair {
        [one, other] => one.iter().zip(other).map(|(one, other)| one.hotter(*other)).collect(),
        _ => pair.concat(),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// The map in JSON: `t`, and for each row its first rank, a letter for each of these times, and its slowest rank now.
impl Serialize for PaceHistory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            cells: String,
            now: Option<&'a RowNow>,
        }
        #[derive(Serialize)]
        struct Content<'a> {
            t: &'a [u64],
            ranks_a_row: usize,
            median_ms: Option<f64>,
            rows: Vec<Row<'a>>,
        }
        let rows = self.rows.iter().zip(&self.now).map(|(row, now)| Row {
            cells: row.iter().map(|cell| cell.letter()).collect(),
            now: now.as_ref(),
        });
        Content {
            t: &self.times,
            ranks_a_row: self.ranks_a_row,
            median_ms: self.median_ms,
            rows: rows.collect(),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::status_computing;
    use super::*;

    fn shown(history: &PaceHistory) -> serde_json::Value {
        serde_json::to_value(history).expect("it has a form")
    }

    fn at(second: u64) -> Time {
        Time::from_ms(second * 1_000)
    }

    #[test]
    fn a_rank_that_computes_for_longer_than_the_median_stands_out() {
        let mut history = PaceHistory::default();
        history
            .handle_status(at(1), &status_computing(&[Some(10.0), None, Some(10.0), Some(20.0)]));
        history.handle_status(at(1), &status_computing(&[Some(90.0); 4]));
        history.handle_status(
            at(2),
            &status_computing(&[Some(10.0), Some(5.0), Some(10.0), Some(90.0)]),
        );
        let shown = shown(&history);
        let cells = |row: usize| shown["rows"][row]["cells"].as_str().map(ToOwned::to_owned);
        let all: Vec<_> = (0..4).filter_map(cells).collect();
        assert_eq!(all, ["ff", ".a", "ff", "pz"], "one look a second");
        assert_eq!(shown["t"], serde_json::json!([1_000, 2_000]));
        let slowest = &shown["rows"][3]["now"];
        assert_eq!((&slowest["rank"], &slowest["factor"]), (&3.into(), &9.0.into()));
        assert_eq!(shown["median_ms"], 10.0);
    }

    #[test]
    fn a_long_job_with_many_ranks_has_a_bounded_map_in_which_a_slow_rank_is_seen() {
        let mut history = PaceHistory::default();
        let mut computes = vec![Some(10.0); 2];
        history.handle_status(at(0), &status_computing(&computes));
        computes.resize(4_000, Some(10.0));
        computes[3_999] = Some(25.0);
        for second in 1..500 {
            history.handle_status(at(second), &status_computing(&computes));
        }
        let shown = shown(&history);
        let rows = shown["rows"].as_array().expect("rows");
        assert_eq!((rows.len(), &shown["ranks_a_row"]), (63, &64.into()));
        let columns = shown["t"].as_array().expect("times").len();
        assert!((COLUMNS_MAX / 2..=COLUMNS_MAX).contains(&columns), "{columns}");
        let last = rows[62]["cells"].as_str().expect("cells");
        assert_eq!((last.len(), last.trim_start_matches('.').trim_matches('u')), (columns, ""));
        assert_eq!(rows[62]["now"]["rank"], 3_999);
        assert!(shown.to_string().len() < 32_000, "{}", shown.to_string().len());
    }
}
