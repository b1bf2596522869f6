//! The medians by size, both logarithmic, as SVG. Called by the benchmarks of collectives.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use plotters::prelude::*;

use super::report::CollectiveReport;

const SIZE_PIXELS: (u32, u32) = (900, 560);
/// Ours first, then the peers.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 120),
];

/// Draws the report into a file.
pub(super) fn draw(report: &CollectiveReport, file: &Path) -> anyhow::Result<()> {
    let mut lines = vec![("ours".to_owned(), medians(report, |size| Some(size.median_us)))];
    for peer in report.peers() {
        let name = format!("{peer:?}").to_lowercase();
        lines
            .push((name, medians(report, |size| size.peers.get(&peer).map(|(median, _)| *median))));
    }
    let points = || lines.iter().flat_map(|(_, points)| points);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let x = least(&mut points().map(|point| point.0))..most(&mut points().map(|point| point.0));
    let y = least(&mut points().map(|point| point.1))..most(&mut points().map(|point| point.1));
    let area = SVGBackend::new(file, SIZE_PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(report.title(), ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x.log_scale(), (y.start / 1.5..y.end * 1.5).log_scale())?;
    chart.configure_mesh().x_desc("bytes").y_desc("median, microseconds").draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    area.present().map_err(|error| anyhow!("{error}")).context("the file cannot be written")
}

fn medians(
    report: &CollectiveReport,
    median: impl Fn(&super::report::SizeReport) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let point = |size| Some((size_bytes(size), median(size)?));
    report.sizes.iter().filter_map(point).collect()
}

fn size_bytes(size: &super::report::SizeReport) -> f64 {
    size.bytes as f64
}
