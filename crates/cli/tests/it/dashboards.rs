// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Grafana dashboard and the alert rules of `contrib` fit the page of `mqblk serve --metrics`.
//!
//! Guarantees: each metric, label and fixed label value that they use is on the page of a daemon that uses every feature. promtool accepts
//! the rules, and each rule is tested. Panels of the dashboard do not overlap. Needs promtool.

use crate::certificates;
use crate::common;
use crate::serve_metrics;

use certificates::{Authority, NOW};
use common::{Dir, LONG};
use serde_json::Value;
use serve_metrics::{get, parse, parse_series};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vuclient::raw::message::{feature, protocol};
use vuclient::raw::{Format, Notify, Raw, block};

/// For each metric: the labels of its samples, without values (`stage`) and with each value (`stage="device"`).
type Page = BTreeMap<String, BTreeSet<String>>;

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// Returns the page of a daemon with a disk over connections, a multipath disk, certificates, and a virtqueue in use.
fn page() -> Page {
    let dir = Dir::new("dashboards");
    Authority::new("tests").server(dir.as_path(), "pki", NOW);
    let server = dir.start(&["serve", "ram:size=1m", "--control=server.sock"], "serving on");
    let target = "nbd+unix:///?socket=ram.nbd.sock";
    let args = ["serve", target, "--tls-certificates=pki", "--control=ctl.sock", "--metrics=127.0.0.1:0"];
    let daemon = dir.start(&args, "serving on");
    fs::write(dir.path("m.img"), [0; 1 << 20]).unwrap();
    dir.mqblk(&["ctl", "--control=ctl.sock", "add", "multipath:./m.img"]).exits(0);
    let socket = dir.path("nbd.vhost.sock");
    let mut guest = Raw::ready(socket.to_str().unwrap(), feature::VERSION_1, protocol::REPLY_ACK).unwrap();
    guest.start(0, 64, Format::Split, Notify::Both).unwrap();
    let serial = guest.block(block::GET_ID, 0, 20).unwrap();
    assert_eq!(guest.execute(0, &serial, LONG).unwrap().0, block::OK);
    let url = daemon.seen().lines().find_map(|l| l.split("metrics at http://").nth(1)).unwrap();
    let samples = parse(&get(url.strip_suffix("/metrics").unwrap()));
    let mut page = Page::new();
    for series in samples.keys() {
        let (name, labels) = parse_series(series);
        let known = page.entry(name.to_owned()).or_default();
        for (label, text) in labels {
            known.insert(format!("{label}=\"{text}\""));
            known.insert(label);
        }
    }
    drop(guest);
    for started in [daemon, server] {
        started.signal("TERM");
        started.ends().exits(0);
    }
    page
}

/// Returns the metrics that a text names, each with its matchers: `name{label="text", ...}`.
fn selectors(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("mqblk_") {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let matchers = inside.split(',').map(str::trim).filter(|matcher| !matcher.is_empty());
        found.push((name, matchers.collect()));
    }
    found
}

/// Returns the words of all lists in `text` between `open` and `close`.
fn listed<'a>(text: &'a str, open: &'static str, close: &'static str) -> impl Iterator<Item = &'a str> {
    let lists = text.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0));
    lists.flat_map(|list| list.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// Fails unless the page has the metrics that `text` selects, the labels that it groups by, and the labels in `shown`.
#[track_caller]
fn check(page: &Page, text: &str, shown: &[&str]) {
    // Prometheus adds these two.
    let mut all = BTreeSet::from(["instance", "job"]);
    for (name, matchers) in selectors(text) {
        let known = page.get(name).unwrap_or_else(|| panic!("{name} is not on the page: {text}"));
        for matcher in matchers {
            let label = matcher.split(['=', '!']).next().unwrap_or_default();
            let is_fixed = !matcher.contains('~');
            let wanted = if is_fixed { matcher.replace("!=", "=") } else { label.to_owned() };
            assert!(label == "instance" || known.contains(&wanted), "{name} has no {wanted}: {text}");
        }
        all.extend(known.iter().map(String::as_str));
    }
    let grouped = ["by (", "on (", "ignoring ("].into_iter().flat_map(|open| listed(text, open, ")"));
    for label in grouped.chain(shown.iter().copied()) {
        assert!(all.contains(label), "no metric has the label {label}: {text}");
    }
}

#[test]
fn alert_rules_pass_promtool_and_fit_the_page() {
    let dir = Dir::new("alerts");
    let [rules, tests] = ["prometheus/mqblk-alerts.yml", "prometheus/mqblk-alerts.test.yml"].map(contrib);
    dir.program("promtool", &["check", "rules", rules.to_str().unwrap()]).exits(0);
    dir.program("promtool", &["test", "rules", tests.to_str().unwrap()]).exits(0);
    let [rules, tests] = [rules, tests].map(|path| fs::read_to_string(path).unwrap());
    let page = page();
    let mut count = 0;
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        let tested = tests.matches(&format!("alertname: {name}\n")).count();
        assert!(tested >= 2, "{name} has {tested} tests: it must fire in one and not fire in another");
        assert!(rule.contains("severity: ") && rule.contains("summary: ") && rule.contains("description: "), "{rule}");
        check(&page, rule, &listed(rule, "$labels.", " ").collect::<Vec<_>>());
        count += 1;
    }
    assert!(count > 5, "{count} rules");
}

#[test]
fn the_dashboard_fits_the_page_and_no_panels_overlap() {
    let board: Value = serde_json::from_str(&fs::read_to_string(contrib("grafana/mqblk.json")).unwrap()).unwrap();
    let page = page();
    for variable in board["templating"]["list"].as_array().unwrap() {
        // The variable of the data source has no definition.
        let Some(definition) = variable["definition"].as_str() else { continue };
        let (expr, label) = definition.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        check(&page, expr, &[label]);
    }
    let panels = board["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for (i, panel) in panels.iter().enumerate() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "'{title}' has the id of another panel");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let [expr, legend] = ["expr", "legendFormat"].map(|key| target[key].as_str().unwrap());
            let found = selectors(expr);
            assert_eq!(found.len(), expr.matches('{').count(), "'{title}' has metrics of others: {expr}");
            let narrowed = found.iter().all(|(_, matchers)| matchers.contains(&"instance=~\"$instance\""));
            assert!(!found.is_empty() && narrowed, "'{title}' shows all instances: {expr}");
            assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "'{title}' has no remedy");
            check(&page, expr, &listed(legend, "{{", "}}").collect::<Vec<_>>());
        }
        let [x, y, w, h] = place(panel);
        assert!(w > 0 && h > 0 && x + w <= 24, "'{title}' is {w} wide at {x}");
        for other in &panels[..i] {
            let [ox, oy, ow, oh] = place(other);
            let is_apart = x >= ox + ow || ox >= x + w || y >= oy + oh || oy >= y + h;
            assert!(is_apart, "'{title}' overlaps {}", other["title"]);
        }
    }
    assert!(ids.len() > 20, "{} panels", ids.len());
}

fn place(panel: &Value) -> [u64; 4] {
    ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap())
}
