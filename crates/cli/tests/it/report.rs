// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports of real runs and comparisons, as a real browser shows them. They request nothing from the network, nothing overlaps or
//! overflows, and no chart is empty. Names from outside appear as text, and every number on the page is in the sidecar.

use crate::common;

use common::Dir;
use common::browser::{self, Scheme};
use report::document::{Document, Kind};
use report::{page, svg};
use serde_json::Value;
use std::fs;

const JOB: &str = "[global]\nioengine=libaio\nbs=4k\nsize=64m\nnorandommap\ntime_based\nruntime=150ms\n";

/// Jobs in turn at several depths, one and two threads.
fn depths() -> String {
    let mut text = format!("{JOB}rw=randread\nstonewall\n");
    for depth in [1, 4, 16] {
        text += &format!("[one-{depth}]\niodepth={depth}\n[two-{depth}]\niodepth={depth}\nnumjobs=2\n");
    }
    text
}

/// Every text in a JSON value, joined by line ends.
fn strings(v: &Value, into: &mut String) {
    match v {
        Value::String(s) => {
            into.push_str(s);
            into.push('\n');
        }
        Value::Array(all) => all.iter().for_each(|v| strings(v, into)),
        Value::Object(all) => all.values().for_each(|v| strings(v, into)),
        _ => {}
    }
}

/// Returns the words that contain a digit.
fn numbers(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| c.is_whitespace() && c != '\u{202f}' && c != '\u{a0}');
    words.filter(|w| w.contains(|c: char| c.is_ascii_digit())).collect()
}

fn list(v: &Value, key: &str) -> Vec<String> {
    v[key].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// Checks what must hold for every page. Returns the ids of its charts.
fn looks_right(dir: &Dir, name: &str) -> Vec<String> {
    let page = format!("{name}.html");
    assert_eq!(browser::console(dir, &page), Vec::<String>::new(), "the browser's console is silent");
    let json = fs::read_to_string(dir.path(&format!("{name}.json"))).unwrap();
    let mut charts = Vec::new();
    for (width, scheme) in [(1200, Scheme::Light), (480, Scheme::Dark)] {
        let seen = browser::probe(dir, &page, width, scheme);
        assert_eq!(seen["dark"], scheme == Scheme::Dark);
        for (what, key) in [
            ("requests", "resources"),
            ("texts over each other", "overlaps"),
            ("texts that stick out of their chart", "outside"),
            ("elements with content that sticks out", "wide"),
            ("blocks over each other", "crossed"),
            ("cells whose words are broken", "squeezed"),
            ("tables with a scroll bar", "scrolled"),
        ] {
            assert_eq!(list(&seen, key), Vec::<String>::new(), "{what} at {width}");
        }
        let inner = seen["inner"].as_u64().unwrap();
        for key in ["scroll", "scrollOpen"] {
            assert!(
                seen[key].as_u64().unwrap() <= inner,
                "the page is wider than its window of {width}: {}",
                seen[key]
            );
        }
        for element in ["script", "img", "iframe", "object", "embed"] {
            let own = u64::from(element == "script");
            assert_eq!(seen["elements"].get(element).and_then(Value::as_u64).unwrap_or(0), own, "{element}");
        }
        let height = seen["height"].as_u64().unwrap() as u32;
        let shot = browser::picture(dir, &page, &format!("{name}-{width}.png"), (width, height), scheme);
        assert_eq!(shot.paper() < 80, scheme == Scheme::Dark, "paper {}", shot.paper());
        charts.clear();
        for chart in seen["charts"].as_array().unwrap() {
            let id = chart["id"].as_str().unwrap();
            assert!(
                !chart["title"].as_str().unwrap().is_empty() && chart["desc"].as_str().unwrap().len() > 10,
                "{chart}"
            );
            let [left, top, wide, high] = [0, 1, 2, 3].map(|i| chart["box"][i].as_f64().unwrap());
            let visible = wide.min(f64::from(width) - left);
            let (ink, colours) = shot.ink([left, top, visible, high]);
            assert!(ink > 0.005 && colours > 8, "{id} is blank at {width}: {ink} of it has ink, {colours} colours");
            charts.push(id.to_owned());
        }
        let mut known = String::new();
        strings(&serde_json::from_str(&json).unwrap(), &mut known);
        let figures = list(&seen, "figures").join("\n");
        for number in numbers(seen["text"].as_str().unwrap()).into_iter().chain(figures.lines()) {
            assert!(known.contains(number), "'{number}' is on the page and not in the sidecar");
        }
    }
    let document = Document::from_json(&json).unwrap();
    assert_eq!(page::render(&document), fs::read_to_string(dir.path(&page)).unwrap(), "page and sidecar are one");
    charts
}

#[test]
fn a_run_at_several_depths() {
    let dir = Dir::new("report");
    dir.file("j.fio", &depths());
    let target = "model:size=1g,lat_us=100,iops=50000,jitter_pct=30";
    let args = ["run", "j.fio", "--target", target, "--set", "nr_hw_queues=2", "--report", "out.html"];
    let done = dir.mqblk(&args).exits(0);
    done.says(&["report: out.html\n"]);
    let charts = looks_right(&dir, "out");
    let all = [
        "depth-iops",
        "depth-latency",
        "percentiles-chart",
        "rate-chart",
        "bandwidth-chart",
        "heat-0",
        "job-rate-chart",
        "job-bandwidth-chart",
        "job-median-chart",
        "stages-chart",
        "hctx-chart",
    ];
    assert_eq!(charts, all);
    let d = Document::from_json(&fs::read_to_string(dir.path("out.json")).unwrap()).unwrap();
    assert_eq!((d.kind, d.title.as_str()), (Kind::Run, "Run of j.fio"));
    let html = fs::read_to_string(dir.path("out.html")).unwrap();
    for part in ["I/Os per second", "mqblk run j.fio --target", "[two-16]", "nr_hw_queues", "governor", "Little"] {
        assert!(html.contains(part), "{part}");
    }
    assert!(d.data["fio"]["jobs"].as_array().unwrap().len() == 9 && d.data["record"]["histograms"].is_array());
}

#[test]
fn a_comparison_and_the_same_from_its_results() {
    let dir = Dir::new("report");
    dir.file("j.fio", &format!("{JOB}[a]\nrw=randread\niodepth=8\n[b]\nrw=write\nbs=64k\niodepth=2\n"));
    let sides = [
        "--a",
        "target=model:size=1g,lat_us=100,iops=50000",
        "--b",
        "scheduler=kyber,target=model:size=1g,lat_us=40000",
    ];
    let args =
        [&["compare", "j.fio", "--runtime=120ms", "--pairs=10", "--results=r.jsonl", "--report=out.html"], &sides[..]]
            .concat();
    dir.mqblk(&args).exits(0).says(&["results: r.jsonl\n", "report: out.html\n"]);
    let charts = looks_right(&dir, "out");
    let all = [
        "metrics-chart",
        "runs-chart",
        "percentiles-chart",
        "rate-chart",
        "bandwidth-chart",
        "heat-0",
        "heat-1",
        "stages-chart",
    ];
    assert_eq!(charts.iter().filter(|c| *c != "hctx-chart").collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
    let html = fs::read_to_string(dir.path("out.html")).unwrap();
    for part in ["B is slower", "target=model:size=1g,lat_us=100", "10 pairs", "--seed=", "from seed"] {
        assert!(html.contains(part), "{part}");
    }
    let again = ["report", "r.jsonl", "-o", "again.html", "--charts", "pictures"];
    dir.mqblk(&again).exits(0).says(&["report: again.html\n", "charts: pictures\n"]);
    for id in &charts {
        let text = fs::read_to_string(dir.path(&format!("pictures/{id}.svg"))).unwrap();
        assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"), "{id}");
    }
    assert_eq!(fs::read_to_string(dir.path("again.html")).unwrap(), html);
    let d = Document::from_json(&fs::read_to_string(dir.path("out.json")).unwrap()).unwrap();
    assert_eq!((d.kind, d.data["runs"].as_array().unwrap().len()), (Kind::Comparison, 20));
}

#[test]
fn names_from_outside_are_text() {
    let dir = Dir::new("report");
    let evil = "\"><img src=x onerror=alert(1)><b>&lt";
    let long = "W".repeat(300);
    let name = "a <i>&'\".fio";
    dir.file(
        name,
        &format!(
            "{JOB}[{evil}]\nrw=randread\niodepth=2\n[{long}]\nrw=randread\n# </code></pre><script>alert(2)</script>\n"
        ),
    );
    dir.mqblk(&["run", name, "--target", "null:size=1g", "--report", "out.html"]).exits(0);
    looks_right(&dir, "out");
    let seen = browser::probe(&dir, "out.html", 1000, Scheme::Light);
    let text = seen["text"].as_str().unwrap();
    for part in [evil, long.as_str(), "Run of a <i>&'\".fio", "</code></pre><script>alert(2)</script>"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(seen["elements"].get("i").is_none() && seen["elements"].get("b").is_none(), "{}", seen["elements"]);
}

#[test]
fn the_checks_can_fail() {
    let dir = Dir::new("report");
    dir.file("j.fio", &format!("{JOB}[a]\nrw=randread\n"));
    dir.mqblk(&["run", "j.fio", "--target", "null:size=1g", "--report", "out.html"]).exits(0);
    let html = fs::read_to_string(dir.path("out.html")).unwrap();
    let asks = html
        .replace("</main>", "<img src=\"http://127.0.0.1:9/x.png\" alt=\"\"><p style=\"width:3000px\">wide</p></main>");
    dir.file("asks.html", &asks);
    assert!(!browser::console(&dir, "asks.html").is_empty(), "the policy refuses an image, and the console says so");
    let seen = browser::probe(&dir, "asks.html", 1000, Scheme::Light);
    assert!(seen["scroll"].as_u64().unwrap() > 2_900 && !list(&seen, "wide").is_empty(), "{seen}");
    // All labels of the first chart are moved to the same place.
    let moved = html.replacen("<svg ", "<svg style=\"--x:1\" ", 1).replace("x=\"", "x=\"0\" data-x=\"");
    dir.file("moved.html", &moved);
    assert!(!list(&browser::probe(&dir, "moved.html", 1000, Scheme::Light), "overlaps").is_empty());
    let blank = html.replace("<svg ", "<svg visibility=\"hidden\" ");
    dir.file("blank.html", &blank);
    let shot = browser::picture(&dir, "blank.html", "blank.png", (1000, 4_000), Scheme::Light);
    let area = browser::probe(&dir, "blank.html", 1000, Scheme::Light)["charts"][0]["box"].clone();
    assert_eq!(shot.ink([0, 1, 2, 3].map(|i| area[i].as_f64().unwrap())), (0.0, 1));
}

#[test]
fn a_chart_stands_alone() {
    let dir = Dir::new("report");
    dir.file("j.fio", &format!("{JOB}[a]\nrw=randread\n"));
    dir.mqblk(&["run", "j.fio", "--target", "null:size=1g", "--report", "out.html"]).exits(0);
    let d = Document::from_json(&fs::read_to_string(dir.path("out.json")).unwrap()).unwrap();
    let charts = d.sections.iter().flat_map(|s| &s.blocks).filter_map(|b| match b {
        report::document::Block::Chart(c) => Some(c),
        _ => None,
    });
    let chart = charts.into_iter().next().expect("a run has a chart");
    dir.file("alone.svg", &svg::standalone(chart));
    let shot = browser::picture(&dir, "alone.svg", "alone.png", (760, 300), Scheme::Light);
    let (ink, colours) = shot.ink([0.0, 0.0, 760.0, 290.0]);
    assert!(ink > 0.005 && colours > 8, "{ink} {colours}");
}

#[test]
fn bad_names_are_refused_before_anything_runs() {
    let dir = Dir::new("report");
    dir.file("j.fio", &format!("{JOB}[a]\nrw=randread\n")).file("r.jsonl", "{}\n");
    let run = |report: &str| dir.mqblk(&["run", "j.fio", "--target", "null:size=1g", "--report", report]).exits(2);
    run("out.htm")
        .says(&["--report out.htm: must be a name that ends in .html; its data is written beside it as .json"]);
    run("no/out.html")
        .says(&["--report no/out.html: cannot be written: ", "name a file in a directory you may write to"]);
    let taken = ["run", "j.fio", "--target", "null:size=1g", "--json", "--output", "o.json", "--report", "o.html"];
    dir.mqblk(&taken).exits(2).says(&["--report o.html: would write o.json, which another option already uses"]);
    dir.mqblk(&["report", "none.jsonl"]).exits(2).says(&["results file none.jsonl: "]);
    dir.mqblk(&["report", "r.jsonl", "-o", "x.html"]).exits(2).says(&["results file r.jsonl, line 1: "]);
    assert_eq!(dir.list(), ["j.fio", "r.jsonl"]);
}

/// Tests that take long. Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn several_sides_are_side_by_side() {
        let dir = Dir::new("report");
        dir.file("j.fio", &format!("{JOB}[a]\nrw=randread\niodepth=8\n"));
        let sides =
            ["one:queue_depth=1", "two:queue_depth=2", "eight:queue_depth=8", "mq-deadline:scheduler=mq-deadline"];
        let sides: Vec<String> = sides.iter().map(|side| format!("--side={side}")).collect();
        let how = ["compare", "j.fio", "--runtime=60ms", "--pairs=10", "--warmup=0", "--results=r.jsonl"];
        let on = ["--target=model:size=1g,lat_us=2000", "--report=out.html"];
        dir.mqblk(&how.into_iter().chain(on).chain(sides.iter().map(String::as_str)).collect::<Vec<_>>()).exits(0);
        let charts = looks_right(&dir, "out");
        for chart in
            ["sides-chart", "metrics-chart", "metrics-C-chart", "metrics-D-chart", "runs-chart", "percentiles-chart"]
        {
            assert!(charts.iter().any(|c| c == chart), "{chart} is not among {charts:?}");
        }
        let html = fs::read_to_string(dir.path("out.html")).unwrap();
        for part in ["A: one:queue_depth=1 against 3 others", "D mq-deadline:scheduler=mq-deadline", "10 rounds"] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn iothread_study_shows_the_main_loop_and_fits_many_series() {
        let dir = Dir::new("report");
        dir.mqblk(&["sim", "--study", "iothreads", "--quick", "--report", "io.html"]).exits(0);
        assert_eq!(looks_right(&dir, "io"), ["iops-chart", "series-0-chart", "series-1-chart", "latency-chart"]);
        dir.mqblk(&["sim", "--study", "elevators", "--quick", "--report", "e.html"]).exits(0);
        assert_eq!(looks_right(&dir, "e").len(), 9, "five series of their own, and four charts of all");
    }

    #[test]
    fn a_study_and_this_host_beside_it() {
        let dir = Dir::new("report");
        let machine = "title = \"<b>two & sockets</b>\"\n[machine]\nsockets = 2\ncores = 8\n[disk]\nsize_gib = 64\nread_us = 10\nwrite_us = 10\n";
        dir.file("m.toml", machine);
        let ask = |more: &[&str]| dir.mqblk(&[&["sim", "--machine", "m.toml", "--quick"], more].concat()).exits(0);
        let done = ask(&["--study", "cpus", "--measure", "--seed", "5", "--report", "out.html"]);
        done.says(&["report: out.html\n"]);
        let charts = looks_right(&dir, "out");
        let all = ["iops-chart", "series-0-chart", "series-1-chart", "latency-chart", "cpu-chart", "lock-chart"];
        // With one CPU, this host gives a single point, which is not a chart.
        assert_eq!(charts.iter().filter(|c| *c != "here-chart").collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
        let d = Document::from_json(&fs::read_to_string(dir.path("out.json")).unwrap()).unwrap();
        assert_eq!((d.kind, d.verdict.word.as_str()), (Kind::Study, "With 16 CPUs \u{2018}mq\u{2019} has the most"));
        let reasons: Vec<&str> = done.out.lines().filter(|l| l.starts_with("sq: ") || l.starts_with("mq: ")).collect();
        assert_eq!(reasons.len(), 2, "{}", done.out);
        assert!(d.verdict.sentence.ends_with(&reasons.join(" ")), "{}", d.verdict.sentence);
        assert_eq!(d.data["simulated"].as_array().unwrap().len(), 10);
        let here = d.data["here"]["points"].as_array().unwrap();
        assert!(here.iter().all(|p| p["error"].is_number() && p["least"].as_f64() <= p["most"].as_f64()), "{here:?}");
        let html = fs::read_to_string(dir.path("out.html")).unwrap();
        for part in [
            "mqblk sim --machine m.toml",
            "&lt;b&gt;two &amp; sockets",
            "Machine file m.toml",
            "costs.path.irq_ns",
            "This host",
            "Seed 5:",
        ] {
            assert!(html.contains(part), "{part}");
        }
        // Without wall-clock times, the output is the same each time, as JSON, too.
        ask(&["--study", "depth", "--report", "one.html"]);
        let mut json = ask(&["--study", "depth", "--report", "two.html", "--json"]).json();
        assert_eq!(json.as_object_mut().unwrap().remove("format"), Some(1.into()));
        let of = |name: &str| Document::from_json(&fs::read_to_string(dir.path(name)).unwrap()).unwrap();
        let (one, two) = (of("one.json"), of("two.json"));
        assert_eq!((&one.verdict, &one.data), (&two.verdict, &two.data));
        assert_eq!(one.data, json);
        dir.mqblk(&["sim", "--seed", "1", "--report", "x.html"]).exits(2);
        let same = ["sim", "--study", "cpus", "--machine", "m.json", "--report", "m.html"];
        dir.file("m.json", machine).mqblk(&same).exits(2).says(&["--report m.html: would write m.json"]);
        assert_eq!(fs::read_to_string(dir.path("m.json")).unwrap(), machine);
    }

    #[test]
    fn a_tuning_at_once_and_from_its_results() {
        let dir = Dir::new("report");
        dir.file("j.fio", "[global]\nioengine=libaio\nbs=4k\nsize=64m\n[a]\nrw=randread\niodepth=32\n");
        let target = "model:size=1g,lat_us=2000,parallel=64";
        let search =
            ["--set", "queue_depth=4", "--set", "nr_hw_queues=1", "--knob", "queue_depth=4,8,16,64", "--budget", "40s"];
        let asks = [
            "tune",
            "j.fio",
            "--target",
            target,
            "--maximize",
            "a.iops",
            "--keep",
            "a.lat<=900ms",
            "--runtime",
            "100ms",
        ];
        let files = ["--seed", "1", "--results", "r.jsonl", "--report", "out.html"];
        let done = dir.mqblk(&[&asks[..], &search, &files].concat()).exits(0);
        done.says(&["report: out.html\n"]);
        let charts = looks_right(&dir, "out");
        for chart in ["confirmed-chart", "search-chart", "knob-0", "percentiles-chart", "stages-chart"] {
            assert!(charts.iter().any(|c| c == chart), "{chart}: {charts:?}");
        }
        let d = Document::from_json(&fs::read_to_string(dir.path("out.json")).unwrap()).unwrap();
        assert_eq!(d.kind, Kind::Tuning);
        // tests/it/tune.rs checks the result under other load. Here, the page must say the same as the text.
        let text = done.out.clone();
        let headline = text.lines().next().unwrap();
        assert_eq!(d.verdict.sentence, format!("{headline}."));
        let found = headline.starts_with("queue_depth=");
        assert_eq!(d.verdict.word, if found { "Better settings" } else { "Nothing better" }, "{headline}");
        dir.mqblk(&["report", "r.jsonl", "-o", "later.html"]).exits(0);
        assert_eq!(
            fs::read_to_string(dir.path("later.html")).unwrap(),
            fs::read_to_string(dir.path("out.html")).unwrap()
        );
        // Without the last line of its file, the search has not ended.
        let text = fs::read_to_string(dir.path("r.jsonl")).unwrap();
        let cut = text.trim_end().rfind('\n').unwrap() + 1;
        dir.file("cut.jsonl", &text[..cut]);
        let said = "cut.jsonl: the tuning has not ended; resume with: mqblk tune j.fio ";
        dir.mqblk(&["report", "cut.jsonl", "-o", "cut.html"]).exits(2).says(&[said]);
        assert!(!dir.path("cut.html").exists());
    }

    #[test]
    fn a_scenario_with_what_was_published() {
        let dir = Dir::new("report");
        let of_tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/");
        for name in ["azure-p80.toml", "azure-p80.fio"] {
            dir.file(name, &fs::read_to_string(format!("{of_tree}{name}")).unwrap());
        }
        dir.mqblk(&["sim", "azure-p80.toml", "--report", "out.html"]).exits(0).says(&["report: out.html\n"]);
        assert_eq!(looks_right(&dir, "out"), ["figures-chart", "stages-chart"]);
        let d = Document::from_json(&fs::read_to_string(dir.path("out.json")).unwrap()).unwrap();
        assert_eq!((d.kind, d.verdict.word.as_str()), (Kind::Scenario, "As published"));
        let html = fs::read_to_string(dir.path("out.html")).unwrap();
        for part in ["Why: seq_write: an I/O takes", "disk.write_us", "predicted", "fitted"] {
            assert!(html.contains(part), "{part}");
        }
    }
}
