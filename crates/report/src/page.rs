// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a document as one HTML file.
//!
//! Guarantees: no script and no request; readable without styles, in light and dark mode, and on paper. The page's
//! Content-Security-Policy allows only the styles in the file. The template escapes all text. The page does not scroll sideways: wide
//! tables and charts scroll on their own.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::document::{Block, Cell, Column, Document, Section, Table, Tone, Verdict};
use super::svg;

const CSS: &str = include_str!("page.css");

/// A page may use only the styles in the file itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// Returns the page.
pub fn render(d: &Document) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content="mqblk";
                // Without an icon here, a browser requests one.
                link rel="icon" href="data:,";
                title { (d.title) }
                style { (PreEscaped(svg::CSS)) (PreEscaped(CSS)) }
            }
            body {
                header {
                    h1 { (d.title) }
                    p.subtitle { (d.subtitle) }
                }
                main {
                    (verdict(&d.verdict))
                    (contents(&d.sections))
                    @for s in &d.sections { (section(s)) }
                }
            }
        }
    };
    page.into_string()
}

/// A sign for each tone, for readers who cannot see the colour.
const fn sign(tone: Tone) -> &'static str {
    match tone {
        Tone::Neutral => "\u{2248}",
        Tone::Good => "\u{25b2}",
        Tone::Caution => "!",
        Tone::Bad => "\u{25bc}",
    }
}

fn verdict(v: &Verdict) -> Markup {
    html! {
        section id="verdict" class=(svg::tone_class(v.tone)) aria-label="Verdict" {
            p.verdict {
                span.sign aria-hidden="true" { (sign(v.tone)) }
                strong { (v.word) } ": " (v.sentence)
            }
            @if !v.points.is_empty() { ul.points { @for point in &v.points { li { (point) } } } }
            @if !v.warnings.is_empty() {
                ul.warnings {
                    @for w in &v.warnings { li { strong { "Warning: " } (w.text) ". " span.advice { (sentence(&w.advice)) } } }
                }
            }
        }
    }
}

/// Returns the text with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map_or_else(String::new, |c| c.to_uppercase().collect());
    let rest: String = chars.collect();
    let end = if rest.ends_with(['.', '!', '?']) || rest.is_empty() { "" } else { "." };
    format!("{first}{rest}{end}")
}

fn contents(sections: &[Section]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul { @for s in sections { li { a href={ "#" (s.id) } { (s.title) } } } }
        }
    }
}

fn section(s: &Section) -> Markup {
    html! {
        section id=(s.id) {
            h2 { (s.title) }
            @if !s.lead.is_empty() { p.lead { (s.lead) } }
            @for b in &s.blocks { (block(b)) }
        }
    }
}

fn block(b: &Block) -> Markup {
    match b {
        Block::Table(t) => table(t),
        Block::Note { text } => html! { p.note { (text) } },
        Block::Code { caption, text } => html! {
            figure.code { figcaption { (caption) } pre tabindex="0" { code { (text) } } }
        },
        Block::Chart(c) => html! {
            figure id=(c.id) {
                figcaption { strong { (c.title) } @if !c.summary.is_empty() { ". " (c.summary) } }
                div.scroll tabindex="0" role="group" aria-label=(c.title) { (svg::draw(c)) }
                @if let Some(t) = &c.table { details { summary { "Figures" } (table(t)) } }
            }
        },
    }
}

/// How many columns fit next to each other on a narrow page.
const NARROW: usize = 3;

fn table(t: &Table) -> Markup {
    let number = |i: usize| t.columns.get(i).is_some_and(|c| c.numeric).then_some("n");
    html! {
        // On a narrow page, a table with many columns becomes a list of cards.
        div.scroll tabindex="0" role="group" aria-label=(t.caption) {
            table class=[(t.columns.len() > NARROW).then_some("cards")] {
                @if !t.caption.is_empty() { caption { (t.caption) } }
                thead { tr { @for (i, c) in t.columns.iter().enumerate() { th scope="col" class=[number(i)] { (c.name) } } } }
                tbody {
                    @for row in &t.rows {
                        tr { @for (i, c) in row.iter().enumerate() { (cell(c, t.columns.get(i), number(i), i == 0)) } }
                    }
                }
            }
        }
        @if !t.note.is_empty() { p.note { (t.note) } }
    }
}

fn cell(c: &Cell, column: Option<&Column>, number: Option<&str>, heads: bool) -> Markup {
    let tone = (c.tone != Tone::Neutral).then(|| svg::tone_class(c.tone));
    let all: Vec<&str> = [number, tone, c.strong.then_some("strong")].into_iter().flatten().collect();
    let classes = (!all.is_empty()).then(|| all.join(" "));
    html! {
        @if heads {
            th scope="row" class=[classes] { (c.text) }
        } @else {
            td class=[classes] data-label=[column.map(|c| &c.name)] {
                // Better and worse get a sign. Cells with another tone say the reason in words.
                @if matches!(c.tone, Tone::Good | Tone::Bad) { span.sign aria-hidden="true" { (sign(c.tone)) } }
                (c.text)
            }
        }
    }
}
