//! The report of a benchmark of collectives: one line of JSON, or a table for people.

use std::collections::BTreeMap;
use std::io::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{Collective, CollectivePeer};
use crate::statistics::{median, percentile};

/// The calls of one program at one size.
pub(super) struct Measured {
    /// The peer; `None` for ours.
    pub(super) peer: Option<CollectivePeer>,
    pub(super) times_us: Vec<f64>,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct CollectiveReport {
    #[serde(skip)]
    pub(super) collective: Collective,
    pub(super) world: u32,
    pub(super) sizes: Vec<SizeReport>,
}

/// The figures of one size.
#[derive(Debug, Serialize)]
pub(super) struct SizeReport {
    pub(super) bytes: usize,
    pub(super) median_us: f64,
    p95_us: f64,
    /// Our median over the peer's: below 1, ours is faster.
    ratio: BTreeMap<CollectivePeer, f64>,
    /// Medians and 95th percentiles of the peers.
    #[serde(skip)]
    pub(super) peers: BTreeMap<CollectivePeer, (f64, f64)>,
}

impl CollectiveReport {
    pub(super) fn new(collective: Collective, world: u32) -> CollectiveReport {
        CollectiveReport { collective, world, sizes: Vec::new() }
    }

    /// Adds a size; nothing where a program was not measured.
    pub(super) fn add(&mut self, bytes: usize, measured: &[Measured]) -> Option<()> {
        let of = |times: &[f64]| median(times).zip(percentile(times, 0.95));
        let ours = measured.iter().find(|measured| measured.peer.is_none())?;
        let (median_us, p95_us) = of(&ours.times_us)?;
        let mut peers = BTreeMap::new();
        for measured in measured {
            if let Some(peer) = measured.peer {
                peers.insert(peer, of(&measured.times_us)?);
            }
        }
        let ratio = peers.iter().map(|(peer, (median, _))| (*peer, median_us / median)).collect();
        self.sizes.push(SizeReport { bytes, median_us, p95_us, ratio, peers });
        Some(())
    }

    /// The peers that were measured.
    pub(super) fn peers(&self) -> Vec<CollectivePeer> {
        self.sizes.first().map(|size| size.peers.keys().copied().collect()).unwrap_or_default()
    }

    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut stdout = std::io::stdout();
        if json {
            writeln!(stdout, "{}", serde_json::to_string(self)?)?;
        } else {
            writeln!(stdout, "{}\n{}", self.title(), self.table())?;
        }
        Ok(())
    }

    pub(super) fn title(&self) -> String {
        format!("{} of float32, {} ranks", self.collective.name(), self.world)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        let mut header = vec!["bytes".to_owned(), "ours".to_owned(), "p95".to_owned()];
        for peer in self.peers() {
            let name = format!("{peer:?}").to_lowercase();
            header.extend([name, "p95".to_owned(), "ratio".to_owned()]);
        }
        table.set_header(header);
        for size in &self.sizes {
            let mut row = vec![size.bytes.to_string(), time(size.median_us), time(size.p95_us)];
            for (peer, (median, p95)) in &size.peers {
                row.extend([time(*median), time(*p95), format!("{:.3}", size.ratio[peer])]);
            }
            table.add_row(row);
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        table
    }
}

/// With three digits that count.
fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2} us"),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.1} ms", us / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_ratio_of_medians() {
        let mut report = CollectiveReport::new(Collective::Allreduce, 4);
        let ours = Measured { peer: None, times_us: vec![1.0, 2.0, 9.0] };
        let gloo = Measured { peer: Some(CollectivePeer::Gloo), times_us: vec![8.0, 4.0, 3.0] };
        report.add(1024, &[ours, gloo]).unwrap();
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"world":4,"sizes":[{"bytes":1024,"median_us":2.0,"p95_us":9.0,"ratio":{"gloo":0.5}}]}"#
        );
        assert!(report.table().to_string().contains("0.500"));
    }
}
