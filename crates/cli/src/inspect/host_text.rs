// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This host's block devices as text for people. What is missing is printed as missing.

use super::sysfs::{Device, HostFacts, QUEUE_FILES};
use lab::report::num::{self, Scale};
use std::fmt::Write;

/// All devices, then the module parameters.
pub fn text(f: &HostFacts) -> String {
    let mut out = format!("kernel {}\n", f.kernel.as_deref().unwrap_or("unknown"));
    if f.devices.is_empty() {
        out.push_str("\nno block devices under /sys/block (in a container they may be hidden)\n");
    }
    for d in &f.devices {
        device(&mut out, d);
    }
    // Writing to a String cannot fail.
    out.push_str("\nmodule parameters\n");
    for p in &f.parameters {
        let value = p.value.as_deref().unwrap_or("not there");
        let _ = writeln!(out, "  {:<34} = {value:<9}  {}", p.name, p.help);
    }
    out
}

fn device(out: &mut String, d: &Device) {
    let size = d.size_bytes.map_or_else(String::new, |s| format!(", {}", num::bytes(s, Scale::Binary)));
    let _ = writeln!(out, "\n{}: {}{size}", d.name, d.kind.as_deref().unwrap_or("unknown kind"));
    let queues = d.nr_hw_queues.map_or_else(|| "not there".to_owned(), |n| n.to_string());
    let _ = writeln!(out, "  {:<20} = {queues}", "nr_hw_queues");
    for name in QUEUE_FILES {
        let value = d.queue.get(name).map_or("not there", String::as_str);
        let _ = writeln!(out, "  {name:<20} = {value}");
    }
    for h in &d.hctxs {
        let or_unknown = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let _ = writeln!(
            out,
            "  hctx {:<4} tags={} reserved={} CPUs {}",
            h.hctx,
            or_unknown(h.nr_tags),
            or_unknown(h.nr_reserved_tags),
            h.cpu_list.as_deref().unwrap_or("?")
        );
    }
    for note in &d.notes {
        let _ = writeln!(out, "  note: {note}");
    }
}
