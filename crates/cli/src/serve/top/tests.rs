// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two recorded answers to `stats`, a second apart under load, and the tables made from them.

use super::sample::Sample;
use super::table;
use super::view::View;
use serde_json::Value;

const BEFORE: &str = include_str!("recorded/before.json");
const AFTER: &str = include_str!("recorded/after.json");
const TABLE: &str = include_str!("recorded/table.txt");

fn samples() -> (Sample, Sample) {
    (serde_json::from_str(BEFORE).unwrap(), serde_json::from_str(AFTER).unwrap())
}

#[test]
fn the_text_of_two_recorded_samples() {
    let (before, after) = samples();
    let text = table::text(&View::between(&before, &after));
    assert_eq!(text, TABLE, "\n{text}");
}

#[test]
fn rates_and_averages_are_those_of_the_counters() {
    let (before, after) = samples();
    let view = View::between(&before, &after);
    let [before, after]: [Value; 2] = [BEFORE, AFTER].map(|t| serde_json::from_str(t).unwrap());
    let since = |path: &str| {
        let of = |v: &Value| v.pointer(path).unwrap_or_else(|| panic!("{path}")).as_f64().unwrap();
        of(&after) - of(&before)
    };
    let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} {b}");
    let seconds = since("/uptime_ns") / 1e9;
    close(view.interval_s, seconds);
    let disk = &view.disks[0];
    close(disk.writes_s, since("/disks/0/ops/write/ios") / seconds);
    close(disk.write_mib_s, since("/disks/0/ops/write/sectors") / 2048.0 / seconds);
    close(disk.tag_wait_us, since("/disks/0/stages/tag_wait_ns") / since("/disks/0/stages/requests") / 1000.0);
    let slow = &view.disks[1];
    close(slow.r_await_us, since("/disks/1/ops/read/time_ns") / since("/disks/1/ops/read/ios") / 1000.0);
    close(slow.util_percent, 100.0 * since("/disks/1/io_ticks_ns") / 1e9 / seconds);
    close(view.iothreads[1].busy_percent, 100.0 * since("/iothreads/1/busy_ns") / since("/iothreads/1/alive_ns"));
    // The percentile of the requests counted in between: that share of them is at or below it.
    let q = view.queues.iter().find(|q| q.kind == "nbd").unwrap();
    let bins = |v: &Value| -> Vec<(f64, f64)> {
        let threads = v["iothreads"].as_array().unwrap().iter().flat_map(|t| t["sources"].as_array().unwrap());
        let nbd = threads.filter(|s| s["type"] == "nbd").flat_map(|s| s["latency_ns"].as_array().unwrap());
        nbd.map(|b| (b[0].as_f64().unwrap(), b[1].as_f64().unwrap())).collect()
    };
    let count = |v: &Value, limit: f64| bins(v).iter().filter(|b| b.0 <= limit).map(|b| b.1).sum::<f64>();
    let part = |limit: f64| {
        let of = |limit: f64| count(&after, limit) - count(&before, limit);
        of(limit) / of(f64::MAX)
    };
    for (us, share) in [(q.p50_us, 0.5), (q.p99_us, 0.99), (q.p99_9_us, 0.999)] {
        let ns = us * 1000.0;
        assert!(part(ns + 1.0) >= share && part(ns - 1.0) < share, "{us} {share} {} {}", part(ns), part(ns - 1.0));
    }
}

#[test]
fn what_is_new_or_gone_or_began_anew_makes_no_rate() {
    let (before, after) = samples();
    // From an empty sample, and with no time in between.
    let all = View::between(&Sample::default(), &after);
    assert!(all.disks[0].writes_s > 0.0 && all.queues[0].p50_us > 0.0);
    let none = View::between(&after, &after);
    assert_eq!((none.interval_s, none.disks[0].writes_s, none.queues[0].p99_us), (0.0, 0.0, 0.0));
    assert!(!table::text(&none).contains("NaN") && !table::text(&none).contains("inf,"));
    // Time that runs backwards: another daemon at the same socket.
    let other = View::between(&after, &before);
    assert!(other.disks[0].writes_s == 0.0 && other.iothreads.iter().all(|t| t.busy_percent <= 100.0));
    let mut anew = before.clone();
    anew.disks[0].stages.requests = u64::MAX;
    let anew = View::between(&anew, &after);
    assert!(anew.disks[0].writes_s > View::between(&before, &after).disks[0].writes_s, "it has counted from zero");
    let mut empty = after;
    (empty.disks, empty.iothreads) = (Vec::new(), Vec::new());
    assert_eq!(table::text(&View::between(&before, &empty)).lines().count(), 1);
}

#[test]
fn a_name_does_nothing_to_a_terminal() {
    let (before, mut after) = samples();
    after.disks[0].name = "a\u{1b}[2J\nb".to_owned();
    let text = table::text(&View::between(&before, &after));
    assert!(text.contains("a?[2J?b") && !text.contains('\u{1b}'), "{text}");
}
