// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The charts of a report as data: what is drawn, but not how.
//!
//! Guarantees: values are in the base unit of their axis. [`depth_charts`] makes charts of IOPS and latency against depth from one row per
//! point, for a run, a comparison, a tuning or a scenario alike. Needs from callers: finite numbers. Values up to 0 are left out on a
//! logarithmic axis. Does not: draw (see [`super::svg`]).

use serde::{Deserialize, Serialize};

use super::document::{Cell, Chart, Table, Tone};
use super::unit::Unit;

/// How an axis is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Evenly, from 0 on.
    #[default]
    Linear,
    /// Evenly, over the range of the values, which need not include 0.
    Near,
    /// By powers of ten.
    Log10,
    /// By powers of two.
    Log2,
    /// By the number of nines, like plots of HDR histograms: 0, 90 %, 99 %, 99.9 %, ...
    Nines,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// Unit of the values.
    pub unit: Unit,
    /// How it is divided.
    pub scale: Scale,
}

impl Axis {
    /// An axis.
    pub fn new(label: &str, unit: Unit, scale: Scale) -> Axis {
        Axis { label: label.to_owned(), unit, scale }
    }
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Plot {
    /// Lines and points.
    Lines(Lines),
    /// Horizontal bars.
    Bars(Bars),
    /// Counts over time and value.
    Heat(Heat),
    /// Values with intervals, and a line of no difference.
    Intervals(Intervals),
}

/// Lines and points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name, drawn at the end of the line.
    pub name: String,
    /// Number of the colour, from 0. In all charts, A and B of a comparison have 0 and 1.
    pub colour: u8,
    /// Marks at the points, and whether a line joins them.
    pub style: Style,
    /// Points, x ascending.
    pub points: Vec<Point>,
}

/// What a series looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// A line.
    #[default]
    Line,
    /// A line with a mark at each point.
    Marked,
    /// Marks only.
    Dots,
}

/// A point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Horizontal.
    pub x: f64,
    /// Vertical.
    pub y: f64,
    /// Interval of `y`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
}

impl Point {
    /// A point without an interval.
    pub const fn at(x: f64, y: f64) -> Point {
        Point { x, y, interval: None }
    }
}

/// Horizontal bars. The parts of each are stacked, or are bars below each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    /// The axis of lengths.
    pub axis: Axis,
    /// Names of the parts.
    pub parts: Vec<String>,
    /// Parts add up to one bar; else each part is a separate bar.
    pub stacked: bool,
    /// Bars from top to bottom.
    pub rows: Vec<BarRow>,
}

/// A bar, or a group of bars.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BarRow {
    /// Name.
    pub label: String,
    /// One value per part; `None` = not measured.
    pub values: Vec<Option<f64>>,
}

/// Counts over time and value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Time.
    pub x: Axis,
    /// Value; logarithmic.
    pub y: Axis,
    /// Width of a column in units of `x`. The first column begins at 0.
    pub column: f64,
    /// Number of columns.
    pub columns: u32,
    /// Lower edge of each row and the upper edge of the last, ascending.
    pub edges: Vec<f64>,
    /// (column, row, count) of the cells that are not empty.
    pub cells: Vec<(u32, u32, u64)>,
}

/// Values with intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    /// The axis of values.
    pub axis: Axis,
    /// No difference.
    pub reference: f64,
    /// The labels to the left and to the right of that line.
    pub sides: (String, String),
    /// From top to bottom.
    pub rows: Vec<IntervalRow>,
}

/// One value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalRow {
    /// Name.
    pub label: String,
    /// The value.
    pub mid: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Better, worse or neither.
    pub tone: Tone,
}

/// Returns the scale of an axis of ratios. If differences are large, halving and doubling are equally far from 1.
pub fn ratio_scale(rows: &[IntervalRow]) -> Scale {
    let widest = rows.iter().flat_map(|r| [r.high / r.low, 1.0 / r.low, r.high]).fold(1.0, f64::max);
    if widest > 1.6 { Scale::Log10 } else { Scale::Near }
}

/// IOPS and latency at one depth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DepthPoint {
    /// The series that the point belongs to: a setting, or a number of threads.
    pub series: String,
    /// Maximum number of I/Os in flight, over all threads.
    pub depth: f64,
    /// I/Os per second.
    pub iops: f64,
    /// Interval of `iops`, if there were several runs.
    pub iops_interval: Option<(f64, f64)>,
    /// Mean latency, nanoseconds.
    pub latency_mean_ns: f64,
    /// 99th percentile, nanoseconds.
    pub latency_p99_ns: Option<f64>,
}

/// Makes charts of IOPS and latency against depth. Returns none when no series has two depths, because a single point is not a
/// chart. `id` is the prefix of the charts' ids.
pub fn depth_charts(id: &str, points: &[DepthPoint]) -> Vec<Chart> {
    let mut names: Vec<&str> = Vec::new();
    for p in points {
        if !names.contains(&p.series.as_str()) {
            names.push(&p.series);
        }
    }
    let of = |name: &str| {
        let mut line: Vec<&DepthPoint> = points.iter().filter(|p| p.series == name).collect();
        line.sort_by(|a, b| a.depth.total_cmp(&b.depth));
        line
    };
    let is_line = |line: &[&DepthPoint]| line.iter().any(|p| p.depth != line[0].depth);
    if !names.iter().any(|name| is_line(&of(name))) {
        return Vec::new();
    }
    let series = |what: fn(&DepthPoint) -> Point| -> Vec<Series> {
        let lines = names.iter().enumerate().map(|(i, name)| Series {
            name: (*name).to_owned(),
            colour: i as u8,
            style: Style::Marked,
            points: of(name).into_iter().map(what).collect(),
        });
        lines.collect()
    };
    let depth = || Axis::new("I/Os in flight at most", Unit::Count, Scale::Log2);
    let iops = Lines {
        x: depth(),
        y: Axis::new("I/Os per second", Unit::PerSecond, Scale::Linear),
        series: series(|p| Point { x: p.depth, y: p.iops, interval: p.iops_interval }),
    };
    let latency = Lines {
        x: depth(),
        y: Axis::new("mean latency", Unit::Nanoseconds, Scale::Log10),
        series: series(|p| Point::at(p.depth, p.latency_mean_ns)),
    };
    let best = points.iter().max_by(|a, b| a.iops.total_cmp(&b.iops));
    let best = best.map_or_else(String::new, |p| {
        let (iops, at) = (Unit::PerSecond.text(p.iops), Unit::Count.text(p.depth));
        format!("Highest: {iops} I/Os per second at {at} in flight ({}).", p.series)
    });
    let chart = |what: &str, title: &str, plot: Lines, table: Option<Table>| Chart {
        id: format!("{id}-{what}"),
        title: title.to_owned(),
        summary: best.clone(),
        plot: Plot::Lines(plot),
        table,
    };
    vec![
        chart("iops", "Throughput against depth", iops, Some(depth_table(points))),
        chart("latency", "Latency against depth", latency, None),
    ]
}

fn depth_table(points: &[DepthPoint]) -> Table {
    let mut table = Table::new(
        "Throughput and latency by depth",
        &["series", "#in flight", "#IOPS", "#mean latency", "#p99 latency"],
    );
    for p in points {
        table.row(vec![
            Cell::text(&p.series),
            Cell::number(p.depth, Unit::Count),
            Cell::number(p.iops, Unit::PerSecond),
            Cell::number(p.latency_mean_ns, Unit::Nanoseconds),
            Cell::number(p.latency_p99_ns, Unit::Nanoseconds),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(series: &str, depth: f64) -> DepthPoint {
        DepthPoint { series: series.into(), depth, iops: 1000.0 * depth, latency_mean_ns: 1e6, ..DepthPoint::default() }
    }

    #[test]
    fn a_single_point_is_no_chart() {
        assert!(depth_charts("d", &[]).is_empty());
        assert!(depth_charts("d", &[point("a", 4.0), point("b", 8.0), point("a", 4.0)]).is_empty());
    }

    #[test]
    fn depths_ascend_along_each_line() {
        let charts = depth_charts("d", &[point("a", 8.0), point("b", 1.0), point("a", 1.0)]);
        let Plot::Lines(l) = &charts[0].plot else { panic!("lines") };
        let xs: Vec<Vec<f64>> = l.series.iter().map(|s| s.points.iter().map(|p| p.x).collect()).collect();
        assert_eq!(xs, [vec![1.0, 8.0], vec![1.0]]);
        assert_eq!(charts[0].table.as_ref().unwrap().rows.len(), 3);
    }
}
