// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that figures in documents are those of the results files that the documents cite.
//!
//! If a table's row names a row of `cargo xtask bench`, as in (`null-qd1`), that row is looked up in the results files that the section
//! names above the table. Guarantees: each cell such as `2.41 [2.37, 2.43]` is the median and range of a figure in that row: a side's
//! IOPS, a ratio of two sides' IOPS or CPU time, or a figure that has a goal. So a figure in two documents is the same in both.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Documents with such tables.
const DOCUMENTS: [&str; 2] = ["README.md", "docs/performance.md"];

/// Median, minimum and maximum.
type Spread = [f64; 3];

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (*values.first()?, *values.last()?);
    let n = values.len();
    Some([0.5 * (values[(n - 1) / 2] + values[n / 2]), low, high])
}

/// Returns all figures of a row that a cell may have.
fn spreads(row: &Value) -> Vec<Spread> {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let rounds: Vec<Vec<Value>> = list(&row["rounds"]).iter().map(list).collect();
    let of = |round: &[Value], side: &str, figure: &str| round.iter().find(|s| s["side"] == side)?[figure].as_f64();
    let sides: BTreeSet<String> =
        rounds.iter().flatten().filter_map(|s| s["side"].as_str().map(str::to_owned)).collect();
    let mut found = Vec::new();
    for figure in ["iops", "cpu_us_per_io"] {
        for a in &sides {
            found.extend(spread(rounds.iter().filter_map(|r| of(r, a, figure)).collect()));
            let ratio = |b: &String| {
                spread(rounds.iter().filter_map(|r| Some(of(r, a, figure)? / of(r, b, figure)?)).collect())
            };
            found.extend(sides.iter().filter(|b| *b != a).filter_map(ratio));
        }
    }
    let judged = |j: &Value| Some([j["median"].as_f64()?, j["min"].as_f64()?, j["max"].as_f64()?]);
    found.extend(list(&row["judgements"]).iter().filter_map(judged));
    found
}

/// Reads a cell such as `11.4 M [11.4, 11.5]`. Returns its three values, and the rounding error that each may have.
fn shown(cell: &str) -> Option<([f64; 3], [f64; 3])> {
    let (median, range) = cell.trim().strip_suffix(']')?.split_once(" [")?;
    let (low, high) = range.split_once(", ")?;
    let (median, factor) = match median.split_once(' ') {
        Some((median, "M")) => (median, 1e6),
        Some((median, "k")) => (median, 1e3),
        Some(_) => return None,
        None => (median, 1.0),
    };
    let value = |text: &str| text.parse::<f64>().ok().map(|v| v * factor);
    let off = |text: &str| {
        let decimals = text.split_once('.').map_or(0, |(_, after)| after.len()) as i32;
        0.5001 * factor * 10f64.powi(-decimals)
    };
    let texts = [median, low, high];
    let [a, b, c] = texts.map(value);
    Some(([a?, b?, c?], texts.map(off)))
}

/// Returns the word between the last `open` and the `close` after it.
fn last_between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let after = &text[text.rfind(open)? + open.len()..];
    after.split_once(close).map(|(word, _)| word)
}

#[test]
fn figures_are_those_of_the_results_that_are_cited() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut checked = 0;
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let mut cited: Vec<Value> = Vec::new();
        for line in text.lines() {
            if line.starts_with('#') {
                cited.clear();
            }
            for name in line.split("`results/bench-").skip(1).filter_map(|after| after.split_once('`')) {
                let file = fs::read_to_string(root.join(format!("results/bench-{}", name.0))).unwrap();
                cited.push(serde_json::from_str(&file).unwrap());
            }
            let mut cells = line.split('|').skip(1);
            let Some(name) = cells.next().and_then(|head| last_between(head, "(`", "`)")) else { continue };
            let known: Vec<Spread> = cited.iter().flat_map(|results| spreads(&results["rows"][name])).collect();
            assert!(!known.is_empty(), "{document}: no results that the section cites above have a row {name}");
            for (values, off) in cells.filter_map(shown) {
                let is = |s: &Spread| (0..3).all(|i| (s[i] - values[i]).abs() <= off[i]);
                assert!(known.iter().any(is), "{document}, {name}: {values:?} is not in {known:?}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 30, "only {checked} figures were found");
}

#[test]
fn another_figure_is_found_out() {
    let round = |a: f64, b: f64| serde_json::json!([{ "side": "mqblk", "iops": a }, { "side": "fio", "iops": b }]);
    let row = serde_json::json!({ "rounds": [round(2e6, 1e6), round(3e6, 1e6), round(2.5e6, 1e6)] });
    let known = spreads(&row);
    let is = |cell: &str| {
        let (values, off) = shown(cell).unwrap();
        known.iter().any(|s| (0..3).all(|i| (s[i] - values[i]).abs() <= off[i]))
    };
    assert!(is("2.50 [2.00, 3.00]") && is("2.5 M [2.0, 3.0]"));
    assert!(!is("2.51 [2.00, 3.00]") && !is("2.5 M [2.1, 3.0]"));
    assert!(shown("n/a").is_none() && shown("49 ns [49, 51]").is_none());
}
