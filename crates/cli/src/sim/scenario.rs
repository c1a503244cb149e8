// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim SCENARIO.toml`: published and simulated figures side by side, how they change from row to row, and why.

use crate::args::SimArgs;
use crate::output;
use crate::progress::Line;
use crate::replay::command;
use crate::report;
use crate::status::{Failure, Outcome, Status};
use lab::report::pages::of_scenario::{self, ScenarioInput, base};
use lab::setup::Setup;
use sim::scenario::file::{Row, Scenario, split_figure};
use sim::scenario::outcome::{self, Figure, RowOutcome};
use sim::scenario::over_rows::over_rows;
use sim::scenario::why;
use std::fmt::Write;
use std::path::Path;
use workload::job::{JobFile, Override, ParseContext};

/// Simulates all rows of a scenario and prints them.
pub fn main(file: &Path, args: &SimArgs) -> Outcome {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|e| {
        Failure::new(format!("scenario '{name}': {e}; name a scenario, such as scenarios/azure-p80.toml"))
    })?;
    let scenario = Scenario::parse(&name, &text).map_err(Failure::new)?;
    let jobs = match &scenario.jobs {
        None => None,
        Some(jobs) => {
            let path = file.parent().unwrap_or(Path::new("")).join(jobs);
            let path = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|e| Failure::new(format!("{name}: jobs = '{jobs}': {path}: {e}")))?;
            Some((path, text))
        }
    };
    let beside = jobs.as_ref().map(|(path, _)| Path::new(path));
    let mut page = report::asked(args.report.as_ref(), &[Some(file), beside])?;
    let mut line = Line::new(args.eta);
    let mut rows = Vec::new();
    for (i, row) in scenario.row.iter().enumerate() {
        line.show(|| format!("Row {} of {}: {}", i + 1, scenario.row.len(), row.name));
        let simulated = match &jobs {
            None => outcome::simulate_guests(&scenario, row, args.seed),
            Some((path, text)) => {
                outcome::simulate(&scenario, row, &jobs_of(&scenario, row, path, text)?.jobs, args.seed)
            }
        };
        rows.push(simulated.map_err(|e| Failure::new(format!("{name}: row '{}': {e}", row.name)))?);
    }
    drop(line);
    match args.json {
        true => output::print(&output::json(&json(&scenario, &rows)))?,
        false => output::print(&render(&scenario, &rows))?,
    }
    if let Some(page) = &mut page {
        page.write(&of_scenario::document(&ScenarioInput {
            scenario: &scenario,
            rows: &rows,
            file: &name,
            jobs: jobs.as_ref().map(|(_, text)| text.as_str()),
            command: &command(),
            seed: args.seed,
            setup: &Setup::read(&[]),
        }))?;
    }
    Ok(Status::Done)
}

/// The jobs with the options of a row.
fn jobs_of(scenario: &Scenario, row: &Row, name: &str, text: &str) -> Result<JobFile, Failure> {
    let context = ParseContext { ncpus: scenario.machine.cpus(), ..ParseContext::bare(name) };
    let overrides: Vec<Override> = row
        .job
        .iter()
        .map(|(key, value)| Override { flag: "[row.job]", key: key.clone(), value: value.text() })
        .collect();
    JobFile::parse_str(text, &context, &overrides).map_err(Failure::new)
}

fn render(scenario: &Scenario, rows: &[RowOutcome]) -> String {
    let mut out = format!("{}\nsource: {}\n", scenario.title, scenario.source);
    let m = scenario.machine;
    let _ = writeln!(out, "machine: {} x {} cores x {} threads = {} CPUs\n", m.sockets, m.cores, m.threads, m.cpus());
    let widest = rows.iter().map(|r| r.name.len()).max().unwrap_or(0).max(4);
    let figure_widest = rows.iter().flat_map(|r| &r.figures).map(|f| f.name.len()).max().unwrap_or(0);
    let head = format!("{:widest$}  {:figure_widest$}", "row", "figure");
    let _ = writeln!(out, "{head}  {:>12}  {:>12}  {:>8}", "published", "simulated", "error");
    for row in rows {
        for (i, f) in row.figures.iter().enumerate() {
            let name = if i == 0 { row.name.as_str() } else { "" };
            let published = f.published.map_or("-".into(), |p| value(&f.name, p));
            let error = f.error().map_or(String::new(), |e| format!("{:+.1} %", 100.0 * e));
            let kind = match (f.published, f.fitted) {
                (None, _) => "",
                (_, true) => "fitted",
                (_, false) => "predicted",
            };
            let simulated = value(&f.name, f.simulated);
            let text = format!(
                "{name:widest$}  {:figure_widest$}  {published:>12}  {simulated:>12}  {error:>8}  {kind}",
                f.name
            );
            let _ = writeln!(out, "{}", text.trim_end());
        }
    }
    changes(&mut out, scenario, rows);
    for row in rows.iter().filter(|r| !r.no_effect.is_empty()) {
        let _ = writeln!(out, "\nsettings of '{}':", row.name);
        row.no_effect.iter().for_each(|why| {
            let _ = writeln!(out, "  {why}");
        });
    }
    over(&mut out, scenario, rows);
    fitted(&mut out, scenario);
    if !scenario.beside.is_empty() {
        out += "\nalso published, but not figures of this disk:\n";
        scenario.beside.iter().for_each(|b| {
            let _ = writeln!(out, "  {b}");
        });
    }
    out
}

/// Appends the change of each row relative to its base row, and the reasons.
fn changes(out: &mut String, scenario: &Scenario, rows: &[RowOutcome]) {
    for (i, row) in rows.iter().enumerate().skip(1) {
        let Some(first) = base(scenario, rows, i) else { continue };
        let _ = writeln!(out, "\n'{}' against '{}':", row.name, first.name);
        let ratios = &scenario.row[i].published_ratio;
        let is_published =
            |f: &Figure| f.published.is_some() || scenario.guests.is_some() || ratios.contains_key(&f.name);
        let any_published = row.figures.iter().any(is_published);
        for f in row.figures.iter().filter(|f| is_published(f) || (!any_published && !is_same(first, f))) {
            let Some(base) = first.figures.iter().find(|b| b.name == f.name) else { continue };
            let _ = writeln!(out, "  {}", change(base, f, ratios.get(&f.name).copied()));
        }
        let reasons = why::reasons(first, row);
        if reasons.is_empty() {
            let same = row.figures.iter().all(|f| is_same(first, f));
            let _ =
                writeln!(out, "  {}", if same { "no difference" } else { "why: cannot tell, latencies hardly differ" });
        }
        for reason in reasons {
            let _ = writeln!(out, "  why: {reason}.");
        }
    }
}

fn is_same(first: &RowOutcome, f: &Figure) -> bool {
    let base = first.figures.iter().find(|b| b.name == f.name);
    base.is_some_and(|b| (f.simulated / b.simulated - 1.0).abs() < 0.005)
}

fn change(base: &Figure, f: &Figure, ratio: Option<f64>) -> String {
    let simulated = f.simulated / base.simulated;
    let percent = |r: f64| format!("{:+.1} %", 100.0 * (r - 1.0));
    match ratio.or(base.published.zip(f.published).map(|(a, b)| b / a)) {
        Some(ratio) => format!("{}: published {}, simulated {}", f.name, percent(ratio), percent(simulated)),
        None => format!("{}: simulated {}", f.name, percent(simulated)),
    }
}

/// Appends published ratios whose load is unknown, next to the range over all simulated rows.
fn over(out: &mut String, scenario: &Scenario, rows: &[RowOutcome]) {
    let all = over_rows(scenario, rows);
    if !all.is_empty() {
        out.push_str(
            "\nchanges published without their load; simulated range over all rows that are compared with another row:\n",
        );
    }
    let change = |r: f64| if r < 2.0 { format!("{:+.1} %", 100.0 * (r - 1.0)) } else { format!("{r:.1} times") };
    for o in all {
        let place = if o.is_within() { "within" } else { "outside" };
        let [least, most] = [&o.least, &o.most].map(|c| format!("{} ('{}')", change(c.ratio), c.row));
        let _ = writeln!(out, "  {}: published {}, simulated {least} to {most}: {place}", o.name, change(o.published));
    }
}

fn fitted(out: &mut String, scenario: &Scenario) {
    if scenario.fitted.is_empty() {
        return;
    }
    out.push_str("\nfitted constants:\n");
    for f in &scenario.fitted {
        let now = scenario.constant(&f.constant).expect("checked with the file");
        let [low, high] = f.range;
        let _ = writeln!(
            out,
            "  {} = {now} (plausible: {low} to {high}), by {} of '{}': {}",
            f.constant, f.figure, f.row, f.meaning
        );
    }
}

/// A figure with its unit.
fn value(name: &str, v: f64) -> String {
    let metric = split_figure(name).map_or("", |(_, m)| m);
    match metric {
        "bw" => format!("{:.0} MB/s", v / 1e6),
        m if m.ends_with("_us") => why::time(v),
        "tps" => format!("{v:.0}/s"),
        "idle_pct" => format!("{v:.1} %"),
        _ => format!("{v:.0}"),
    }
}

fn json(scenario: &Scenario, rows: &[RowOutcome]) -> serde_json::Value {
    let fitted: Vec<_> = scenario
        .fitted
        .iter()
        .map(|f| {
            serde_json::json!({
                "constant": f.constant, "value": scenario.constant(&f.constant), "row": f.row, "figure": f.figure,
                "range": f.range, "meaning": f.meaning,
            })
        })
        .collect();
    let reason = |i| base(scenario, rows, i).map_or_else(Vec::new, |base| why::reasons(base, &rows[i]));
    let reasons: Vec<_> = (1..rows.len()).map(reason).collect();
    let ratios: Vec<_> = scenario.row.iter().map(|r| &r.published_ratio).collect();
    serde_json::json!({
        "published_ratios": ratios, "over_rows": over_rows(scenario, rows),
        "title": scenario.title, "source": scenario.source, "cpus": scenario.machine.cpus(), "rows": rows,
        "reasons": reasons, "fitted": fitted,
    })
}
