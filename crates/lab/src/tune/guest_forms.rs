// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IOThreads, virtqueues and their mapping in the configuration forms of virtual machines.
//!
//! Guarantees: a form includes all of these settings or none, unchanged ones too, because a mapping without its virtqueues is
//! meaningless. A setting that a form does not have is reported as missing. Does not: set anything.
//! Sources: libvirt's formatdomain (iothreads, iothreadids, driver queues and iothreads; mapping since 10.0); QEMU's qapi/virtio.json
//! (IOThreadVirtQueueMapping, since 9.0) and iothread objects (poll-max-ns).

use std::fmt::Write;

use sim::machine::guest_times::Mapping;

use super::forms::{self, Form};
use super::journal::TunePlan;
use super::point::Point;
use crate::world::sim::guests::{IOTHREADS, MAPPING, POLL_US, QUEUES};

/// Returns `point` in a form, whether the plan tunes virtual machines or not.
pub fn render(form: Form, point: &Point, plan: &TunePlan) -> String {
    let is_guests = plan.base.iter().any(|(name, _)| name == QUEUES);
    if !is_guests || point.is_empty() {
        return forms::render(form, point, &plan.target);
    }
    let now = |name: &str| plan.base.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
    let all = Choice::of(&|name| point.get(name).unwrap_or_else(|| now(name)), point.get(POLL_US).is_some());
    let body = match form {
        Form::Libvirt => all.libvirt(),
        Form::Qemu => all.qemu(),
        Form::Toml => all.toml(point),
        _ => point
            .iter()
            .map(|(name, value)| {
                format!("# not in this form: {name}={value} (a setting of the virtual machine; use --print libvirt, qemu or toml)\n")
            })
            .collect(),
    };
    format!("# {}\n{body}", form.name())
}

/// All settings of a virtual machine's disk that a tuning may change.
struct Choice {
    iothreads: usize,
    queues: usize,
    mapping: Mapping,
    /// The polling time, if it is to change.
    poll_ns: Option<u64>,
}

impl Choice {
    fn of<'v>(value: &dyn Fn(&str) -> &'v str, polls: bool) -> Choice {
        let mapping = Mapping::ALL.iter().find(|(name, _)| *name == value(MAPPING)).map_or(Mapping::default(), |m| m.1);
        let poll_us = value(POLL_US).parse::<f64>().ok().filter(|_| polls);
        Choice {
            iothreads: value(IOTHREADS).parse().unwrap_or(0),
            queues: value(QUEUES).parse().unwrap_or(1),
            mapping,
            poll_ns: poll_us.map(|us| (us * 1e3).round() as u64),
        }
    }

    /// The virtqueues of an IOThread, numbered from 0, if they have to be listed.
    fn listed(&self, thread: usize) -> Option<Vec<usize>> {
        let of = |q: &usize| self.mapping.thread_of(*q, self.queues, self.iothreads) == thread;
        (self.mapping != Mapping::RoundRobin && self.iothreads > 1).then(|| (0..self.queues).filter(of).collect())
    }

    /// IOThreads that have a virtqueue. A list without a virtqueue is rejected.
    fn threads(&self) -> std::ops::Range<usize> {
        0..self.iothreads.min(self.queues)
    }

    fn libvirt(&self) -> String {
        // Writing to a String cannot fail.
        let queues = self.queues;
        let mut out = String::new();
        if self.iothreads == 0 {
            let _ = writeln!(
                out,
                "<driver name='qemu' queues='{queues}'/>  <!-- in the <disk>, without <iothreads> in this <driver> -->"
            );
            return out;
        }
        let _ = writeln!(out, "<iothreads>{}</iothreads>  <!-- in the <domain> -->", self.iothreads);
        if let Some(ns) = self.poll_ns {
            out.push_str("<iothreadids>\n");
            for id in 1..=self.iothreads {
                let _ = writeln!(out, "  <iothread id='{id}'><poll max='{ns}'/></iothread>");
            }
            out.push_str("</iothreadids>\n");
        }
        let _ = writeln!(
            out,
            "<driver name='qemu' queues='{queues}'>  <!-- in the <disk> of bus 'virtio' -->\n  <iothreads>"
        );
        for thread in self.threads() {
            let id = thread + 1;
            let _ = match self.listed(thread) {
                None => writeln!(out, "    <iothread id='{id}'/>"),
                Some(vqs) => {
                    let vqs: String = vqs.iter().map(|q| format!("<queue id='{q}'/>")).collect();
                    writeln!(out, "    <iothread id='{id}'>{vqs}</iothread>")
                }
            };
        }
        out.push_str("  </iothreads>\n</driver>\n");
        out
    }

    fn qemu(&self) -> String {
        let mut out = String::new();
        let poll = self.poll_ns.map_or_else(String::new, |ns| format!(",poll-max-ns={ns}"));
        for id in 1..=self.iothreads {
            let _ = writeln!(out, "-object iothread,id=iothread{id}{poll}");
        }
        let entries = self.threads().map(|thread| {
            let list = |vqs: Vec<usize>| vqs.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let vqs = self.listed(thread).map_or_else(String::new, |vqs| format!(",\"vqs\":[{}]", list(vqs)));
            format!("{{\"iothread\":\"iothread{}\"{vqs}}}", thread + 1)
        });
        let entries = entries.collect::<Vec<_>>().join(",");
        let mapping = if self.iothreads == 0 { String::new() } else { format!(",\"iothread-vq-mapping\":[{entries}]") };
        let queues = self.queues;
        let _ = writeln!(
            out,
            "-device '{{\"driver\":\"virtio-blk-pci\",\"drive\":\"DRIVE\",\"num-queues\":{queues}{mapping}}}'"
        );
        out
    }

    /// Lines of a machine file for the settings that differ.
    fn toml(&self, point: &Point) -> String {
        let mut out = String::new();
        let fields = [(QUEUES, "queues"), (MAPPING, "mapping"), (POLL_US, "iothread.poll_us")];
        let told: Vec<String> = fields
            .iter()
            .filter_map(|(name, field)| {
                let value = point.get(name)?;
                let is_number = value.parse::<f64>().is_ok();
                Some(if is_number { format!("{field} = {value}") } else { format!("{field} = \"{value}\"") })
            })
            .collect();
        if !told.is_empty() {
            let _ = writeln!(out, "[guests]\n{}", told.join("\n"));
        }
        if point.get(IOTHREADS).is_some() {
            let _ = writeln!(out, "[[row]]\nname = \"tuned\"\niothreads = {}", self.iothreads);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(iothreads: &str, queues: &str, mapping: &str) -> Choice {
        let all = [(IOTHREADS, iothreads), (QUEUES, queues), (MAPPING, mapping), (POLL_US, "16")].map(|(k, v)| (k, v));
        Choice::of(&|name| all.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value), false)
    }

    #[test]
    fn each_virtqueue_is_listed_once_or_dealt_by_qemu() {
        let text = choice("2", "5", "blocks").qemu();
        assert_eq!(
            text,
            "-object iothread,id=iothread1\n-object iothread,id=iothread2\n-device '{\"driver\":\"virtio-blk-pci\",\"drive\":\"DRIVE\",\"num-queues\":5,\
             \"iothread-vq-mapping\":[{\"iothread\":\"iothread1\",\"vqs\":[0,1,2]},{\"iothread\":\"iothread2\",\"vqs\":[3,4]}]}'\n"
        );
        let text = choice("2", "5", "round-robin").qemu();
        assert!(text.contains("[{\"iothread\":\"iothread1\"},{\"iothread\":\"iothread2\"}]"), "{text}");
        assert!(!choice("0", "5", "round-robin").qemu().contains("iothread"));
        // More IOThreads than virtqueues: QEMU rejects an IOThread without a virtqueue.
        let text = choice("4", "2", "blocks").libvirt();
        assert!(text.contains("<iothread id='2'><queue id='1'/></iothread>\n  </iothreads>"), "{text}");
        let polls = Choice { poll_ns: Some(16_000), ..choice("1", "2", "round-robin") };
        assert!(polls.libvirt().contains("<iothread id='1'><poll max='16000'/></iothread>"));
        assert!(polls.qemu().starts_with("-object iothread,id=iothread1,poll-max-ns=16000\n"));
    }
}
