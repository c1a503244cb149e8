// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts over time and value, as shades of one colour by the logarithm of the count.
//!
//! Guarantees: there is one path per shade, and neighbours in a row are joined, so that a full map has only some tens of kilobytes.
//! Empty cells are not drawn. Does not: put numbers on cells (the table has percentiles over time).

use std::fmt::Write;

use maud::{Markup, html};

use super::frame::{self, Area};
use super::label::{WIDTH, px};
use super::scale::Scaler;
use crate::chart::{Heat, Scale};
use crate::unit::Unit;

const HEIGHT: f64 = 290.0;
/// Number of shades.
const SHADES: usize = 7;

/// Returns the height and the content.
pub fn draw(p: &Heat) -> (f64, Markup) {
    let (top, bottom, right) = (frame::ABOVE, HEIGHT - frame::BELOW, WIDTH - 96.0);
    let used = || p.cells.iter().filter(|c| c.2 > 0);
    let lowest = used().filter_map(|c| p.edges.get(c.1 as usize)).copied().fold(f64::INFINITY, f64::min);
    let highest = used().filter_map(|c| p.edges.get(c.1 as usize + 1)).copied().fold(1.0, f64::max);
    // 0 has no logarithm, so the class that begins at 0 is drawn from 1 on.
    let low = if lowest.is_finite() { lowest.max(1.0) } else { 1.0 };
    let y = Scaler::exact(Scale::Log10, (low, highest.max(low * 1.5)), 6, (bottom, top));
    let left = frame::left_of(&p.y, &y);
    let end = p.column * f64::from(p.columns.max(1));
    let x = Scaler::exact(Scale::Linear, (0.0, end), 9, (left, right));
    let area = Area { left, top, right, bottom };
    let peak = used().map(|c| c.2).max().unwrap_or(1);
    let content = html! {
        @for (shade, d) in shades(p, &x, &y, peak).iter().enumerate() {
            @if !d.is_empty() { path class={ "heat h" (shade) } d=(d) {} }
        }
        (frame::draw(area, (&p.x, &x), (&p.y, &y), false))
        (key(area, peak))
    };
    (HEIGHT, content)
}

/// Returns the shade of a count, on a logarithmic scale. A count of one has shade 0.
fn shade(n: u64, peak: u64) -> usize {
    let share = (n as f64).ln() / (peak as f64).ln().max(1e-9);
    ((share * SHADES as f64) as usize).min(SHADES - 1)
}

fn shades(p: &Heat, x: &Scaler, y: &Scaler, peak: u64) -> [String; SHADES] {
    let mut paths: [String; SHADES] = Default::default();
    let mut cells: Vec<(u32, u32, usize)> =
        p.cells.iter().filter(|c| c.2 > 0).map(|c| (c.1, c.0, shade(c.2, peak))).collect();
    cells.sort_unstable();
    let mut i = 0;
    while i < cells.len() {
        let (row, column, shade) = cells[i];
        let mut n = 1;
        while cells.get(i + n as usize) == Some(&(row, column + n, shade)) {
            n += 1;
        }
        i += n as usize;
        let edge = |row: u32| y.at(p.edges.get(row as usize)?.max(1.0));
        let at = |column: u32| x.at(p.column * f64::from(column));
        if let (Some(low), Some(high), Some(from), Some(to)) = (edge(row), edge(row + 1), at(column), at(column + n)) {
            // Writing to a String cannot fail.
            let _ = write!(paths[shade], "M{} {}H{}V{}H{}z", px(from), px(high), px(to), px(low), px(from));
        }
    }
    paths
}

/// Draws the legend of the shades.
fn key(area: Area, peak: u64) -> Markup {
    let (x, size) = (area.right + 24.0, 14.0);
    let top = 0.5 * (area.top + area.bottom) - 0.5 * size * SHADES as f64;
    let bottom = top + size * SHADES as f64;
    html! {
        text x=(px(x)) y=(px(top - 8.0)) { "I/Os" }
        @for i in 0..SHADES {
            rect class={ "heat h" (SHADES - 1 - i) } x=(px(x)) y=(px(top + size * i as f64)) width="14" height=(px(size)) {}
        }
        text class="tick-label" x=(px(x + 19.0)) y=(px(top + 11.0)) { (Unit::PerSecond.text(peak as f64)) }
        text class="tick-label" x=(px(x + 19.0)) y=(px(bottom - 3.0)) { "1" }
    }
}
