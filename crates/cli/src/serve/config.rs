// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve CONFIG.toml`: the configuration's keys, and the plan they make.
//!
//! Guarantees: a configuration is refused for an unknown key, a value of the wrong type or out of range, or a reference to
//! nothing. Each message has file, line, rule and remedy, and all errors are reported at once. Paths are relative to the
//! working directory, as everywhere in mqblk; sockets that are not absolute are relative to `--socket-dir`. Names
//! of hosts are resolved. Does not do: check a file or socket. Every key is listed, with its default, in `examples/serve.toml`.

use super::defaults::Defaults;
use super::stack::{self, Section, Stack};
use config::reader::{Found, Reader, printable, shown, tables, text_of, whole};
use host::driver::Aio;
use host::driver::file::FilePart;
use host::net::listen::TcpListen;
use host::serve::check::{FreshNames, PlanErrors, PlanItem};
use host::serve::cpus;
use host::serve::export_spec::ExportKeys;
use host::serve::geometry::Geometry;
use host::serve::mapping::{Mapping, MappingEntry};
use host::serve::plan::{
    DiskPlan, EXPORT_TYPES, ExportKind, ExportPlan, IoThreadPlan, OnEnospc, PollPlan, ServePlan, WriteCache,
};
use host::target::TargetSpec;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use toml::de::DeValue;

/// The top-level keys.
const ROOT_KEYS: [&str; 3] = ["disk", "export", "iothread"];

/// A plan, and the lines of its parts.
pub struct Config<'a> {
    /// The plan, not yet checked.
    pub plan: ServePlan,
    reader: Reader<'a, PlanItem>,
}

impl Config<'_> {
    /// Returns the errors of a plan with their lines.
    pub fn locate(&self, errors: &PlanErrors) -> String {
        let mut all: Vec<(Option<usize>, String)> = errors
            .0
            .iter()
            .map(|e| {
                let line = self.reader.line_of(e.place, &e.key);
                (line, self.reader.located(line, printable(&e.to_string())))
            })
            .collect();
        all.sort_by_key(|(line, _)| *line);
        all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n")
    }
}

/// Parses the text of the file `name`.
///
/// # Errors
/// One line for each error.
pub fn read<'a>(name: &'a str, text: &str, defaults: &Defaults) -> Result<Config<'a>, String> {
    let (mut reader, root) = Reader::open(name, text)?;
    let root = &root;
    for key in root.keys().filter(|key| !ROOT_KEYS.contains(&key.get_ref().as_ref())) {
        let name = key.get_ref();
        let hint = blk::suggest::did_you_mean(name, ROOT_KEYS.into_iter());
        let text =
            format!("{}: is no part of a configuration; {hint}Parts: [[iothread]], [[disk]], [[export]]", shown(name));
        let line = reader.line(&key.span());
        reader.refuse(line, text, "");
    }
    let mut plan = ServePlan::default();
    for (index, (table, line)) in tables(&mut reader, root, "iothread").into_iter().enumerate() {
        let section = Section::new(&mut reader, table, "[[iothread]]", PlanItem::IoThread(index), line);
        plan.iothreads.push(iothread(section, index));
    }
    let mut names = FreshNames::default();
    for (index, (table, line)) in tables(&mut reader, root, "disk").into_iter().enumerate() {
        let section = Section::new(&mut reader, table, "[[disk]]", PlanItem::Disk(index), line);
        plan.disks.push(disk(section, &mut names));
    }
    let mut names = FreshNames::default();
    for (index, (table, line)) in tables(&mut reader, root, "export").into_iter().enumerate() {
        let section = Section::new(&mut reader, table, "[[export]]", PlanItem::Export(index), line);
        plan.exports.extend(export(section, &plan.disks, defaults, &mut names));
    }
    let problems = reader.problems();
    if problems.is_empty() { Ok(Config { plan, reader }) } else { Err(problems.join("\n")) }
}

fn iothread(mut section: Section<'_, '_>, index: usize) -> IoThreadPlan {
    let name = section.string("name", "io0").unwrap_or_else(|| format!("iothread{index}"));
    section.is(format!("IOThread '{}'", shown(&name)));
    let cpus = cpu_list(&mut section);
    let max_ns = section.number("poll_max_ns", 0..=1_000_000_000);
    let mut factor = |key| section.number(key, 0..=1024).unwrap_or(0) as u32;
    let poll = PollPlan { max_ns, grow: factor("poll_grow"), shrink: factor("poll_shrink") };
    section.end();
    IoThreadPlan { name, cpus, poll }
}

/// `cpus = "0-3,8"`, `cpus = 2` or `cpus = [0, 1]`.
fn cpu_list(section: &mut Section<'_, '_>) -> Vec<u32> {
    let Some(Found { value, .. }) = section.get("cpus") else { return Vec::new() };
    let text = match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(_) => whole(value).map(|n| n.to_string()),
        DeValue::Array(items) => {
            let numbers: Option<Vec<String>> =
                items.iter().map(|i| whole(i.get_ref()).map(|n| n.to_string())).collect();
            numbers.map(|n| n.join(","))
        }
        _ => None,
    };
    match text.map(|text| cpus::parse(&text)) {
        Some(Ok(cpus)) => cpus,
        Some(Err(e)) => {
            section.refuse("cpus", format!("cpus={e}"));
            Vec::new()
        }
        None => {
            section
                .refuse("cpus", format!("cpus={}: must be a list of CPUs, such as cpus = \"0-3,8\"", text_of(value)));
            Vec::new()
        }
    }
}

fn disk(mut section: Section<'_, '_>, names: &mut FreshNames) -> DiskPlan {
    let text = section.string("target", "disk.img");
    let name = section.string("name", "data");
    let several = section.strings("targets", "\"a.img\", \"b.img\"");
    let name = match name {
        Some(name) => name,
        None if several.is_some() => names.take(stack::word(&mut section)),
        None => names.take(&text.as_deref().map(default_name).unwrap_or_default()),
    };
    section.is(format!("disk '{}'", shown(&name)));
    let stack = stack::read(&mut section, several.as_deref());
    let nothing = DiskPlan::new(name.clone(), TargetSpec::Null(Default::default()), "");
    let plain = match (text, stack) {
        (Some(_), Some(stack)) => {
            section.refuse("target", format!("target: a disk has a target, or {}; leave one out", stack.what()));
            nothing
        }
        (Some(text), None) => {
            let target = stack::target(&mut section, "target", text);
            DiskPlan::new(name, target.spec, target.text)
        }
        (None, Some(Stack::Stripe(chunk_bytes, targets))) => nothing.striped(chunk_bytes, targets),
        (None, Some(Stack::Multipath(Some(target)))) => DiskPlan::new(name, target.spec, target.text),
        (None, Some(Stack::Multipath(None))) => nothing,
        (None, None) => {
            if !["target", "targets", "stack"].into_iter().any(|key| section.get(key).is_some()) {
                section.refuse("", "has no target; add target = \"FILE\"");
            }
            nothing
        }
    };
    let plan = DiskPlan {
        read_only: section.flag("read_only").unwrap_or(plain.read_only),
        serial: section.string("serial", "DATA0001"),
        part: FilePart { offset: bytes(&mut section, "offset").unwrap_or(0), size: bytes(&mut section, "size") },
        geometry: geometry(&mut section),
        is_raw: section.one_of("format", &[("raw", true)]).unwrap_or(plain.is_raw),
        direct: section.flag("direct").unwrap_or(plain.direct),
        aio: section.one_of("aio", &Aio::ALL.map(|aio| (aio.name(), aio))),
        write_cache: section
            .one_of("write_cache", &[WriteCache::Back, WriteCache::Through].map(|w| (w.name(), w)))
            .unwrap_or(plain.write_cache),
        discard: section.flag("discard").unwrap_or(plain.discard),
        on_enospc: section
            .one_of("on_enospc", &[OnEnospc::Report, OnEnospc::Stop].map(|o| (o.name(), o)))
            .unwrap_or(plain.on_enospc),
        allow_mounted_write: section.flag("allow_mounted_write").unwrap_or(plain.allow_mounted_write),
        settings: settings(&mut section),
        ..plain
    };
    section.end();
    plan
}

/// Reads the block sizes of a disk or an export.
fn geometry(section: &mut Section<'_, '_>) -> Geometry {
    let mut size = |key| section.number(key, 0..=u32::MAX.into()).map(|n| n as u32);
    Geometry { logical: size("logical_block_size"), physical: size("physical_block_size") }
}

/// Reads bytes: a whole number, or a text with a unit.
fn bytes(section: &mut Section<'_, '_>, key: &'static str) -> Option<u64> {
    let Found { value, .. } = section.get(key)?;
    let bytes = match value {
        DeValue::String(text) => host::target::bytes(text),
        other => whole(other),
    };
    if bytes.is_none() {
        section
            .refuse(key, format!("{key}={}: must be bytes, such as {key} = 1048576 or {key} = \"1m\"", text_of(value)));
    }
    bytes
}

/// Returns the default name of a disk: the last part of its path or export name, its RBD image, or else the kind of its target.
pub fn default_name(target: &str) -> String {
    match TargetSpec::parse(target) {
        Ok(TargetSpec::File(path)) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        Ok(TargetSpec::Nbd(nbd)) if nbd.export.is_empty() => "nbd".to_owned(),
        Ok(TargetSpec::Nbd(nbd)) => nbd.export.rsplit('/').next().unwrap_or_default().to_owned(),
        Ok(TargetSpec::Rbd(rbd)) => rbd.image,
        _ => target.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// Reads `[disk.queue]`, whose keys are the settings of `--set`; tunables have the form `iosched.NAME`.
fn settings(section: &mut Section<'_, '_>) -> Vec<(String, String)> {
    let Some(mut queue) = section.inner("queue", "queue.") else { return Vec::new() };
    let mut all = Vec::new();
    for (key, value, line) in queue.each("iosched") {
        let text = match value {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(n) if n.radix() == 10 => Some(n.as_str().to_owned()),
            DeValue::Integer(_) => whole(value).map(|n| n.to_string()),
            DeValue::Boolean(b) => Some(u8::from(*b).to_string()),
            _ => None,
        };
        match text {
            Some(text) => all.push((key, text)),
            None => {
                let text = format!("{}={}: must be a number, a text, true or false", shown(&key), text_of(value));
                queue.refuse_line(line, text);
            }
        }
    }
    all
}

fn export(
    mut section: Section<'_, '_>,
    disks: &[DiskPlan],
    defaults: &Defaults,
    names: &mut FreshNames,
) -> Option<ExportPlan> {
    let disk = section.string("disk", "data");
    let name = section.string("name", "data.vhost");
    let kind = section.one_of("type", &types());
    let subject = name.clone().or_else(|| disk.clone()).unwrap_or_default();
    if !subject.is_empty() {
        section.is(format!("export '{}'", shown(&subject)));
    }
    let disk = match (disk, disks) {
        (Some(disk), _) => disk,
        (None, [only]) => only.name.clone(),
        (None, _) => {
            if section.get("disk").is_none() {
                section.refuse("", "names no disk; the file must have exactly one disk, or add disk = \"NAME\"");
            }
            String::new()
        }
    };
    let Some(kind) = kind else {
        if section.get("type").is_none() {
            let all: Vec<String> = EXPORT_TYPES.iter().map(|word| format!("\"{word}\"")).collect();
            section.refuse("", format!("has no type; add type = one of {}", all.join(", ")));
        }
        // The valid keys depend on the type.
        return None;
    };
    let name = name.unwrap_or_else(|| names.take(&format!("{disk}.{}", ExportKind::short_name(kind))));
    section.is(format!("export '{}'", shown(&name)));
    section.is_a(&format!("an [[export]] of type \"{}\"", EXPORT_TYPES[kind]));
    let read_only = section.flag("read_only").unwrap_or(false);
    let geometry = geometry(&mut section);
    let mapping = mapping(&mut section);
    let kind = ExportKind::read(kind, &mut Keys { section: &mut section, defaults }, &name, &disk);
    section.end();
    Some(ExportPlan { name, disk, read_only, geometry, mapping, kind })
}

fn types() -> Vec<(&'static str, usize)> {
    EXPORT_TYPES.iter().copied().zip(0..).collect()
}

/// An `[[export]]` as the types of exports read it.
struct Keys<'k, 't, 'a> {
    section: &'k mut Section<'t, 'a>,
    defaults: &'k Defaults,
}

impl ExportKeys for Keys<'_, '_, '_> {
    fn text(&mut self, key: &'static str, example: &str) -> Option<String> {
        self.section.string(key, example)
    }

    fn texts(&mut self, key: &'static str, example: &str) -> Option<Vec<String>> {
        self.section.strings(key, example)
    }

    fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.section.number(key, range)
    }

    fn flag(&mut self, key: &'static str) -> Option<bool> {
        self.section.flag(key)
    }

    fn word(&mut self, key: &'static str, words: &[&'static str]) -> Option<usize> {
        let words: Vec<_> = words.iter().copied().zip(0..).collect();
        self.section.one_of(key, &words)
    }

    fn address(&mut self, key: &'static str) -> Option<Option<TcpListen>> {
        let text = self.section.string(key, "127.0.0.1:10809")?;
        let listen = text.parse::<TcpListen>();
        if let Err(why) = &listen {
            self.section.refuse(key, format!("{key}={}: {}", shown(&text), printable(why)));
        }
        Some(listen.ok())
    }

    fn socket(&mut self, name: &str) -> PathBuf {
        let typed = self.section.string("socket", "data.sock");
        self.defaults.socket(&typed.unwrap_or_else(|| format!("{name}.sock")))
    }

    fn socket_mode(&mut self) -> Option<u32> {
        socket_mode(self.section)
    }

    fn num_queues(&mut self, max: u16) -> u16 {
        let n = self.section.number("num_queues", 1..=max.into()).map(|n| n as u16);
        n.unwrap_or(self.defaults.num_queues.min(max))
    }

    fn is_given(&mut self, key: &'static str) -> bool {
        self.section.get(key).is_some()
    }

    fn refuse(&mut self, key: &str, text: String) {
        self.section.refuse(key, text);
    }
}

/// `socket_mode = "0660"` or `0o660`.
fn socket_mode(section: &mut Section<'_, '_>) -> Option<u32> {
    let Found { value, .. } = section.get("socket_mode")?;
    let mode = match value {
        DeValue::String(text) => u64::from_str_radix(text, 8).ok(),
        // A decimal 660 would be mode 1224.
        DeValue::Integer(n) if n.radix() == 8 => whole(value),
        _ => None,
    };
    let mode = mode.filter(|mode| *mode <= 0o777).map(|mode| mode as u32);
    if mode.is_none() {
        let text = format!("socket_mode={}: must be octal, \"0000\"..=\"0777\", such as \"0660\"", text_of(value));
        section.refuse("socket_mode", text);
    }
    mode
}

/// `iothreads = ["io0", "io1"]`, or `[{ iothread = "io0", vqs = [0, 2] }, ...]`.
fn mapping(section: &mut Section<'_, '_>) -> Mapping {
    const FORM: &str = "[\"io0\", \"io1\"] or [{ iothread = \"io0\", vqs = [0, 1] }, ...]";
    let Some(Found { value, .. }) = section.get("iothreads") else { return Mapping::default() };
    let entries: Option<Vec<MappingEntry>> = value
        .as_array()
        .filter(|items| !items.is_empty())
        .map(|items| items.iter().map(|item| entry(item.get_ref())).collect())
        .unwrap_or_default();
    entries.map_or_else(
        || {
            section.refuse("iothreads", format!("iothreads={}: must be {FORM}", text_of(value)));
            Mapping::default()
        },
        |entries| Mapping { entries },
    )
}

fn entry(item: &DeValue<'_>) -> Option<MappingEntry> {
    if let Some(name) = item.as_str() {
        return Some(MappingEntry { iothread: name.to_owned(), vqs: None });
    }
    let table = item.as_table()?;
    if table.keys().any(|key| !["iothread", "vqs"].contains(&key.get_ref().as_ref())) {
        return None;
    }
    let vqs = match table.get("vqs") {
        Some(list) => {
            let numbers = list.get_ref().as_array()?.iter().map(|n| u16::try_from(whole(n.get_ref())?).ok());
            Some(numbers.collect::<Option<Vec<u16>>>()?)
        }
        None => None,
    };
    Some(MappingEntry { iothread: table.get("iothread")?.get_ref().as_str()?.to_owned(), vqs })
}

#[cfg(test)]
mod tests;
