// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole path of `mqblk run` on the null driver: job engine, block layer, latencies recorded.
//!
//! Prints I/Os per second of one job thread (and of two) for a few settings; an argument picks one by name. Smoke-sized
//! under `cargo test --benches`. `ios=N` makes each job end after N I/Os instead of a time: two such runs under an instruction
//! counter give the instructions of one I/O, as (I(2N) - I(N)) / N. `trace=N` has each thread trace up to N events.

extern crate mqblk_host as host;

use host::run::{RunPlan, prepare};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use workload::job::{JobFile, ParseContext};

fn iops(job: &str, settings: &[(&str, &str)], trace: usize) -> f64 {
    let jobs = JobFile::parse_str(job, &ParseContext::bare("bench"), &[]).expect("the bench's job is right").jobs;
    let settings: Vec<_> = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let plan = RunPlan {
        target: Some("null"),
        settings: &settings,
        laying_out: &mut |_, _, _| ControlFlow::Continue(()),
        stop: Arc::new(AtomicBool::new(false)),
        entropy: 1,
        force: false,
        aux_dir: std::path::Path::new(""),
    };
    let mut prepared = prepare(&jobs, plan).expect("null target");
    prepared.trace(trace);
    let outcome = prepared.run(&mut |_| {}).expect("runs");
    let dropped: u64 = outcome.threads.iter().flatten().flat_map(|t| &t.traces).map(|t| t.log.dropped).sum();
    if dropped > 0 {
        println!("  the trace was full: {dropped} events dropped");
    }
    let rate = |s: &workload::stats::JobStats| s.total_ios() as f64 * 1e9 / s.runtime_ns.max(1) as f64;
    outcome.threads.iter().flatten().map(|t| rate(&t.stats)).sum()
}

fn main() {
    let smoke = !std::env::args().any(|a| a == "--bench");
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let ios = args.iter().find_map(|a| a.strip_prefix("ios="));
    let trace =
        args.iter().find_map(|a| a.strip_prefix("trace=")).map_or(0, |n| n.parse().expect("a number of events"));
    let only = args.iter().find(|a| !a.contains('='));
    host::clock::start();
    let until = match ios {
        Some(n) => format!("number_ios={n}\nio_size=1p"),
        None => format!("time_based\nruntime={}ms", if smoke { 20 } else { 1500 }),
    };
    let job =
        |more: &str| format!("[j]\nioengine=io_uring\nrw=randread\nbs=4k\nsize=1g\nnorandommap=1\n{until}\n{more}");
    let batch = "iodepth=32\niodepth_batch_submit=32\niodepth_batch_complete_min=1\niodepth_batch_complete_max=32\n";
    let none = [("scheduler", "none")];
    for (name, text, settings) in [
        ("none qd1", job("iodepth=1\n"), &none[..]),
        ("none qd32 batch 1", job("iodepth=32\n"), &none[..]),
        ("none qd32 batch 32", job(batch), &none[..]),
        ("none qd32 batch 32 x2", job(&format!("{batch}numjobs=2\n")), &none[..]),
        ("mq-deadline qd32 batch 32", job(batch), &[("scheduler", "mq-deadline")][..]),
        ("sq deadline qd32 batch 32", job(batch), &[("mode", "sq")][..]),
        ("sq deadline qd32 batch 32 x2", job(&format!("{batch}numjobs=2\n")), &[("mode", "sq")][..]),
    ] {
        if only.is_some_and(|o| o != name) {
            continue;
        }
        println!("{name}: {:.2} M IOPS", iops(&text, settings, trace) / 1e6);
    }
}
