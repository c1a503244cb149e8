// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes and the JSON of small traces. Other tests, with the program, check that Debian's tools can read them.

use super::*;
use crate::run::{RunSpec, Unobserved};
use crate::world::execute;
use serde_json::Value;
use std::sync::Arc;
use workload::job::{JobFile, ParseContext};

fn traced(job: &str, settings: &[(&str, &str)], look: impl FnOnce(&Run<'_>)) {
    let file = JobFile::parse_str(job, &ParseContext::bare("test"), &[]).unwrap();
    let settings: Vec<_> = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let spec = RunSpec {
        file: &file,
        target: Some("null:size=1g"),
        settings: &settings,
        entropy: 1,
        stop: Arc::default(),
        trace_events: 10_000,
        force: false,
        slices: false,
        files: None,
    };
    look(&execute(&spec, &mut Unobserved).unwrap());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn records_are_whole_in_order_and_numbered_without_gaps() {
    let job =
        "[j]\nrw=randwrite\nbs=4k\nsize=1m\nnumber_ios=100\niodepth=8\niodepth_batch_submit=8\nioengine=io_uring\n";
    traced(job, &[("scheduler", "mq-deadline")], |run| {
        let threads = threads_of(run, 0);
        let mut out = Vec::new();
        blktrace::write_cpu(&threads, 0, 3, &mut out).unwrap();
        let (mut at, mut last, mut sequence, mut acts) = (0, 0, 0, Vec::new());
        while at < out.len() {
            assert_eq!((u32_at(&out, at), u32_at(&out, at + 36)), (0x6561_7407, 259 << 20 | 3));
            sequence += 1;
            assert_eq!(u32_at(&out, at + 4), sequence);
            let time = u64::from_le_bytes(out[at + 8..at + 16].try_into().unwrap());
            assert!(time >= last, "times go back at record {sequence}");
            last = time;
            acts.push(u32_at(&out, at + 28) & 0xffff);
            at += workload::replay::blktrace::RECORD_BYTES
                + usize::from(u16::from_le_bytes(out[at + 46..at + 48].try_into().unwrap()));
        }
        assert_eq!(at, out.len(), "the last record is cut");
        let count = |act| acts.iter().filter(|a| **a == act).count();
        // A note names the process. Every I/O is queued and becomes a request or part of one. Every request is issued or
        // merged into its neighbour, and every issued request completes.
        assert_eq!((count(0), count(1), count(7)), (1, 100, count(8)), "{acts:?}");
        assert_eq!(count(7) + count(2) + count(3), 100, "{acts:?}");
    });
}

#[test]
fn chrome_has_a_slice_per_request_at_the_driver() {
    let job = "[j]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=50\niodepth=4\nioengine=io_uring\n";
    traced(job, &[("scheduler", "none")], |run| {
        let mut out = Vec::new();
        chrome::write(&threads_of(run, 0), "null", &mut out).unwrap();
        let doc: Value = serde_json::from_slice(&out).unwrap();
        let events = doc["traceEvents"].as_array().unwrap();
        let of = |ph: &str, name: &str| {
            events.iter().filter(|e| e["ph"] == ph && e["name"].as_str().unwrap().starts_with(name)).count()
        };
        assert_eq!((of("X", "read "), of("i", "Q"), of("i", "D"), of("i", "C")), (50, 50, 50, 50));
        assert!(events.iter().filter(|e| e["ph"] == "X").all(|e| e["dur"].as_f64().unwrap() >= 0.0));
    });
}

#[test]
fn a_place_that_cannot_be_written_is_refused_with_a_remedy() {
    let e = probe(Path::new("/no/such/directory/t"), TraceFormat::Blktrace).unwrap_err().to_string();
    assert!(e.contains("/no/such/directory/t.blktrace.0") && e.contains("directory you may write to"), "{e}");
}
