// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws charts as SVG elements, for a page or as a separate file.
//!
//! Guarantees: labels do not overlap and stay inside the picture, as far as their width can be known without a font (tests check this
//! in a browser). There is no script, no font and no link. The tooltip of each mark shows its value. `chart.css` sets colours by class,
//! so that light mode, dark mode and print have their own. Callers may pass any text, because it is escaped and truncated here.
//! Does not: animate or scale text.

mod label;
mod scale;
mod frame;
mod lines;
mod bars;
mod heat;
mod intervals;

use maud::{Markup, PreEscaped, html};

use crate::chart::Plot;
use crate::document::Chart;
pub(crate) use label::tone_class;
use label::{WIDTH, px};

/// Rules for the classes that charts use.
pub const CSS: &str = include_str!("chart.css");

/// Returns the chart as an `svg` element.
pub fn draw(chart: &Chart) -> Markup {
    let (height, content) = match &chart.plot {
        Plot::Lines(p) => lines::draw(p),
        Plot::Bars(p) => bars::draw(p),
        Plot::Heat(p) => heat::draw(p),
        Plot::Intervals(p) => intervals::draw(p),
    };
    let (title, desc) = (format!("{}-t", chart.id), format!("{}-d", chart.id));
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox={ "0 0 " (WIDTH) " " (px(height)) }
            aria-labelledby={ (title) " " (desc) } {
            title id=(title) { (chart.title) }
            desc id=(desc) { (chart.summary) }
            (content)
        }
    }
}

/// Returns the chart as a separate file, in the colours of a page.
pub fn standalone(chart: &Chart) -> String {
    let text = draw(chart).into_string();
    let style = html! { style { (PreEscaped(CSS)) } rect class="paper" width="100%" height="100%" {} }.into_string();
    match text.split_once('>') {
        Some((head, rest)) => format!("{head}>{style}{rest}\n"),
        None => text,
    }
}
