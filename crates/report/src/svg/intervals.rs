// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values with their intervals, and the line of no difference.
//!
//! Guarantees: the line of no difference is always in the picture. Does not: order rows.

use maud::{Markup, html};

use super::frame::{self, Area};
use super::label::{LABEL_CHARS, WIDTH, cut, px, tone_class, width};
use super::scale::Scaler;
use crate::chart::Intervals;

const ROW: f64 = 26.0;

/// Returns the height and the content.
pub fn draw(p: &Intervals) -> (f64, Markup) {
    let labels: Vec<String> = p.rows.iter().map(|r| cut(&r.label, LABEL_CHARS)).collect();
    let left = 16.0 + labels.iter().map(|l| width(l)).fold(0.0, f64::max);
    let figures: Vec<String> = p.rows.iter().map(|r| p.axis.unit.text(r.mid)).collect();
    let right = WIDTH - 18.0 - figures.iter().map(|f| width(f)).fold(0.0, f64::max);
    let (top, bottom) = (26.0, 26.0 + ROW * p.rows.len() as f64);
    let values = p.rows.iter().flat_map(|r| [r.low, r.high]).chain([p.reference]);
    let x = Scaler::new(p.axis.scale, values, 7, (left, right));
    let none = x.at(p.reference).unwrap_or(left);
    let area = Area { left, top, right, bottom };
    // The label of a side is drawn only if it fits.
    let room = |text: &str, space: f64| width(text) + 10.0 <= space;
    let content = html! {
        (frame::horizontal(area, &p.axis, &x))
        line class="reference" x1=(px(none)) x2=(px(none)) y1=(px(top - 6.0)) y2=(px(bottom)) {}
        @if room(&p.sides.0, none - left) {
            text class="axis" x=(px(none - 8.0)) y=(px(top - 12.0)) text-anchor="end" { (p.sides.0) }
        }
        @if room(&p.sides.1, right - none) {
            text class="axis" x=(px(none + 8.0)) y=(px(top - 12.0)) { (p.sides.1) }
        }
        @for (i, (row, (label, figure))) in p.rows.iter().zip(labels.iter().zip(&figures)).enumerate() {
            @let y = top + ROW * (i as f64 + 0.5);
            text class="bar-label" x=(px(left - 8.0)) y=(px(y + 4.0)) text-anchor="end" { (label) }
            @if let (Some(low), Some(mid), Some(high)) = (x.at(row.low), x.at(row.mid), x.at(row.high)) {
                g class=(tone_class(row.tone)) {
                    line class="interval" x1=(px(low)) x2=(px(high)) y1=(px(y)) y2=(px(y)) {}
                    circle class="mid" cx=(px(mid)) cy=(px(y)) r="4" {
                        title {
                            (row.label) ": " (figure) " [" (p.axis.unit.text(row.low)) ", " (p.axis.unit.text(row.high)) "]"
                        }
                    }
                }
            }
            text class="figure" x=(px(right + 10.0)) y=(px(y + 4.0)) { (figure) }
        }
    };
    (bottom + frame::BELOW, content)
}
