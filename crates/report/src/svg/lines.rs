// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines and points over two axes, each line named at its end.
//!
//! Guarantees: names at the ends do not touch; lines differ in colour, dashes and marks. Does not: reduce the number of points.

use maud::{Markup, html};

use super::frame::{self, Area};
use super::label::{COLOURS, LINE, WIDTH, cut, px, width};
use super::scale::Scaler;
use crate::chart::{Lines, Point, Scale, Series, Style};

const HEIGHT: f64 = 300.0;
/// Maximum characters of a name at the end of a line.
const NAME_CHARS: usize = 36;
/// Maximum number of lines with names at their ends, because more would not fit.
const NAMED: usize = 14;

/// Returns the height and the content.
pub fn draw(p: &Lines) -> (f64, Markup) {
    let named: Vec<String> = p.series.iter().take(NAMED).map(|s| cut(&s.name, NAME_CHARS)).collect();
    // Names are bold, so they are up to a quarter wider than the estimate.
    let right = WIDTH - 14.0 - 1.25 * named.iter().map(|n| width(n)).fold(0.0, f64::max);
    let (top, bottom) = (frame::ABOVE, HEIGHT - frame::BELOW);
    let points = || p.series.iter().flat_map(|s| &s.points);
    let ys = points().flat_map(|q| [Some(q.y), q.interval.map(|i| i.0), q.interval.map(|i| i.1)]).flatten();
    let y = Scaler::new(p.y.scale, ys, 6, (bottom, top));
    let left = frame::left_of(&p.y, &y);
    let x = match p.x.scale {
        // The values are times, or counts of runs. The axis ends at the last one.
        Scale::Linear => {
            Scaler::exact(Scale::Linear, (0.0, points().map(|q| q.x).fold(0.0, f64::max)), 9, (left, right))
        }
        scale => Scaler::new(scale, points().map(|q| q.x), 9, (left, right)),
    };
    let area = Area { left, top, right, bottom };
    let at = |q: &Point| Some((x.at(q.x)?, y.at(q.y)?));
    let content = html! {
        (frame::draw(area, (&p.x, &x), (&p.y, &y), true))
        @for s in &p.series {
            g class={ "s" (usize::from(s.colour) % COLOURS) } {
                @if s.style != Style::Dots {
                    path class="line" d=(path(s.points.iter().filter_map(at))) {}
                }
                @for q in &s.points {
                    @if let (Some((px_x, px_y)), true) = (at(q), s.style != Style::Line) {
                        @if let (Some(low), Some(high)) = (q.interval.and_then(|i| y.at(i.0)), q.interval.and_then(|i| y.at(i.1))) {
                            line class="whisker" x1=(px(px_x)) x2=(px(px_x)) y1=(px(low)) y2=(px(high)) {}
                        }
                        path class="mark" d=(mark(s.colour, px_x, px_y)) { title { (told(p, s, q)) } }
                    }
                }
            }
        }
        (names(p, &named, area, at))
    };
    (HEIGHT, content)
}

/// Returns the tooltip of a point.
fn told(p: &Lines, s: &Series, q: &Point) -> String {
    let interval = q
        .interval
        .map_or_else(String::new, |(low, high)| format!(" [{}, {}]", p.y.unit.text(low), p.y.unit.text(high)));
    format!("{}: {}{interval} at {}", s.name, p.y.unit.text(q.y), p.x.unit.text(q.x))
}

/// Draws the names of lines at their last points, moved apart if they would touch.
fn names(p: &Lines, named: &[String], area: Area, at: impl Fn(&Point) -> Option<(f64, f64)>) -> Markup {
    let ends = p.series.iter().zip(named).filter_map(|(s, name)| {
        let end = s.points.iter().rev().find_map(&at)?;
        // Points without a line have no end, so their name is drawn at their mean height.
        let height = match s.style {
            Style::Dots => {
                let all: Vec<f64> = s.points.iter().filter_map(|q| Some(at(q)?.1)).collect();
                all.iter().sum::<f64>() / all.len() as f64
            }
            _ => end.1,
        };
        Some((height + 4.0, s, name))
    });
    let mut placed: Vec<(f64, &Series, &String)> = ends.collect();
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut above = f64::NEG_INFINITY;
    for (y, ..) in &mut placed {
        *y = y.max(above + LINE);
        above = *y;
    }
    // Names below the bottom are moved up again.
    let mut below = area.bottom + LINE;
    for (y, ..) in placed.iter_mut().rev() {
        *y = y.min(below - LINE);
        below = *y;
    }
    html! {
        @for (y, s, name) in &placed {
            text class={ "name s" (usize::from(s.colour) % COLOURS) } x=(px(area.right + 8.0)) y=(px(*y)) {
                (name) title { (s.name) }
            }
        }
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut d = String::new();
    for (i, (x, y)) in points.enumerate() {
        d.push(if i == 0 { 'M' } else { 'L' });
        d.push_str(&px(x));
        d.push(' ');
        d.push_str(&px(y));
    }
    d
}

/// Returns the mark of a colour: circle, square, triangle, diamond, inverted triangle, then the same again.
fn mark(colour: u8, x: f64, y: f64) -> String {
    let p = |dx: f64, dy: f64| format!("{} {}", px(x + dx), px(y + dy));
    match colour % 5 {
        0 => format!("M{}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", p(-3.5, 0.0)),
        1 => format!("M{}h6.4v6.4h-6.4z", p(-3.2, -3.2)),
        2 => format!("M{}L{}L{}z", p(0.0, -4.2), p(4.0, 3.2), p(-4.0, 3.2)),
        3 => format!("M{}L{}L{}L{}z", p(0.0, -4.4), p(4.4, 0.0), p(0.0, 4.4), p(-4.4, 0.0)),
        _ => format!("M{}L{}L{}z", p(0.0, 4.2), p(4.0, -3.2), p(-4.0, -3.2)),
    }
}
