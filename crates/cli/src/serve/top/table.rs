// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An interval as text: a table of disks with their hardware queues, one of IOThreads, one of virtqueues and connections.
//!
//! Guarantees: columns are as wide as what is in them; control characters in names are replaced.

use super::view::{DiskView, QueueView, ThreadView, View};
use host::serve::plan::serves_connections;

/// The whole text.
pub fn text(view: &View) -> String {
    let seconds = view.uptime_s as u64;
    let mut out = format!(
        "up {}:{:02}:{:02}, interval {:.1} s, {} disks, {} IOThreads, {} queues\n",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        view.interval_s,
        view.disks.len(),
        view.iothreads.len(),
        view.queues.len()
    );
    for rows in [disks(&view.disks), threads(&view.iothreads), queues(&view.queues)] {
        if rows.len() > 1 {
            out.push('\n');
            align(&mut out, &rows);
        }
    }
    out
}

type Row = Vec<String>;

fn row(cells: &[&str]) -> Row {
    cells.iter().map(|c| (*c).to_owned()).collect()
}

fn disks(disks: &[DiskView]) -> Vec<Row> {
    let mut rows = vec![row(&[
        "DISK", "r/s", "w/s", "o/s", "rMiB/s", "wMiB/s", "rareq-K", "wareq-K", "r-await", "w-await", "infl",
        "tag-wait", "queued", "sched", "device", "%util", "errors",
    ])];
    for d in disks {
        rows.push(vec![
            name(&d.disk),
            count(d.reads_s),
            count(d.writes_s),
            count(d.others_s),
            one(d.read_mib_s),
            one(d.write_mib_s),
            one(d.rareq_kib),
            one(d.wareq_kib),
            time(d.r_await_us),
            time(d.w_await_us),
            d.in_flight.to_string(),
            time(d.tag_wait_us),
            time(d.queued_us),
            time(d.scheduler_us),
            time(d.device_us),
            one(d.util_percent),
            d.errors.to_string(),
        ]);
        // A single hardware queue would only repeat the figures of the disk.
        for h in d.hctxs.iter().filter(|_| d.hctxs.len() > 1) {
            let mut about = format!("{}/s to the driver, {} per call", count(h.requests_s), one(h.batch));
            for (what, n) in [("requeues/s", count(h.requeues_s)), ("timeouts", h.timeouts.to_string())] {
                if n != "0" {
                    about += &format!(", {n} {what}");
                }
            }
            rows.push(vec![format!("  hctx{}", h.hctx), about]);
        }
    }
    rows
}

fn threads(threads: &[ThreadView]) -> Vec<Row> {
    let mut rows = vec![row(&["IOTHREAD", "%busy", "%cpu", "sleeps/s", "queues", "req/s"])];
    rows.extend(threads.iter().map(|t| {
        vec![
            name(&t.iothread),
            one(t.busy_percent),
            one(t.cpu_percent),
            count(t.sleeps_s),
            t.queues.to_string(),
            count(t.requests_s),
        ]
    }));
    rows
}

fn queues(queues: &[QueueView]) -> Vec<Row> {
    let mut rows = vec![row(&["QUEUE", "req/s", "infl", "p50", "p99", "p99.9", "iothread", "disk"])];
    rows.extend(queues.iter().map(|q| {
        let of = if serves_connections(&q.kind) { name(&q.export) } else { format!("{}:{}", name(&q.export), q.index) };
        vec![
            format!("{} {of}", q.kind),
            count(q.requests_s),
            q.in_flight.to_string(),
            time(q.p50_us),
            time(q.p99_us),
            time(q.p99_9_us),
            name(&q.iothread),
            name(&q.disk),
        ]
    }));
    rows
}

fn name(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A rate: whole from 10 on.
fn count(n: f64) -> String {
    if n <= 0.0 {
        return "0".to_owned();
    }
    if n >= 9.95 { format!("{n:.0}") } else { format!("{n:.1}") }
}

fn one(n: f64) -> String {
    if n <= 0.0 { "0".to_owned() } else { format!("{n:.1}") }
}

/// Microseconds in the unit that keeps them short.
fn time(us: f64) -> String {
    match us {
        0.0 => "0".to_owned(),
        us if us < 9.95 => format!("{us:.1}us"),
        us if us < 9_950.0 => format!("{us:.0}us"),
        us if us < 9_950_000.0 => format!("{:.0}ms", us / 1000.0),
        us => format!("{:.0}s", us / 1e6),
    }
}

/// Names to the left, numbers to the right. A row of two cells is a note, which makes no column wider.
fn align(out: &mut String, rows: &[Row]) {
    let columns = rows[0].len();
    let is_note = |row: &Row| row.len() < columns;
    let width = |column: usize| {
        let cells = rows.iter().filter(|r| column == 0 || !is_note(r)).filter_map(|r| r.get(column));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[i].saturating_sub(cell.chars().count()));
            match i {
                0 => line += &format!("{cell}{pad}"),
                _ if is_note(row) => line += &format!("  {cell}"),
                _ => line += &format!("  {pad}{cell}"),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}
