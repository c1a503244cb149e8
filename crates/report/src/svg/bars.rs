// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Horizontal bars: stacked parts that add up, or groups of bars below each other.
//!
//! Guarantees: a number beside each bar gives its length. Does not: show parts that are `None` (they are in the table).

use maud::{Markup, html};

use super::frame::{self, Area};
use super::label::{COLOURS, LABEL_CHARS, LINE, WIDTH, cut, legend, px, width};
use super::scale::Scaler;
use crate::chart::{BarRow, Bars};

/// Maximum number of bars that are drawn. The table has all.
const ROWS_MAX: usize = 32;

/// Returns the height and the content.
pub fn draw(p: &Bars) -> (f64, Markup) {
    let rows = &p.rows[..p.rows.len().min(ROWS_MAX)];
    let labels: Vec<String> = rows.iter().map(|r| cut(&r.label, LABEL_CHARS)).collect();
    let left = 16.0 + labels.iter().map(|l| width(l)).fold(0.0, f64::max);
    let lengths = || rows.iter().flat_map(|r| ends(p, r));
    let figures = lengths().map(|v| width(&p.axis.unit.text(v))).fold(0.0, f64::max);
    let many = p.parts.len() > 1;
    let class = if p.stacked { "p" } else { "s" };
    let (legend_height, legend) = if many { legend(&p.parts, class, left, 12.0) } else { (0.0, html! {}) };
    let (thick, gap) = if p.stacked || !many { (20.0, 10.0) } else { (11.0, 9.0) };
    let per_row = if p.stacked { thick } else { thick * p.parts.len().max(1) as f64 };
    let top = legend_height + 10.0;
    let bottom = top + rows.len() as f64 * (per_row + gap);
    let x = Scaler::new(p.axis.scale, lengths(), 6, (left, WIDTH - 14.0 - figures));
    let area = Area { left, top, right: WIDTH - 14.0 - figures, bottom };
    let content = html! {
        (legend)
        (frame::horizontal(area, &p.axis, &x))
        @for (i, (row, label)) in rows.iter().zip(&labels).enumerate() {
            @let y = top + i as f64 * (per_row + gap);
            text class="bar-label" x=(px(left - 8.0)) y=(px(y + 0.5 * per_row + 4.0)) text-anchor="end" {
                (label) title { (row.label) }
            }
            @if p.stacked { (stacked(p, row, &x, y, thick)) } @else { (grouped(p, row, &x, y, thick)) }
        }
    };
    (bottom + frame::BELOW, content)
}

/// Returns the values at which a row's bars end.
fn ends(p: &Bars, row: &BarRow) -> Vec<f64> {
    match p.stacked {
        true => vec![row.values.iter().flatten().sum()],
        false => row.values.iter().flatten().copied().collect(),
    }
}

fn stacked(p: &Bars, row: &BarRow, x: &Scaler, y: f64, thick: f64) -> Markup {
    let total: f64 = row.values.iter().flatten().sum();
    let mut sum = 0.0;
    let parts = row.values.iter().enumerate().filter_map(|(i, v)| {
        let (from, v) = (sum, (*v)?);
        sum += v;
        Some((i, v, x.at(from)?, x.at(sum)?))
    });
    html! {
        @for (i, v, from, to) in parts.collect::<Vec<_>>() {
            @if to - from > 0.05 {
                rect class={ "part p" (i % COLOURS) } x=(px(from)) y=(px(y)) width=(px(to - from)) height=(px(thick)) {
                    title {
                        (p.parts.get(i).map_or("", String::as_str)) ": " (p.axis.unit.text(v)) ", "
                        (format!("{:.1}%", 100.0 * v / total.max(f64::MIN_POSITIVE)))
                    }
                }
            }
        }
        @if let Some(end) = x.at(total) {
            text class="figure" x=(px(end + 6.0)) y=(px(y + 0.5 * thick + 4.0)) { (p.axis.unit.text(total)) }
        }
    }
}

fn grouped(p: &Bars, row: &BarRow, x: &Scaler, y: f64, thick: f64) -> Markup {
    let zero = x.at(0.0).unwrap_or(0.0);
    // Thin bars have small figures beside them, so that the figures of adjacent bars do not overlap.
    let small = thick < LINE - 4.0;
    html! {
        @for (i, v) in row.values.iter().enumerate() {
            @if let Some((v, end)) = v.and_then(|v| Some((v, x.at(v)?))) {
                @let top = y + i as f64 * thick;
                rect class={ "part s" (i % COLOURS) } x=(px(zero)) y=(px(top)) width=(px(end - zero)) height=(px(thick - 1.0)) {
                    title { (p.parts.get(i).map_or("", String::as_str)) ": " (p.axis.unit.text(v)) }
                }
                text class=(if small { "figure small" } else { "figure" }) x=(px(end + 6.0)) y=(px(top + 0.5 * thick + 3.5)) {
                    (p.axis.unit.text(v))
                }
            }
        }
    }
}
