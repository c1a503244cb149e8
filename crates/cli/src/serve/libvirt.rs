// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve --libvirt DOMAIN.xml`: the virtio disks of a libvirt domain as vhost-user-blk exports, with its queues,
//! IOThreads and their mapping.
//!
//! Guarantees: a disk behaves as in QEMU, or a warning names the difference; a mapping follows libvirt's rules. Elements that are read:
//! `<vcpu>`, `<iothreads>`, `<iothreadids>` with `<poll>`, `<cputune><iothreadpin>`; of disks
//! `<driver queues= queue_size= cache= discard= error_policy= iothread=>` with `<iothreads>`, `<source>` with `<slices>`, `<target>`,
//! `<readonly>`, `<serial>`, `<iotune>`. `others` has what becomes of all other elements of disks and IOThreads.
//! Where libvirt leaves a choice to QEMU, QEMU's default holds: as many queues as vCPUs, cache writeback, stop when
//! there is no space. QEMU serves a disk without an IOThread in its main thread; here its virtqueues are spread over all IOThreads. Does
//! not do: read other drivers than `raw`, or other buses than virtio (left out, with a warning).
//!
//! Source: libvirt formatdomain, "IOThreads Allocation", "CPU Tuning", "Hard drives, floppy disks, CDROMs".

use super::defaults::Defaults;
use ::config::reader::shown;
use host::driver::file::FilePart;
use host::serve::check::FreshNames;
use host::serve::cpus;
use host::serve::geometry::Geometry;
use host::serve::mapping::{Mapping, MappingEntry};
use host::serve::plan::{
    DiskPlan, ExportKind, ExportPlan, IoThreadPlan, OnEnospc, PollPlan, QUEUE_SIZE, SERIAL_MAX, ServePlan,
    VHOST_QUEUES_MAX, VhostUserPlan, WriteCache,
};
use host::target::TargetSpec;
use others::Others;
use quick_xml::events::Event;
use std::collections::BTreeMap;
use xml::{BlockIo, Disk, Domain, Driver, IoTune};

mod others;
mod xml;

/// Maximum number of IOThreads, as libvirt's ids could ask for any number.
const IOTHREADS_MAX: u64 = 4096;

/// The plan made from a domain.
pub struct FromDomain {
    /// The plan, not yet checked.
    pub plan: ServePlan,
    /// What was left out or differs from QEMU.
    pub warnings: Vec<String>,
}

/// Makes a plan from the XML of a domain.
///
/// # Errors
/// The error, without the name of the file.
pub fn read(text: &str, defaults: &Defaults) -> Result<FromDomain, String> {
    root_is_a_domain(text)?;
    let domain: Domain =
        quick_xml::de::from_str(text).map_err(|e| format!("is no libvirt domain: {}", shown(&e.to_string())))?;
    let (ids, iothreads) = iothreads(&domain)?;
    let domain_name = domain.name.clone().unwrap_or_else(|| "domain".to_owned());
    let mut made = FromDomain { plan: ServePlan { iothreads, ..ServePlan::default() }, warnings: Vec::new() };
    let mut names = (FreshNames::default(), FreshNames::default());
    let all = domain.devices.as_ref().map(|d| d.disks.as_slice()).unwrap_or_default();
    for (disk, others) in all.iter().zip(Others::of_disks(text)) {
        let dev = disk.target.as_ref().and_then(|t| t.dev.as_deref()).unwrap_or("?");
        let of = format!("disk '{}'", shown(dev));
        let found = others.keeps_out().map_or_else(|| image(disk), Err);
        match found.and_then(|path| Ok((path, geometry(disk)?, part(disk)?))) {
            Err(why) => made.warnings.push(format!("{of} is left out: {why}")),
            Ok((path, geometry, part)) => {
                let name = names.0.take(dev);
                made.warnings.extend(others.warnings(&of));
                let plan = disk_plan(disk, &name, path, &of, &mut made.warnings)?;
                let plan = DiskPlan { geometry, part, ..plan };
                let export = names.1.take(&format!("{domain_name}.{name}.vhost"));
                let queues = num_queues(&domain, disk).map_err(|e| format!("{of}: {e}"))?;
                let kind = ExportKind::VhostUserBlk(VhostUserPlan {
                    socket: defaults.socket(&format!("{export}.sock")),
                    socket_mode: None,
                    num_queues: queues,
                    queue_size: number(&disk.driver().queue_size, "queue_size")
                        .map_err(|e| format!("{of}: {e}"))?
                        .unwrap_or(QUEUE_SIZE),
                    allow_file_memory: false,
                });
                let mapping = mapping(disk.driver(), &ids).map_err(|e| format!("{of}: {e}"))?;
                made.plan.exports.push(ExportPlan {
                    name: export,
                    disk: name,
                    read_only: false,
                    geometry: Geometry::default(),
                    mapping,
                    kind,
                });
                made.plan.disks.push(plan);
            }
        }
    }
    if made.plan.disks.is_empty() {
        let why = made.warnings.join("; ");
        let why = if why.is_empty() { "it has none".to_owned() } else { why };
        return Err(format!("the domain has no disk to serve: {why}"));
    }
    made.warnings.extend(others::of_threads(text));
    Ok(made)
}

/// Checks the root element. The deserializer accepts any root, so a network or a pool would pass as a domain without disks.
fn root_is_a_domain(text: &str) -> Result<(), String> {
    let mut reader = quick_xml::Reader::from_str(text);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag) | Event::Empty(tag)) => {
                let name = tag.name().as_ref().to_owned();
                return match name.as_str() {
                    "domain" => Ok(()),
                    _ => Err(format!(
                        "begins with <{}>, not with <domain>; save one with 'virsh dumpxml NAME'",
                        shown(&name)
                    )),
                };
            }
            Ok(Event::Eof) => return Err("has no <domain>; save one with 'virsh dumpxml NAME'".to_owned()),
            Ok(_) => {}
            Err(e) => return Err(format!("is not XML: {}", shown(&e.to_string()))),
        }
    }
}

/// A number of the file.
fn number<T: TryFrom<u64>>(text: &Option<String>, what: &str) -> Result<Option<T>, String> {
    let Some(text) = text else { return Ok(None) };
    let n = text.trim().parse::<u64>().ok().and_then(|n| T::try_from(n).ok());
    n.map(Some).ok_or_else(|| {
        let max = 8 * size_of::<T>();
        format!("{what}='{}': must be a whole number of {max} bits", shown(text))
    })
}

/// Returns the IOThreads with libvirt's ids. There are as many as `<iothreads>` says; those that `<iothreadids>` does not list get the
/// lowest free ids.
fn iothreads(domain: &Domain) -> Result<(Vec<u64>, Vec<IoThreadPlan>), String> {
    let given = domain.iothreadids.as_ref().map(|i| i.iothreads.as_slice()).unwrap_or_default();
    let mut found: BTreeMap<u64, PollPlan> = BTreeMap::new();
    for thread in given {
        let id = number(&thread.id, "iothreadids/iothread/@id")?.filter(|id| *id > 0);
        let id = id.ok_or("iothreadids/iothread/@id: must be a whole number from 1")?;
        let mut poll = PollPlan::default();
        if let Some(p) = &thread.poll {
            poll.max_ns = number(&p.max, "poll/@max")?.or(poll.max_ns);
            poll.grow = number(&p.grow, "poll/@grow")?.unwrap_or(poll.grow);
            poll.shrink = number(&p.shrink, "poll/@shrink")?.unwrap_or(poll.shrink);
        }
        if found.insert(id, poll).is_some() {
            return Err(format!("iothreadids: iothread {id} is listed twice"));
        }
    }
    let n: u64 = number(&domain.iothreads, "iothreads")?.unwrap_or(found.len() as u64);
    if n > IOTHREADS_MAX || found.len() as u64 > IOTHREADS_MAX {
        return Err(format!("iothreads={n}: must be at most {IOTHREADS_MAX}"));
    }
    for id in 1..=IOTHREADS_MAX {
        if found.len() as u64 >= n {
            break;
        }
        found.entry(id).or_default();
    }
    let mut plans: BTreeMap<u64, IoThreadPlan> =
        found.into_iter().map(|(id, poll)| (id, IoThreadPlan { poll, ..IoThreadPlan::new(thread_name(id)) })).collect();
    for pin in domain.cputune.as_ref().map(|c| c.pins.as_slice()).unwrap_or_default() {
        let id: u64 = number(&pin.iothread, "iothreadpin/@iothread")?.unwrap_or(0);
        let cpus =
            cpus::parse(pin.cpuset.as_deref().unwrap_or_default()).map_err(|e| format!("iothreadpin/@cpuset={e}"))?;
        match plans.get_mut(&id) {
            Some(plan) => plan.cpus = cpus,
            None => return Err(format!("iothreadpin: there is no IOThread {id}; the domain has {}", plans.len())),
        }
    }
    Ok((plans.keys().copied().collect(), plans.into_values().collect()))
}

/// Returns libvirt's name for the object in QEMU.
fn thread_name(id: u64) -> String {
    format!("iothread{id}")
}

/// Returns the path of a disk's raw image, or the reason why the disk is left out.
fn image(disk: &Disk) -> Result<String, String> {
    let device = disk.device.as_deref().unwrap_or("disk");
    if device != "disk" {
        return Err(format!("it is a {}", shown(device)));
    }
    let bus = disk.target.as_ref().and_then(|t| t.bus.as_deref());
    if bus != Some("virtio") {
        return Err(format!("bus='{}': only virtio disks can be served by vhost-user-blk", shown(bus.unwrap_or("?"))));
    }
    let source = disk.source.as_ref();
    let path = match disk.kind.as_deref() {
        Some("file") => source.and_then(|s| s.file.clone()),
        Some("block") => source.and_then(|s| s.dev.clone()),
        Some("vhostuser") => return Err("it is served by vhost-user already".to_owned()),
        other => {
            return Err(format!("type='{}': only files and block devices can be served", shown(other.unwrap_or("?"))));
        }
    };
    match disk.driver().kind.as_deref() {
        Some("raw") => {}
        // Since QEMU warned of probing, libvirt takes an image without a type as raw.
        None => {}
        Some(other) => return Err(format!("driver type='{}': only raw images can be served", shown(other))),
    }
    if disk.transient.is_some() {
        return Err("it is <transient/>, which needs an overlay".to_owned());
    }
    path.ok_or_else(|| "it has no <source>".to_owned())
}

fn disk_plan(disk: &Disk, name: &str, path: String, of: &str, warnings: &mut Vec<String>) -> Result<DiskPlan, String> {
    let driver = disk.driver();
    let (direct, write_cache) = match driver.cache.as_deref() {
        Some("none") => (true, WriteCache::Back),
        Some("directsync") => (true, WriteCache::Through),
        Some("writethrough") => (false, WriteCache::Through),
        Some("unsafe") => {
            warnings.push(format!("{of}: cache='unsafe' is served as 'writeback': flushes are not ignored"));
            (false, WriteCache::Back)
        }
        Some("writeback" | "default") | None => (false, WriteCache::Back),
        Some(other) => return Err(format!("{of}: cache='{}': no such mode", shown(other))),
    };
    // QEMU's werror=enospc stops the VM; here the disk waits.
    let on_enospc = match driver.error_policy.as_deref() {
        Some("report") => OnEnospc::Report,
        Some("ignore") => {
            warnings.push(format!("{of}: error_policy='ignore' is served as 'report': errors are not hidden"));
            OnEnospc::Report
        }
        Some("stop") => {
            let text = "is served as 'enospace': the guest gets all other errors, and does not stop";
            warnings.push(format!("{of}: error_policy='stop' {text}"));
            OnEnospc::Stop
        }
        Some("enospace" | "default") | None => OnEnospc::Stop,
        Some(other) => return Err(format!("{of}: error_policy='{}': no such policy", shown(other))),
    };
    if disk.shareable.is_some() {
        warnings.push(format!("{of}: <shareable/> has no effect: its image is locked against other writers"));
    }
    let settings = disk.iotune.as_ref().map(|t| limits(t, of, warnings)).unwrap_or_default();
    // The source is a path, even if it looks like another kind of target.
    Ok(DiskPlan {
        settings,
        read_only: disk.readonly.is_some(),
        serial: disk.serial.as_deref().map(|serial| serial_of(serial, of, warnings)),
        // Other types are left out.
        is_raw: true,
        direct,
        write_cache,
        discard: driver.discard.as_deref() == Some("unmap"),
        on_enospc,
        ..DiskPlan::new(name, TargetSpec::File(path.clone().into()), path)
    })
}

/// As QEMU, cuts a serial number to what virtio has room for.
fn serial_of(serial: &str, of: &str, warnings: &mut Vec<String>) -> String {
    if serial.chars().count() > SERIAL_MAX {
        warnings.push(format!("{of}: its serial number is cut to {SERIAL_MAX} characters, as in QEMU"));
    }
    serial.chars().take(SERIAL_MAX).collect()
}

/// `<iotune>` as limits of the disk.
fn limits(tune: &IoTune, of: &str, warnings: &mut Vec<String>) -> Vec<(String, String)> {
    let all = [
        ("bps_total", &tune.total_bytes_sec),
        ("bps_read", &tune.read_bytes_sec),
        ("bps_write", &tune.write_bytes_sec),
        ("iops_total", &tune.total_iops_sec),
        ("iops_read", &tune.read_iops_sec),
        ("iops_write", &tune.write_iops_sec),
    ];
    let set = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.as_ref()?.trim().to_owned())));
    if tune.has_burst() {
        warnings.push(format!(
            "{of}: bursts of <iotune> (*_max, size_iops_sec, group_name) are ignored; see iops_total_burst"
        ));
    }
    set.collect()
}

/// As libvirt and QEMU (since 5.2): `queues`, else one per vCPU.
fn num_queues(domain: &Domain, disk: &Disk) -> Result<u16, String> {
    if let Some(n) = number(&disk.driver().queues, "queues")? {
        return Ok(n);
    }
    let vcpu = domain.vcpu.as_ref();
    let count = vcpu.and_then(|v| v.current.clone().or_else(|| v.count.clone()));
    let vcpus: u32 = number(&count, "vcpu")?.unwrap_or(1);
    Ok(vcpus.clamp(1, VHOST_QUEUES_MAX.into()) as u16)
}

fn mapping(driver: &Driver, ids: &[u64]) -> Result<Mapping, String> {
    let known = |id: u64| match ids.contains(&id) {
        true => Ok(thread_name(id)),
        false => {
            let all: Vec<String> = ids.iter().take(16).map(u64::to_string).collect();
            Err(format!(
                "the domain has no IOThread {id}; it has {}",
                if all.is_empty() { "none: add <iothreads>".to_owned() } else { all.join(", ") }
            ))
        }
    };
    let list = driver.iothreads.as_ref().map(|l| l.iothreads.as_slice()).unwrap_or_default();
    if let Some(one) = number(&driver.iothread, "iothread")? {
        return match list {
            [] => Ok(Mapping::round_robin([known(one)?])),
            _ => Err("has iothread= and <iothreads>: libvirt accepts only one of them".to_owned()),
        };
    }
    let mut entries = Vec::with_capacity(list.len());
    for thread in list {
        let id: u64 = number(&thread.id, "iothread/@id")?.ok_or("<iothread> needs an id")?;
        let queues: Result<Vec<u16>, String> = thread
            .queues
            .iter()
            .map(|q| number(&q.id, "queue/@id")?.ok_or_else(|| "<queue> needs an id".to_owned()))
            .collect();
        let vqs = Some(queues?).filter(|q| !q.is_empty());
        entries.push(MappingEntry { iothread: known(id)?, vqs });
    }
    if driver.queues.is_none() && entries.iter().any(|e| e.vqs.is_some()) {
        return Err("lists <queue> elements, so <driver> must say how many there are: add queues='N'".to_owned());
    }
    Ok(Mapping { entries })
}

/// Returns the block sizes of `<blockio>`. A value that cannot be meant is an error, because the guest's data depends on it.
fn geometry(disk: &Disk) -> Result<Geometry, String> {
    let Some(BlockIo { logical_block_size, physical_block_size }) = &disk.blockio else {
        return Ok(Geometry::default());
    };
    let size = |name: &str, text: &Option<String>| match text.as_deref().map(str::trim) {
        None | Some("0") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| format!("{name}='{}': must be a number", shown(text))),
    };
    let geometry = Geometry {
        logical: size("logical_block_size", logical_block_size)?,
        physical: size("physical_block_size", physical_block_size)?,
    };
    geometry.check().map(|()| geometry).map_err(|(_, text)| text)
}

/// Returns the part of the image that is the disk, as `<slices>` has it.
fn part(disk: &Disk) -> Result<FilePart, String> {
    let all = disk.source.as_ref().and_then(|s| s.slices.as_ref()).map(|s| s.slices.as_slice()).unwrap_or_default();
    let slice = match all {
        [] => return Ok(FilePart::default()),
        [slice] if slice.kind.as_deref() == Some("storage") => slice,
        _ => return Err("its <slices> is not one <slice type='storage'>".to_owned()),
    };
    let offset = number(&slice.offset, "slice/@offset")?.ok_or("<slice> needs an offset")?;
    let size: u64 = number(&slice.size, "slice/@size")?.ok_or("<slice> needs a size")?;
    // vhost-user-blk has whole sectors.
    if !size.is_multiple_of(512) {
        return Err(format!("<slice>: size={size}: must be a multiple of 512"));
    }
    let part = FilePart { offset, size: Some(size) };
    part.check().map(|()| part).map_err(|(_, text)| format!("<slice>: {text}"))
}

#[cfg(test)]
mod tests;
