// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect --export FILE`: this host, and one of its disks, as a machine file for the simulator.
//!
//! Guarantees: what the kernel shows is taken as it is; what it cannot show (how long the disk takes, what the CPUs' work costs) is
//! marked as assumed, with a range. A setting that the simulated block layer does not take is left out, with the reason. Reads only.
//!
//! Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-block.

use super::stack;
use super::sysfs::{Device, LEGACY_ELEVATORS, names};
use host::topology;
use lab::setup::read_line;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Settings that the kernel and the simulated block layer share, in the order in which they are tried.
const SETTINGS: [&str; 6] = ["scheduler", "nr_requests", "nomerges", "rq_affinity", "max_sectors_kb", "wbt_lat_usec"];
/// Largest request of a simulated disk.
const MAX_SECTORS_KB: u64 = 1024;

/// Assumed read and write times of a disk that was not measured, and the factor by which they may be wrong.
struct Assumed {
    what: &'static str,
    read_us: f64,
    write_us: f64,
    factor: f64,
    /// The times depend on place and order as well.
    rotates: bool,
}

fn assumed(d: Option<&Device>) -> Assumed {
    let kind = d.and_then(|d| d.kind.as_deref()).unwrap_or_default();
    let rotates = d.is_some_and(|d| d.queue.get("rotational").is_some_and(|r| r == "1"));
    let of = |what, read_us, write_us, factor| Assumed { what, read_us, write_us, factor, rotates: false };
    match kind {
        "mmc" => of("eMMC or an SD card", 300.0, 1000.0, 4.0),
        "nvme" => of("flash behind NVMe", 80.0, 20.0, 4.0),
        // A hypervisor reports a disk as rotating if it does not know.
        "virtio" | "xen" | "loop" | "nbd" | "ublk" => {
            of("a virtual disk on storage that this host cannot see", 200.0, 200.0, 10.0)
        }
        _ if rotates => Assumed { rotates, ..of("a rotating disk", 8000.0, 8000.0, 2.0) },
        _ => of("flash", 150.0, 100.0, 4.0),
    }
}

/// The machine file of the host below `root`; `costs` are tables of another machine file.
pub fn text(root: &Path, kernel: Option<&str>, disk: Option<&Device>, costs: Option<&str>) -> String {
    let mut out = String::from("# A machine file of mqblk, for 'mqblk sim FILE --jobs JOB --what-if ...'.\n");
    let kernel = kernel.unwrap_or("unknown");
    let name = disk.map_or(String::new(), |d| format!(", disk {}", d.name));
    // Writing to a String cannot fail.
    let _ =
        writeln!(out, "title = \"this host{name}\"\nsource = \"mqblk inspect --export, kernel {}\"\n", plain(kernel));
    let cpus = shape(&mut out, root);
    disk_table(&mut out, root, disk);
    settings(&mut out, root, disk, cpus);
    match costs {
        Some(text) => {
            let _ = writeln!(out, "\n{}", text.trim_end());
        }
        None => {
            out += "\n# No [costs]: simulation uses those of a server of about 2020, known to a factor of 2. 'mqblk calibrate' measures them.\n";
        }
    }
    let a = assumed(disk);
    let range = |us: f64| format!("[{:.1}, {:.1}]", us / a.factor, us * a.factor);
    // The ranges of costs come last, in a table that is still open.
    if !out.contains("\n[uncertain]") {
        out += "\n[uncertain]\n";
    }
    let _ = writeln!(out, "\"disk.read_us\" = {}\n\"disk.write_us\" = {}", range(a.read_us), range(a.write_us));
    out
}

/// Returns a kernel's text without characters that would end or break a quoted string.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).take(200).collect()
}

/// Writes `[machine]`. Returns how many CPUs it describes.
fn shape(out: &mut String, root: &Path) -> u32 {
    let system = root.join("sys/devices/system");
    let online = topology::online(&system).unwrap_or_else(|| vec![0]);
    let read = |cpu: &u16, file: &str| read_line(&system.join(format!("cpu/cpu{cpu}/topology/{file}")));
    let packages: BTreeSet<Option<String>> = online.iter().map(|c| read(c, "physical_package_id")).collect();
    let siblings: BTreeSet<String> =
        online.iter().map(|c| read(c, "thread_siblings_list").unwrap_or_else(|| c.to_string())).collect();
    let (sockets, cores) = (packages.len(), siblings.len());
    let per_socket = (cores / sockets).max(1);
    let threads = (online.len() / (per_socket * sockets)).max(1);
    let all = sockets * per_socket * threads;
    let _ = writeln!(out, "[machine] # {} CPUs online", online.len());
    let _ = writeln!(out, "sockets = {sockets}\ncores = {per_socket}\nthreads = {threads}");
    if all != online.len() {
        let _ =
            writeln!(out, "# the topology is not uniform: these values make {all} CPUs, the host has {}", online.len());
    }
    for index in names(&system.join("cpu/cpu0/cache")) {
        let at = system.join("cpu/cpu0/cache").join(index);
        let of = |file: &str| read_line(&at.join(file)).map(|t| plain(&t));
        if let (Some(level), Some(kind), Some(size)) = (of("level"), of("type"), of("size")) {
            let shared = of("shared_cpu_list").unwrap_or_else(|| "?".into());
            let _ = writeln!(out, "# cache: L{level} {kind} {size}, of CPU 0 shared by {shared}");
        }
    }
    all as u32
}

fn disk_table(out: &mut String, root: &Path, disk: Option<&Device>) {
    let a = assumed(disk);
    out.push_str("\n[disk]");
    let kind = disk.and_then(|d| d.kind.as_deref());
    let attach = match kind {
        Some("scsi") => "scsi",
        Some("mmc") => "mmc",
        _ => "direct",
    };
    match disk {
        Some(d) => {
            let _ = writeln!(out, " # {}: {}", plain(&d.name), kind.unwrap_or("unknown kind"));
        }
        None => out.push_str(" # no disk was named: 'mqblk inspect /dev/X --export FILE'\n"),
    }
    let gib = disk.and_then(|d| d.size_bytes).map_or(1, |b| b.div_ceil(1 << 30)).clamp(1, 1 << 20);
    let _ = writeln!(out, "attach = \"{attach}\"\nsize_gib = {gib}");
    let tags = disk.and_then(|d| d.hctxs.iter().filter_map(|h| h.nr_tags).max()).filter(|n| (1..=10_240).contains(n));
    let at = disk.map(|d| root.join("sys/block").join(&d.name).join("device"));
    if let (Some(at), "scsi") = (&at, attach) {
        let number =
            |path: &Path| read_line(path).and_then(|n| n.parse::<u64>().ok()).filter(|n| (1..=10_240).contains(n));
        let lun = number(&at.join("queue_depth"));
        if let Some(lun) = lun {
            let _ = writeln!(out, "lun_queue_depth = {lun} # device/queue_depth");
        }
        let host = std::fs::canonicalize(at).ok().and_then(|p| {
            let word = |c: std::path::Component<'_>| c.as_os_str().to_string_lossy().into_owned();
            p.components().map(word).find(|w| w.strip_prefix("host").is_some_and(|n| n.parse::<u32>().is_ok()))
        });
        let can = host.and_then(|h| number(&root.join("sys/class/scsi_host").join(h).join("can_queue")));
        match (can, tags.or(lun)) {
            (Some(n), _) => {
                let _ = writeln!(out, "queue_depth = {n} # can_queue of its SCSI host");
            }
            (None, Some(n)) => {
                let _ = writeln!(
                    out,
                    "queue_depth = {n} # tags of a hardware queue; the can_queue of its SCSI host is not known"
                );
            }
            (None, None) => {}
        }
    } else if let Some(n) = tags {
        let _ = writeln!(out, "queue_depth = {n} # tags of each hardware queue");
    }
    let _ = writeln!(out, "# Assumed for {}: unknown to the kernel. 'mqblk profile --machine' measures it.", a.what);
    let _ = writeln!(out, "read_us = {:.1}\nwrite_us = {:.1}", a.read_us, a.write_us);
    if a.rotates {
        out.push_str(
            "# Questions about order, place or depth need its seek times: replace read_us, write_us and their ranges in\n\
             # [uncertain] by [disk.hdd] with the figures of its data sheet.\nrotational = true\n",
        );
    }
    let zoned = disk.and_then(|d| d.queue.get("zoned")).filter(|z| *z != "none");
    if let Some(zoned) = zoned {
        let _ = writeln!(out, "smr = true # queue/zoned: {}", plain(zoned));
    }
}

/// Writes `[settings]`: the settings in effect. Each is tried on a stack of mqblk, together with those accepted before.
fn settings(out: &mut String, root: &Path, disk: Option<&Device>, cpus: u32) {
    let Some(d) = disk else { return };
    out.push_str("\n[settings]\n");
    let mut wanted: Vec<(String, String, &str)> = Vec::new();
    let legacy = d.scheduler.as_deref().is_some_and(|name| LEGACY_ELEVATORS.contains(&name));
    match d.nr_hw_queues {
        Some(n) => wanted.push(("nr_hw_queues".into(), n.min(cpus as usize).to_string(), "")),
        None if legacy => wanted.push(("mode".into(), "sq".into(), " # the legacy block layer")),
        None => {}
    }
    for name in SETTINGS {
        let Some(value) = d.queue.get(name) else { continue };
        let value = if name == "scheduler" { d.scheduler.clone().unwrap_or_default() } else { value.clone() };
        match (name, value.parse::<u64>()) {
            ("max_sectors_kb", Ok(kb)) if kb > MAX_SECTORS_KB => {
                wanted.push((
                    name.into(),
                    MAX_SECTORS_KB.to_string(),
                    " # larger on the host; the simulation allows at most 1 MiB",
                ));
            }
            _ => wanted.push((name.into(), plain(&value), "")),
        }
    }
    let dir = root.join("sys/block").join(&d.name).join("queue/iosched");
    for name in names(&dir) {
        if let Some(value) = read_line(&dir.join(&name)) {
            wanted.push((format!("iosched.{}", plain(&name)), plain(&value), ""));
        }
    }
    let mut taken: Vec<(String, String)> = vec![("nr_cpus".into(), cpus.to_string())];
    let depth = d.hctxs.iter().filter_map(|h| h.nr_tags).max().unwrap_or(1024);
    taken.push(("queue_depth".into(), depth.to_string()));
    for (name, value, comment) in wanted {
        taken.push((name.clone(), value.clone()));
        let text = if value.parse::<i64>().is_ok() { value } else { format!("\"{value}\"") };
        let key = if name.contains('.') { format!("\"{name}\"") } else { name };
        match stack::describe("null:size=1g", &taken) {
            Ok(_) => {
                let _ = writeln!(out, "{key} = {text}{comment}");
            }
            Err(e) => {
                taken.pop();
                let why: String = e.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                let _ = writeln!(out, "# {key} = {text}: left out: {why}");
            }
        }
    }
}
