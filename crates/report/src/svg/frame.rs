// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frame of a chart with two axes: ticks, their labels, grid lines, and the names of the axes.
//!
//! Guarantees: of two labels that would touch, the later one is omitted, but its tick is drawn. Does not: draw data.

use maud::{Markup, html};

use super::label::{LINE, px, width};
use super::scale::Scaler;
use crate::chart::Axis;

/// The rectangle that data is drawn in.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

/// Space below the area for labels and the name of the horizontal axis.
pub const BELOW: f64 = 42.0;
/// Space above the area for the name of the vertical axis.
pub const ABOVE: f64 = 26.0;

/// Returns the space to the left of the area for the widest label of the vertical axis.
pub fn left_of(axis: &Axis, scale: &Scaler) -> f64 {
    let widest = scale.ticks().into_iter().map(|t| width(&axis.unit.tick(t))).fold(0.0, f64::max);
    (widest + 14.0).max(40.0)
}

/// Ticks and names of both axes.
pub fn draw(area: Area, x: (&Axis, &Scaler), y: (&Axis, &Scaler), grid: bool) -> Markup {
    html! {
        (vertical(area, y.0, y.1, grid))
        (horizontal(area, x.0, x.1))
    }
}

fn vertical(area: Area, axis: &Axis, scale: &Scaler, grid: bool) -> Markup {
    let mut last = f64::INFINITY;
    let ticks = scale.ticks().into_iter().filter_map(|t| {
        let y = scale.at(t)?;
        let labelled = last - y >= LINE;
        if labelled {
            last = y;
        }
        Some((y, labelled.then(|| axis.unit.tick(t))))
    });
    html! {
        text class="axis" x="4" y=(px(area.top - 12.0)) { (axis.label) }
        @for (y, label) in ticks {
            @if grid {
                line class="grid" x1=(px(area.left)) x2=(px(area.right)) y1=(px(y)) y2=(px(y)) {}
            } @else {
                line class="tick" x1=(px(area.left - 4.0)) x2=(px(area.left)) y1=(px(y)) y2=(px(y)) {}
            }
            @if let Some(label) = label {
                text class="tick-label" x=(px(area.left - 8.0)) y=(px(y + 4.0)) text-anchor="end" { (label) }
            }
        }
    }
}

/// The horizontal axis alone.
pub fn horizontal(area: Area, axis: &Axis, scale: &Scaler) -> Markup {
    let mut end = f64::NEG_INFINITY;
    let ticks = scale.ticks().into_iter().filter_map(|t| {
        let x = scale.at(t)?;
        let label = axis.unit.tick(t);
        let half = 0.5 * width(&label);
        let labelled = x - half >= end + 6.0;
        if labelled {
            end = x + half;
        }
        Some((x, labelled.then_some(label)))
    });
    html! {
        line class="base" x1=(px(area.left)) x2=(px(area.right)) y1=(px(area.bottom)) y2=(px(area.bottom)) {}
        @for (x, label) in ticks {
            line class="tick" x1=(px(x)) x2=(px(x)) y1=(px(area.bottom)) y2=(px(area.bottom + 4.0)) {}
            @if let Some(label) = label {
                text class="tick-label" x=(px(x)) y=(px(area.bottom + 17.0)) text-anchor="middle" { (label) }
            }
        }
        text class="axis" x=(px(0.5 * (area.left + area.right))) y=(px(area.bottom + 36.0)) text-anchor="middle" {
            (axis.label)
        }
    }
}
