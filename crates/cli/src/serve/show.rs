// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A checked plan as text and as JSON, with the commands of its clients.

use crate::output;
use host::driver::Aio;
use host::serve::check::{CheckedPlan, Export};
use host::serve::cpus;
use host::serve::export_spec::{ExportValue, Hint, HintContext};
use host::serve::geometry::Geometry;
use host::serve::plan::{DiskPlan, IoThreadPlan};
use serde_json::{Map, Value, json};
use std::cell::LazyCell;
use std::fmt::Write;

/// Returns the plan as text.
pub fn text(plan: &CheckedPlan) -> String {
    let mut out = format!(
        "plan: {}, {}, {}\n",
        count(plan.disks().len(), "disk"),
        count(plan.exports().len(), "export"),
        count(plan.iothreads().len(), "IOThread")
    );
    // Writing to a String cannot fail.
    for (index, thread) in plan.iothreads().iter().enumerate() {
        let blank = if index == 0 { "\n" } else { "" };
        let _ = writeln!(out, "{blank}IOThread {}: {}", thread.name, iothread(thread));
    }
    let possible: LazyCell<Aio> = LazyCell::new(Aio::possible);
    for disk in plan.disks() {
        let _ = writeln!(out, "\ndisk {}: {}", disk.name, disk_line(disk, &possible));
        if !disk.settings.is_empty() {
            let all: Vec<String> = disk.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let _ = writeln!(out, "  settings: {}", all.join(" "));
        }
    }
    for (index, export) in plan.exports().enumerate() {
        let _ = writeln!(out, "\nexport {}: {}", export.plan.name, export_line(&export));
        let _ = writeln!(out, "  {}", served_by(plan, &export));
        for hint in hints(plan, &export, index) {
            let _ = writeln!(out, "  {}:", hint.title);
            for line in hint.text.lines() {
                let _ = writeln!(out, "    {line}");
            }
        }
    }
    out
}

/// `1 disk`, `2 disks`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn iothread(thread: &IoThreadPlan) -> String {
    let cpus = if thread.cpus.is_empty() { "any CPU".to_owned() } else { format!("CPU {}", cpus::list(&thread.cpus)) };
    match thread.poll.max_ns {
        Some(0) => format!("{cpus}, does not poll"),
        Some(ns) => format!("{cpus}, polls up to {ns} ns"),
        None => format!("{cpus}, polls adaptively"),
    }
}

fn disk_line(disk: &DiskPlan, possible: &LazyCell<Aio>) -> String {
    let targets: Vec<String> = disk.targets.iter().map(|t| t.text.as_str().escape_debug().to_string()).collect();
    let mut parts = vec![match disk.stripe {
        None => targets.join(" "),
        Some(stripe) => format!("stripe in chunks of {} over {}", stripe.chunk_text(), targets.join(" ")),
    }];
    parts.extend((disk.part.offset > 0).then(|| format!("offset={}", disk.part.offset)));
    parts.extend(disk.part.size.map(|size| format!("size={size}")));
    if disk.read_only {
        parts.push("read-only".to_owned());
    }
    if disk.paths().next().is_some() {
        parts.push(if disk.direct { "past the page cache" } else { "through the page cache" }.to_owned());
        parts.extend((disk.aio.unwrap_or_else(|| **possible) == Aio::Threads).then(|| "aio=threads".to_owned()));
    }
    parts.push(disk.write_cache.name().to_owned());
    if !disk.discard {
        parts.push("no discard".to_owned());
    }
    parts.push(format!("on_enospc={}", disk.on_enospc.name()));
    parts.extend(block_sizes(disk.geometry));
    if let Some(serial) = &disk.serial {
        parts.push(format!("serial '{serial}'"));
    }
    parts.join(", ")
}

/// The block sizes that are set, as in a configuration.
fn block_sizes(geometry: Geometry) -> impl Iterator<Item = String> {
    let logical = geometry.logical.map(|size| format!("logical_block_size={size}"));
    logical.into_iter().chain(geometry.physical.map(|size| format!("physical_block_size={size}")))
}

fn export_line(export: &Export<'_>) -> String {
    let (disk, ro) = (&export.plan.disk, if export.read_only { ", read-only" } else { "" });
    let kind = export.plan.kind.name();
    let place = export.plan.kind.summary();
    let blocks: String = block_sizes(export.plan.geometry).map(|size| format!(", {size}")).collect();
    format!("{kind} of disk '{disk}', {place}{ro}{blocks}")
}

/// How clients reach this export; `index` is its number in the plan.
fn hints(plan: &CheckedPlan, export: &Export<'_>, index: usize) -> Vec<Hint> {
    let (name, disk) = (&export.plan.name, &export.plan.disk);
    let logical_block_size = export.plan.geometry.logical.or(plan.disks()[export.disk].geometry.logical);
    export.plan.kind.hints(&HintContext { name, disk, index, read_only: export.read_only, logical_block_size })
}

/// Describes which IOThread serves which virtqueues: by the rule, if there is one, else by a list for each IOThread.
fn served_by(plan: &CheckedPlan, export: &Export<'_>) -> String {
    let name = |index: &usize| plan.iothreads()[*index].name.as_str();
    let queues = export.iothreads;
    let distinct = queues.iter().enumerate().take_while(|(i, q)| !queues[..*i].contains(q)).count();
    let names: Vec<&str> = queues[..distinct].iter().map(name).collect();
    let Some(n) = export.plan.kind.num_queues() else {
        return format!("connections round robin: {}", names.join(" "));
    };
    let last = n.saturating_sub(1);
    if distinct == 1 && queues.iter().all(|q| *q == queues[0]) {
        return format!("virtqueues 0..={last}: {}", names.join(" "));
    }
    if queues.iter().enumerate().all(|(vq, q)| *q == queues[vq % distinct]) {
        return format!("virtqueues 0..={last} round robin: {}", names.join(" "));
    }
    let mut lists: Vec<(usize, Vec<u32>)> = Vec::new();
    for (vq, thread) in (0u32..).zip(queues) {
        match lists.iter_mut().find(|(t, _)| t == thread) {
            Some((_, list)) => list.push(vq),
            None => lists.push((*thread, vec![vq])),
        }
    }
    let lists: Vec<String> = lists.iter().map(|(t, list)| format!("{} {}", name(t), cpus::list(list))).collect();
    format!("virtqueues: {}", lists.join("; "))
}

/// Returns the plan as JSON text.
pub fn json(plan: &CheckedPlan) -> String {
    output::json(&value(plan))
}

/// Returns the plan as a JSON value.
pub fn value(plan: &CheckedPlan) -> Value {
    let iothreads: Vec<Value> = plan.iothreads().iter().map(iothread_json).collect();
    let possible: LazyCell<Aio> = LazyCell::new(Aio::possible);
    let disks: Vec<Value> = plan.disks().iter().map(|disk| disk_json(disk, &possible)).collect();
    let exports: Vec<Value> = plan.exports().enumerate().map(|(i, e)| export_json(plan, &e, i)).collect();
    json!({ "iothreads": iothreads, "disks": disks, "exports": exports })
}

fn iothread_json(thread: &IoThreadPlan) -> Value {
    json!({
        "name": thread.name,
        "cpus": thread.cpus,
        "poll_max_ns": thread.poll.max_ns,
        "poll_grow": thread.poll.grow,
        "poll_shrink": thread.poll.shrink,
    })
}

fn disk_json(disk: &DiskPlan, possible: &LazyCell<Aio>) -> Value {
    let queue: Map<String, Value> =
        disk.settings.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect();
    let mut all = json!({
        "name": disk.name,
        "offset": disk.part.offset,
        "size": disk.part.size,
        "read_only": disk.read_only,
        "serial": disk.serial,
        "direct": disk.direct,
        "aio": disk.paths().next().map(|_| disk.aio.unwrap_or_else(|| **possible).name()),
        "write_cache": disk.write_cache.name(),
        "discard": disk.discard,
        "on_enospc": disk.on_enospc.name(),
        "logical_block_size": disk.geometry.logical,
        "physical_block_size": disk.geometry.physical,
        "queue": queue,
    });
    let targets: Vec<&str> = disk.targets.iter().map(|t| t.text.as_str()).collect();
    match disk.stripe {
        None => all["target"] = json!(targets.first()),
        Some(stripe) => {
            all["stack"] = json!("stripe");
            all["chunk"] = json!(stripe.chunk_bytes);
            all["targets"] = json!(targets);
        }
    }
    all
}

fn export_json(plan: &CheckedPlan, export: &Export<'_>, index: usize) -> Value {
    let iothreads: Vec<&str> = export.iothreads.iter().map(|i| plan.iothreads()[*i].name.as_str()).collect();
    let clients: Map<String, Value> =
        hints(plan, export, index).into_iter().map(|h| (h.key.to_owned(), Value::from(h.text))).collect();
    let mut out = json!({
        "name": export.plan.name,
        "disk": export.plan.disk,
        "type": export.plan.kind.name(),
        "read_only": export.read_only,
        "logical_block_size": export.plan.geometry.logical,
        "physical_block_size": export.plan.geometry.physical,
        "iothreads": iothreads,
        "clients": clients,
    });
    for (key, value) in export.plan.kind.values() {
        out[key] = match value {
            ExportValue::Text(text) => text.into(),
            ExportValue::Number(number) => number.into(),
        };
    }
    out
}
