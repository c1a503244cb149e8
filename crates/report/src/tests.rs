// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Documents with every kind of block and chart: a round trip through JSON, and hostile text in every place that has text.

use super::chart::{
    Axis, BarRow, Bars, DepthPoint, Heat, IntervalRow, Intervals, Lines, Plot, Point, Scale, Series, Style,
    depth_charts,
};
use super::document::{Block, Caveat, Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use super::unit::Unit;
use super::{page, svg};
use proptest::prelude::*;

/// Returns a document that has `text` wherever text goes, and `values` wherever numbers go.
fn filled(text: &str, values: &[f64]) -> Document {
    let t = || text.to_owned();
    let axis = |scale| Axis { label: t(), unit: Unit::Nanoseconds, scale };
    let points: Vec<Point> =
        values.iter().enumerate().map(|(i, v)| Point { x: i as f64, y: *v, interval: Some((*v, *v)) }).collect();
    let series = |colour, style| Series { name: t(), colour, style, points: points.clone() };
    let lines = |x, y| Lines {
        x: axis(x),
        y: axis(y),
        series: (0..9).map(|i| series(i, if i % 2 == 0 { Style::Marked } else { Style::Dots })).collect(),
    };
    let bars = |stacked| Bars {
        axis: axis(Scale::Linear),
        parts: vec![t(), t()],
        stacked,
        rows: vec![BarRow { label: t(), values: values.iter().take(2).map(|v| Some(*v)).chain([None]).collect() }; 40],
    };
    let heat = Heat {
        x: axis(Scale::Linear),
        y: axis(Scale::Log10),
        column: 0.5,
        columns: 3,
        edges: vec![0.0, 10.0, 100.0],
        cells: vec![(0, 0, 1), (1, 0, 7), (2, 1, u64::from(u32::MAX)), (900, 900, 3)],
    };
    let rows = values.iter().map(|v| IntervalRow { label: t(), mid: *v, low: *v, high: *v, tone: Tone::Bad });
    let intervals = Intervals { axis: axis(Scale::Near), reference: 1.0, sides: (t(), t()), rows: rows.collect() };
    let plots = [
        Plot::Lines(lines(Scale::Linear, Scale::Log10)),
        Plot::Lines(lines(Scale::Log2, Scale::Near)),
        Plot::Lines(lines(Scale::Nines, Scale::Linear)),
        Plot::Bars(bars(true)),
        Plot::Bars(bars(false)),
        Plot::Heat(heat),
        Plot::Intervals(intervals),
    ];
    let mut table = Table::new(t(), &[text, "#n"]);
    for v in values {
        table.row(vec![Cell::text(text).toned(Tone::Caution), Cell::number(*v, Unit::PerSecond).strong(true)]);
    }
    table.note = t();
    let chart = |(i, plot)| {
        Block::Chart(Chart { id: format!("c-{i}"), title: t(), summary: t(), plot, table: Some(table.clone()) })
    };
    let mut blocks: Vec<Block> = plots.into_iter().enumerate().map(chart).collect();
    blocks.extend([Block::Table(table.clone()), Block::Note { text: t() }, Block::Code { caption: t(), text: t() }]);
    let warnings = vec![Caveat { text: t(), advice: t() }];
    Document {
        format: FORMAT,
        kind: Kind::Tuning,
        title: t(),
        subtitle: t(),
        verdict: Verdict { tone: Tone::Good, word: t(), sentence: t(), points: vec![t()], warnings },
        sections: vec![Section { id: "s".into(), title: t(), lead: t(), blocks }],
        data: serde_json::json!({ "text": text }),
    }
}

#[test]
fn there_and_back_through_json() {
    let d = filled("a \u{b5}s", &[1.5, 20.0, 300.0]);
    let back = Document::from_json(&d.json()).unwrap();
    assert_eq!(back, d);
    assert_eq!(page::render(&back), page::render(&d));
    assert!(Document::from_json(&d.json().replace("\"format\": 1", "\"format\": 2")).unwrap_err().contains("format 2"));
    assert!(Document::from_json("{}").is_err());
}

#[test]
fn nothing_from_outside_is_markup() {
    for evil in
        ["</style></script><script>x</script>", "\" onload=\"x", "' x='", "<img src=http://h/>", "&lt;b&gt;", "]]>-->"]
    {
        let html = page::render(&filled(evil, &[1.0, 2.0]));
        let harmless = page::render(&filled("harmless", &[1.0, 2.0]));
        let count = |h: &str, c: char| h.matches(c).count();
        assert_eq!(count(&html, '<'), count(&harmless, '<'), "{evil}: as many tags as without it");
        assert_eq!(count(&html, '>'), count(&harmless, '>'), "{evil}");
        assert_eq!(count(&html, '"'), count(&harmless, '"'), "{evil}: as many attributes");
    }
}

#[test]
fn a_hockey_stick_of_any_search() {
    let point = |series: &str, depth: f64| DepthPoint {
        series: series.into(),
        depth,
        iops: 1e4 * depth,
        iops_interval: Some((9e3 * depth, 1.1e4 * depth)),
        latency_mean_ns: 1e5,
        latency_p99_ns: None,
    };
    let points: Vec<DepthPoint> =
        (0..8).flat_map(|d| ["default", "best"].map(|s| point(s, f64::from(1 << d)))).collect();
    let charts = depth_charts("tune", &points);
    assert_eq!(charts.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["tune-iops", "tune-latency"]);
    let text = svg::standalone(&charts[0]);
    assert!(text.contains(">best<") && text.contains("whisker") && text.contains("best: 1.28M [1.15M, 1.41M] at 128"));
}

proptest! {
    #[test]
    fn any_numbers_can_be_drawn(values in proptest::collection::vec(-1e15f64..1e15, 0..12), text in "\\PC{0,60}") {
        let html = page::render(&filled(&text, &values));
        prop_assert!(!html.contains("NaN") || text.contains("NaN"));
        prop_assert!(!html.contains("=\"inf") && html.ends_with("</html>"));
    }
}
