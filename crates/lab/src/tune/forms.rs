// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A recommendation in the configuration forms of several systems: sysfs, udev, kernel command line, modprobe, libvirt,
//! QEMU, and mqblk's TOML.
//!
//! Guarantees: if a form lacks a setting, the output says so and names the place where it can be set; nothing is left out
//! silently. The elevator comes first where order matters: changing it resets nr_requests and its tunables
//! (block/elevator.c). Does not: set anything.
//! Sources: Documentation/ABI/stable/sysfs-block; module parameters of drivers/block/virtio_blk.c (num_request_queues,
//! queue_depth), drivers/scsi/storvsc_drv.c (storvsc_max_hw_queues), drivers/block/null_blk/main.c (submit_queues,
//! hw_queue_depth), drivers/scsi/scsi.c (use_blk_mq, until 4.20); libvirt's formatdomain (driver queues, queue_size);
//! QEMU's virtio-blk-pci (num-queues, queue-size).

use std::fmt::Write;

use host::secrets::is_hidden;

use super::point::Point;
use super::target_knobs;

/// A configuration form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines for a root shell.
    Sysfs,
    /// A udev rule, which sets the values again at every boot.
    Udev,
    /// Parameters for the kernel's command line.
    Cmdline,
    /// A line for /etc/modprobe.d.
    Modprobe,
    /// Part of a libvirt domain.
    Libvirt,
    /// Command line arguments of QEMU.
    Qemu,
    /// Part of a configuration of `mqblk serve`.
    Toml,
}

impl Form {
    /// All forms, with their names.
    pub const ALL: [(&'static str, Form); 7] = [
        ("sysfs", Form::Sysfs),
        ("udev", Form::Udev),
        ("cmdline", Form::Cmdline),
        ("modprobe", Form::Modprobe),
        ("libvirt", Form::Libvirt),
        ("qemu", Form::Qemu),
        ("toml", Form::Toml),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Form::ALL.iter().find(|(_, form)| *form == self).map_or("", |(name, _)| name)
    }
}

/// Files of /sys/block/DEV/queue.
const QUEUE_FILES: [&str; 7] =
    ["scheduler", "nr_requests", "max_sectors_kb", "nomerges", "rq_affinity", "wbt_lat_usec", "read_ahead_kb"];
/// Driver parameters for the number of hardware queues and their depth: module, queues, depth.
const MODULES: [(&str, Option<&str>, Option<&str>); 3] = [
    ("virtio_blk", Some("num_request_queues"), Some("queue_depth")),
    ("hv_storvsc", Some("storvsc_max_hw_queues"), None),
    ("null_blk", Some("submit_queues"), Some("hw_queue_depth")),
];

/// Returns `point` in a form. `target` is the target that was tuned.
pub fn render(form: Form, point: &Point, target: &str) -> String {
    let device = target
        .strip_prefix("kernel:")
        .unwrap_or(target)
        .strip_prefix("/dev/")
        .filter(|d| !d.contains('/'))
        .unwrap_or("DEV");
    let mut out = format!("# {}\n", form.name());
    if point.is_empty() {
        out.push_str("# nothing to set: keep the defaults\n");
        return out;
    }
    // In sysfs, queue_depth belongs to a SCSI disk. In our stack and on simulated machines it means something else.
    let own = match (target.strip_prefix("kernel:"), point.get("queue_depth")) {
        (Some(_), Some(depth)) => point.without("queue_depth").and(&Point::of(&[("lun_queue_depth", depth)])),
        _ => point.clone(),
    };
    let point = &own;
    let mut missing = Vec::new();
    let body = match form {
        Form::Sysfs => sysfs(point, device, &mut missing),
        Form::Udev => udev(point, device, &mut missing),
        Form::Cmdline => modules(point, &|module, key, value| format!("{module}.{key}={value}"), &mut missing),
        Form::Modprobe => modules(point, &|module, key, value| format!("options {module} {key}={value}"), &mut missing),
        Form::Libvirt => libvirt(point, &mut missing),
        Form::Qemu => qemu(point, &mut missing),
        Form::Toml => toml(point, target, &mut missing),
    };
    out.push_str(&body);
    for (setting, why) in missing {
        let _ = writeln!(out, "# not in this form: {setting} ({why})");
    }
    out
}

type Missing = Vec<(String, &'static str)>;

/// Where a setting that the form lacks can be set.
fn elsewhere(name: &str) -> &'static str {
    match name {
        "lun_queue_depth" => "a SCSI disk's queue_depth: use sysfs or udev",
        name if target_knobs::is_of_target(name) => "a multipath setting: use toml or /etc/multipath.conf",
        "nr_hw_queues" | "queue_depth" => {
            "a parameter of the driver or the hypervisor: use cmdline, modprobe, libvirt, qemu or toml"
        }
        "mode" => "kernels before 5.0 have scsi_mod.use_blk_mq; for mqblk use toml",
        name if name.ends_with("iodepth") || name.ends_with("numjobs") => {
            "set it in the application: its depth and threads"
        }
        name if QUEUE_FILES.contains(&name) || name.starts_with("iosched.") => {
            "a setting of the running kernel: use sysfs, udev or toml"
        }
        _ => "a setting of mqblk: use toml",
    }
}

/// Paths below /sys/block/DEV of the settings that have one, the elevator first and its tunables last.
fn queue_files(point: &Point, missing: &mut Missing) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (name, value) in point.iter() {
        match name.strip_prefix("iosched.") {
            Some(tunable) => files.push((2, format!("queue/iosched/{tunable}"), value.to_owned())),
            None if name == "lun_queue_depth" => files.push((0, "device/queue_depth".to_owned(), value.to_owned())),
            None if QUEUE_FILES.contains(&name) => {
                files.push((u8::from(name != "scheduler"), format!("queue/{name}"), value.to_owned()));
            }
            None => missing.push((format!("{name}={value}"), elsewhere(name))),
        }
    }
    files.sort_by_key(|(rank, _, _)| *rank);
    files.into_iter().map(|(_, path, value)| (path, value)).collect()
}

fn sysfs(point: &Point, device: &str, missing: &mut Missing) -> String {
    let lines = queue_files(point, missing).into_iter();
    lines.map(|(path, value)| format!("echo {value} > /sys/block/{device}/{path}\n")).collect()
}

fn udev(point: &Point, device: &str, missing: &mut Missing) -> String {
    let files = queue_files(point, missing);
    if files.is_empty() {
        return String::new();
    }
    let set: Vec<String> = files.iter().map(|(path, value)| format!("ATTR{{{path}}}=\"{value}\"")).collect();
    format!("ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"{device}\", {}\n", set.join(", "))
}

fn modules(point: &Point, line: &dyn Fn(&str, &str, &str) -> String, missing: &mut Missing) -> String {
    let mut out = String::new();
    for (name, value) in point.iter() {
        let mut found = Vec::new();
        for (module, queues, depth) in MODULES {
            let key = match name {
                "nr_hw_queues" => queues,
                "queue_depth" => depth,
                _ => None,
            };
            found.extend(key.map(|key| line(module, key, value)));
        }
        if name == "mode" {
            found.push(format!(
                "{}  # kernels before 5.0, SCSI only",
                line("scsi_mod", "use_blk_mq", if value == "sq" { "0" } else { "1" })
            ));
        }
        if found.is_empty() {
            missing.push((format!("{name}={value}"), elsewhere(name)));
        } else if name != "mode" {
            let _ = writeln!(out, "# {name}={value}: the line of the disk's driver");
        }
        found.iter().for_each(|line| {
            let _ = writeln!(out, "{line}");
        });
    }
    out
}

/// The settings of a virtual machine's disk: queues and a ring size, which must be a power of two up to 1024.
fn vm(point: &Point, missing: &mut Missing) -> (Option<String>, Option<String>) {
    let (mut queues, mut size) = (None, None);
    for (name, value) in point.iter() {
        match name {
            "nr_hw_queues" => queues = Some(value.to_owned()),
            "queue_depth" => match value.parse::<u32>() {
                Ok(n) if n.is_power_of_two() && (2..=1024).contains(&n) => size = Some(value.to_owned()),
                _ => missing.push((format!("{name}={value}"), "a ring's size is a power of two in 2..=1024")),
            },
            _ => missing.push((format!("{name}={value}"), elsewhere(name))),
        }
    }
    (queues, size)
}

fn libvirt(point: &Point, missing: &mut Missing) -> String {
    let (queues, size) = vm(point, missing);
    if queues.is_none() && size.is_none() {
        return String::new();
    }
    let queues = queues.map_or_else(String::new, |n| format!(" queues='{n}'"));
    let size = size.map_or_else(String::new, |n| format!(" queue_size='{n}'"));
    format!("<driver name='qemu'{queues}{size}/>  <!-- in the <disk> of bus 'virtio' -->\n")
}

fn qemu(point: &Point, missing: &mut Missing) -> String {
    let (queues, size) = vm(point, missing);
    if queues.is_none() && size.is_none() {
        return String::new();
    }
    let queues = queues.map_or_else(String::new, |n| format!(",num-queues={n}"));
    let size = size.map_or_else(String::new, |n| format!(",queue-size={n}"));
    format!("-device virtio-blk-pci,drive=DRIVE{queues}{size}\n")
}

/// The comment above a target with a secret. Results files contain no secrets, so no form does either.
const SECRET: &str = "# the target's password or key was not saved: replace *** before serving\n";

/// Part of a configuration of `mqblk serve`, or of the machine file for a simulated machine.
fn toml(point: &Point, target: &str, missing: &mut Missing) -> String {
    let is_simulated = target.starts_with("sim:");
    let target = target_knobs::target(target, point);
    // `mqblk serve` serves it through our block layer.
    let served = target.strip_prefix("kernel:").unwrap_or(&target).replace('\\', "\\\\").replace('"', "\\\"");
    let mut out = match is_simulated {
        true => "[settings]\n".to_owned(),
        false if is_hidden(&target) => format!("{SECRET}[[disk]]\ntarget = \"{served}\"\n\n[disk.queue]\n"),
        false => format!("[[disk]]\ntarget = \"{served}\"\n\n[disk.queue]\n"),
    };
    for (name, value) in target_knobs::settings(point) {
        if name.ends_with("iodepth") || name.ends_with("numjobs") {
            missing.push((format!("{name}={value}"), elsewhere(name)));
            continue;
        }
        // Our block layer has no setting with that meaning.
        if name == "lun_queue_depth" && !is_simulated {
            missing.push((format!("{name}={value}"), elsewhere(name)));
            continue;
        }
        // A dot would make a TOML table, which only the configuration of `mqblk serve` expects.
        let name = if is_simulated && name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
        let _ = match value.parse::<i64>() {
            Ok(_) => writeln!(out, "{name} = {value}"),
            Err(_) => writeln!(out, "{name} = \"{value}\""),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Point {
        Point::of(&[
            ("iosched.read_expire", "125"),
            ("nr_hw_queues", "1"),
            ("nr_requests", "256"),
            ("queue_depth", "128"),
            ("scheduler", "mq-deadline"),
            ("iodepth", "8"),
        ])
    }

    #[test]
    fn sysfs_and_udev_set_the_elevator_before_what_it_resets() {
        let text = render(Form::Sysfs, &point(), "/dev/sda");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "# sysfs",
                "echo mq-deadline > /sys/block/sda/queue/scheduler",
                "echo 256 > /sys/block/sda/queue/nr_requests",
                "echo 125 > /sys/block/sda/queue/iosched/read_expire"
            ]
        );
        assert!(lines[4].contains("not in this form: iodepth=8 (set it in the application"), "{text}");
        assert!(text.contains("not in this form: nr_hw_queues=1 (a parameter of the driver"), "{text}");
        let text = render(Form::Udev, &point(), "disk.img");
        assert!(text.contains(r#"KERNEL=="DEV", ATTR{queue/scheduler}="mq-deadline", ATTR{queue/nr_requests}="256", ATTR{queue/iosched/read_expire}="125""#), "{text}");
    }

    #[test]
    fn queues_are_the_drivers_and_the_machines() {
        let text = render(Form::Cmdline, &point(), "null");
        assert!(
            text.contains(
                "virtio_blk.num_request_queues=1\nhv_storvsc.storvsc_max_hw_queues=1\nnull_blk.submit_queues=1\n"
            ),
            "{text}"
        );
        assert!(text.contains("not in this form: scheduler=mq-deadline"), "{text}");
        assert!(render(Form::Modprobe, &point(), "null").contains("options virtio_blk queue_depth=128\n"));
        assert!(render(Form::Libvirt, &point(), "null").contains("<driver name='qemu' queues='1' queue_size='128'/>"));
        assert!(
            render(Form::Qemu, &point(), "null").contains("virtio-blk-pci,drive=DRIVE,num-queues=1,queue-size=128\n")
        );
        assert!(render(Form::Qemu, &Point::of(&[("queue_depth", "100")]), "null").contains("a power of two"));
        assert!(render(Form::Cmdline, &Point::of(&[("mode", "sq")]), "null").contains("scsi_mod.use_blk_mq=0"));
    }

    #[test]
    fn toml_is_of_what_was_tuned() {
        let text = render(Form::Toml, &point(), "kernel:/dev/sda");
        assert!(text.contains("target = \"/dev/sda\""), "{text}");
        let text = render(Form::Sysfs, &point(), "kernel:/dev/sda");
        assert!(text.contains("echo 128 > /sys/block/sda/device/queue_depth\n"), "{text}");
        // For a SCSI disk of the kernel this is the depth of the LUN. Machines, drivers and our block layer have no such setting.
        for form in [Form::Cmdline, Form::Modprobe, Form::Libvirt, Form::Qemu, Form::Toml] {
            let text = render(form, &point(), "kernel:/dev/sda");
            assert!(text.contains("# not in this form: lun_queue_depth=128 (a SCSI disk's queue_depth"), "{text}");
            let set = text.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
            assert!(!set.contains("128"), "{text}");
        }
        let text = render(Form::Toml, &point(), "sim:m.toml");
        assert!(text.contains("[settings]\n\"iosched.read_expire\" = 125\n") && !text.contains("target"), "{text}");
    }

    #[test]
    fn a_target_without_its_password_is_said_to_be_so() {
        let hidden = host::secrets::without_secrets("iscsi://me%pw@h/iqn/1");
        let text = render(Form::Toml, &point(), &hidden);
        assert!(text.starts_with("# toml\n# the target's password or key was not saved: replace ***"), "{text}");
        assert!(text.contains("target = \"iscsi://me%***@h/iqn/1\"\n"), "{text}");
        assert!(!render(Form::Toml, &point(), "iscsi://me@h/iqn/1").contains("password"));
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing() {
        for (name, form) in Form::ALL {
            assert_eq!(
                render(form, &Point::default(), "null"),
                format!("# {name}\n# nothing to set: keep the defaults\n")
            );
        }
    }
}
