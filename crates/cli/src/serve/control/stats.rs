// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a daemon as JSON: what it serves, and its counters. Counters only grow; times are nanoseconds.

use super::inject;
use crate::serve::{confinement, show};
use blk::bio::Op;
use blk::stat::{DiskStats, HctxStats};
use host::driver::Aio;
use host::serve::ThreadReport;
use host::serve::client_memory;
use host::serve::view::View;
use host::serve::{Member, ServedDisk};
use serde_json::{Map, Value, json};

/// Returns the running plan with its current state, such as clients and sizes.
pub fn list(daemon: &View) -> Value {
    let mut all = show::value(daemon.plan());
    let disks = daemon.plan().disks();
    let part = |all: &mut Value, key: &str, index: usize, more: Value| {
        if let (Some(Value::Object(to)), Value::Object(from)) = (all[key].get_mut(index), more) {
            to.extend(from);
        }
    };
    for (index, plan) in disks.iter().enumerate() {
        if let Some(disk) = daemon.disk(&plan.name) {
            part(&mut all, "disks", index, of_disk(&disk, daemon.image_troubles(&plan.name)));
            if let Some(is_direct) = disk.is_direct() {
                part(&mut all, "disks", index, json!({ "direct": is_direct }));
            }
        }
    }
    for (index, export) in daemon.plan().exports().enumerate() {
        part(&mut all, "exports", index, json!({ "connected": daemon.clients(&export) }));
        if let Some(Ok(limits)) = daemon.disk(&export.plan.disk).map(|disk| disk.shown(export.plan.geometry)) {
            let (logical, physical) = (limits.logical_block_size, limits.physical_block_size);
            let blocks = json!({ "logical_block_size": logical, "physical_block_size": physical });
            part(&mut all, "exports", index, blocks);
        }
        if let Some(problem) = daemon.certificate_problem(&export) {
            part(&mut all, "exports", index, json!({ "certificate_problem": problem }));
        }
        if let Some(why) = daemon.gone(&export) {
            part(&mut all, "exports", index, json!({ "gone": why }));
        }
    }
    all["confinement"] = confinement::value();
    all["pid"] = json!(std::process::id());
    all
}

fn of_disk(disk: &ServedDisk, of_images: Vec<String>) -> Value {
    // Members have the same settings.
    let members = disk.members();
    let troubles = disk.injection_trouble().into_iter().chain(disk.flush_trouble()).chain(of_images);
    let mut all = json!({
        "bytes": disk.bytes(),
        "logical_block_size": disk.limits().logical_block_size,
        "physical_block_size": disk.limits().physical_block_size,
        "target_block_size": disk.block_size(),
        "scheduler": members[0].queue.scheduler(),
        "nr_hw_queues": members.iter().map(|m| u32::from(m.queue.map().nr_hw_queues())).sum::<u32>(),
        "drained": disk.is_drained(),
        "troubles": troubles.chain(disk.troubles()).collect::<Vec<_>>(),
        "injections": inject::rules(disk),
    });
    // If no file is open, the plan's value stays.
    if let Some(aio) = Aio::of_all(members.iter().filter_map(|m| m.driver.aio())) {
        all["aio"] = json!(aio.name());
    }
    all
}

/// Returns the counters.
pub fn stats(daemon: &View) -> Value {
    let disk = |plan: &host::serve::plan::DiskPlan| {
        let disk = daemon.disk(&plan.name)?;
        let stats = disk.stats();
        let mut out = json!({
            "name": plan.name,
            "hctx": disk.hctx_stats().iter().map(hctx).collect::<Vec<_>>(),
            "held_on_enospc": disk.held_on_enospc(),
        });
        if plan.stripe.is_some() {
            out["members"] = plan.targets.iter().zip(disk.members()).map(|(t, m)| member(t.text.as_str(), m)).collect();
        }
        if let Some(c) = disk.connections() {
            out["connections"] = json!({ "wanted": c.wanted, "up": c.up, "losses": c.losses, "replayed": c.replayed });
        }
        if let (Value::Object(out), Value::Object(more), Value::Object(now)) =
            (&mut out, of_stats(&stats), of_disk(&disk, daemon.image_troubles(&plan.name)))
        {
            out.extend(more);
            out.extend(now);
        }
        Some(out)
    };
    let disks: Vec<_> = daemon.plan().disks().iter().filter_map(disk).collect();
    let iothreads: Vec<_> = daemon.report().iter().map(thread).collect();
    let (taken, limit) = client_memory::usage();
    let memory = json!({ "taken": taken, "limit": limit });
    json!({ "uptime_ns": daemon.uptime().as_ns(), "client_memory": memory, "disks": disks, "iothreads": iothreads })
}

/// Returns the counters of one of the targets that a disk is striped over.
fn member(target: &str, member: &Member) -> Value {
    let mut out = of_stats(&member.queue.stats());
    out["target"] = json!(target);
    out["hctx"] = member.queue.hctx_stats().iter().map(hctx).collect();
    out["held_on_enospc"] = json!(member.queue.held_on_enospc());
    out
}

fn of_stats(stats: &DiskStats) -> Value {
    const OPS: [(&str, Op); 5] = [
        ("read", Op::Read),
        ("write", Op::Write),
        ("discard", Op::Discard),
        ("flush", Op::Flush),
        ("write_zeroes", Op::WriteZeroes),
    ];
    let op = |(name, op): (&str, Op)| {
        let o = stats.op(op);
        let value = json!({ "ios": o.ios, "merges": o.merges, "sectors": o.sectors, "time_ns": o.time_ns });
        (name.to_owned(), value)
    };
    let s = &stats.stages;
    json!({
        "ops": OPS.into_iter().map(op).collect::<Map<_, _>>(),
        "stages": {
            "requests": s.requests,
            "tag_wait_ns": s.tag_wait_ns,
            "ctx_ns": s.ctx_ns,
            "scheduler_ns": s.scheduler_ns,
            "dispatch_ns": s.dispatch_ns,
            "device_ns": s.device_ns,
        },
        "in_flight": stats.in_flight,
        "io_ticks_ns": stats.io_ticks_ns,
        "errors": stats.errors,
    })
}

fn hctx(h: &HctxStats) -> Value {
    json!({
        "queued": h.queued,
        "run": h.run,
        "dispatched": h.dispatched,
        "batches": h.batches,
        "requeues": h.requeues,
        "timeouts": h.timeouts,
    })
}

fn thread(t: &ThreadReport) -> Value {
    let source = |s: &host::serve::SourceReport| {
        json!({
            "number": s.handle.number(),
            "disk": s.disk,
            "export": s.export,
            "type": s.kind,
            "index": s.index,
            "served": s.served,
            "in_flight": s.in_flight,
            "latency_ns": s.handle.latency(),
        })
    };
    json!({
        "name": t.name,
        "alive_ns": t.alive.as_ns(),
        "busy_ns": t.busy.as_ns(),
        "cpu_ns": t.cpu.as_ns(),
        "sleeps": t.sleeps,
        "sources": t.sources.iter().map(source).collect::<Vec<_>>(),
    })
}
