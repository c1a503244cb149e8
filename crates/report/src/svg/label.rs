// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes that all charts share, and labels: their estimated width without a font, truncation, and legends.

use maud::{Markup, html};

use crate::document::Tone;

/// Width of every chart in its own units; a page scales it.
pub const WIDTH: f64 = 760.0;
/// Assumed width of a character of a label: that of digits of a wide sans serif at 12 units.
const CHAR: f64 = 7.3;
/// Maximum length of a row's label, in characters. It leaves more than half of the width to the data.
pub const LABEL_CHARS: usize = 44;
/// Height of a line of text.
pub const LINE: f64 = 16.0;
/// Number of different line colours.
pub const COLOURS: usize = 7;

/// Formats a coordinate, rounded to a tenth.
pub fn px(v: f64) -> String {
    let text = format!("{v:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Returns at most `chars` characters of a text. A truncated text ends with a mark.
pub fn cut(text: &str, chars: usize) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if plain.chars().count() <= chars {
        return plain;
    }
    plain.chars().take(chars.saturating_sub(1)).chain(['\u{2026}']).collect()
}

/// Returns the estimated width of a label.
pub fn width(text: &str) -> f64 {
    let of = |c: char| match c {
        'W' | '@' => 1.6 * CHAR,
        // Characters of wide scripts count as two characters, as on a terminal.
        '\u{1100}'.. => 2.0 * CHAR,
        _ => CHAR,
    };
    text.chars().map(of).sum()
}

/// Returns the CSS class of a tone, in charts and pages.
pub const fn tone_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Neutral => "neutral",
        Tone::Good => "good",
        Tone::Caution => "caution",
        Tone::Bad => "bad",
    }
}

/// Returns the height and the content of a legend: names with a swatch each, wrapped to the width.
pub fn legend(names: &[String], class: &str, x: f64, y: f64) -> (f64, Markup) {
    let (mut at, mut line, mut placed) = (x, y, Vec::new());
    for (i, name) in names.iter().enumerate() {
        let shown = cut(name, 40);
        let wide = width(&shown) + 34.0;
        if at > x && at + wide > WIDTH {
            (at, line) = (x, line + LINE + 2.0);
        }
        placed.push((at, line, i, shown));
        at += wide;
    }
    let markup = html! {
        @for (at, line, i, name) in &placed {
            rect class={ (class) (i % COLOURS) } x=(px(*at)) y=(px(line - 9.0)) width="12" height="10" {}
            text x=(px(at + 17.0)) y=(px(*line)) { (name) }
        }
    };
    (line - y + LINE, markup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_cut_and_have_no_control_characters() {
        assert_eq!((cut("abcdef", 4), cut("a\nb", 9)), ("abc\u{2026}".into(), "a b".into()));
        assert_eq!((px(3.0), px(7.1234), px(-0.01)), ("3".into(), "7.1".into(), "0".into()));
    }
}
