// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Elements of a domain's disks that are not read: which of them keep a disk from being served, and which have no effect. Elements about
//! IOThreads and their I/O that are not read.
//!
//! Guarantees: no element of `<disk>`, of its `<source>` or `<driver>`, and no attribute of `<driver>` or `<blockio>` is ignored in silence.
//! Exceptions describe no more than the device's place in the VM or libvirt's own state, or change nothing that a guest sees.
//! Source: libvirt formatdomain, "Hard drives, floppy disks, CDROMs", "IOThreads Allocation", "CPU Tuning".

use ::config::reader::shown;
use quick_xml::Reader;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};

/// Elements that `xml` reads, or that change nothing.
const READ: [&str; 15] = [
    "driver",
    "source",
    "target",
    "readonly",
    "shareable",
    "transient",
    "serial",
    "iotune",
    "blockio",
    "backingStore",
    "privateData",
    "driver/iothreads",
    "source/slices",
    "source/seclabel",
    "source/privateData",
];

/// Attributes of elements that `xml` reads, or that change nothing.
const READ_ATTRIBUTES: [(&str, &[&str]); 2] = [
    (
        "driver",
        &[
            "name",
            "type",
            "cache",
            "discard",
            "error_policy",
            "queues",
            "queue_size",
            "iothread",
            "io",
            "ioeventfd",
            "event_idx",
        ],
    ),
    ("blockio", &["logical_block_size", "physical_block_size"]),
];

/// Elements of the device in the VM, which stay the same when the disk moves to vhost-user.
const OF_THE_VM: [&str; 3] = ["boot", "alias", "address"];
/// Begins an alias that the user has given. libvirt makes all others itself.
const USER_ALIAS: &str = "ua-";

/// Elements that change the data, with the reason why such a disk is left out.
const CHANGE_DATA: [(&str, &str); 3] = [
    ("encryption", "it is encrypted (<encryption>), and its ciphertext would be served"),
    ("source/encryption", "it is encrypted (<encryption>), and its ciphertext would be served"),
    ("mirror", "a block job copies it (<mirror>)"),
];

/// Number of elements around the deepest ones that matter here, which are in `domain/devices/disk/source`. Deeper ones are skipped, because
/// listing the names around each element of a deeply nested file would take quadratic time.
const DEEPEST: usize = 4;

/// Elements of a domain that limit or prefer IOThreads and their I/O, some only with an attribute.
const OF_THREADS: [(&str, Option<&str>); 8] = [
    ("blkiotune", None),
    ("cputune/global_period", None),
    ("cputune/global_quota", None),
    ("cputune/iothreadsched", None),
    ("cputune/iothread_period", None),
    ("cputune/iothread_quota", None),
    ("iothreadids/iothread", Some("thread_pool_min")),
    ("iothreadids/iothread", Some("thread_pool_max")),
];

/// What one `<disk>` has.
#[derive(Default)]
pub struct Others {
    /// Names of its elements, of those inside as `source/NAME`, and of attributes that are not read as `driver NAME=`.
    elements: Vec<String>,
}

impl Others {
    /// Returns what the disks of a domain have, in order. The XML has been read once without an error.
    pub fn of_disks(text: &str) -> Vec<Others> {
        let mut disks = Vec::new();
        each_element(text, |tag, inside| see(tag, inside, &mut disks));
        disks
    }

    /// Returns why the disk cannot be served.
    pub fn keeps_out(&self) -> Option<String> {
        let has = |name: &str| self.elements.iter().any(|e| e == name);
        CHANGE_DATA.iter().find(|(name, _)| has(name)).map(|(_, why)| (*why).to_owned())
    }

    /// Returns a warning for each group of elements without effect.
    pub fn warnings(&self, of: &str) -> Vec<String> {
        let list = |names: Vec<&String>| names.iter().map(|n| format!("<{}>", shown(n))).collect::<Vec<_>>().join(", ");
        let (of_the_vm, rest): (Vec<_>, Vec<_>) =
            self.elements.iter().filter(|e| !READ.contains(&e.as_str())).partition(|e| OF_THE_VM.contains(&e.as_str()));
        let mut all = Vec::new();
        if !of_the_vm.is_empty() {
            all.push(format!("{of}: copy its {} into the <disk> that is printed here", list(of_the_vm)));
        }
        if !rest.is_empty() {
            let rest: Vec<_> = rest.into_iter().map(|name| shown(name)).collect();
            all.push(format!("{of}: these elements have no effect: {}", rest.join(", ")));
        }
        all
    }
}

/// Returns a warning about the elements of a domain for IOThreads and their I/O that have no effect.
pub fn of_threads(text: &str) -> Option<String> {
    let mut found: Vec<(&str, Option<&str>)> = Vec::new();
    each_element(text, |tag, inside| {
        let name = tag.local_name();
        let path = [inside.get(1..).unwrap_or_default(), &[name.as_ref()]].concat().join("/");
        if inside.first() != Some(&"domain") {
            return;
        }
        for known @ (element, attribute) in OF_THREADS {
            let has_it = |name: &str| matches!(tag.try_get_attribute(name), Ok(Some(_)));
            if element == path && attribute.is_none_or(has_it) && !found.contains(&known) {
                found.push(known);
            }
        }
    });
    let name = |(element, attribute): (&str, Option<&str>)| match attribute {
        Some(attribute) => format!("{element} {attribute}="),
        None => element.to_owned(),
    };
    let list: Vec<String> = found.into_iter().map(name).collect();
    let rule = "these elements of the domain have no effect on the daemon's threads";
    (!list.is_empty()).then(|| format!("{rule}: {}", list.join(", ")))
}

/// Calls `see` with each element down to [`DEEPEST`], and the names of those that it is inside.
fn each_element(text: &str, mut see: impl FnMut(&BytesStart<'_>, &[&str])) {
    let mut reader = Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    let mut look = |tag: &BytesStart<'_>, path: &[String]| {
        if path.len() <= DEEPEST {
            let inside: Vec<&str> = path.iter().map(String::as_str).collect();
            see(tag, &inside);
        }
    };
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                look(&tag, &path);
                // As the deserializer of `xml` does, without a prefix.
                path.push(tag.local_name().as_ref().to_owned());
            }
            Ok(Event::Empty(tag)) => look(&tag, &path),
            Ok(Event::End(_)) => drop(path.pop()),
            Ok(Event::Eof) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Notes an element that begins inside of others.
fn see(tag: &BytesStart<'_>, inside: &[&str], disks: &mut Vec<Others>) {
    let name = tag.local_name().as_ref().to_owned();
    match (inside, disks.last_mut()) {
        (["domain", "devices"], _) if name == "disk" => disks.push(Others::default()),
        (["domain", "devices", "disk"], Some(_)) if name == "alias" && !is_of_the_user(tag) => {}
        (["domain", "devices", "disk"], Some(disk)) => {
            disk.elements.extend(unread_attributes(tag, &name));
            disk.elements.push(name);
        }
        (["domain", "devices", "disk", parent @ ("source" | "driver")], Some(disk)) => {
            disk.elements.push(format!("{parent}/{name}"));
        }
        _ => {}
    }
}

/// Whether an `<alias>` has a name that the user has given.
fn is_of_the_user(tag: &BytesStart<'_>) -> bool {
    matches!(tag.try_get_attribute("name"), Ok(Some(name)) if name.value.starts_with(USER_ALIAS))
}

/// Returns the attributes of an element of `<disk>` that have an effect in QEMU and are not read.
fn unread_attributes(tag: &BytesStart<'_>, name: &str) -> Vec<String> {
    let Some((_, read)) = READ_ATTRIBUTES.iter().find(|(element, _)| *element == name) else { return Vec::new() };
    let is_unread = |attribute: &Attribute<'_>| {
        let key: &str = attribute.key.as_ref();
        !read.contains(&key) && !is_default(key, &attribute.value)
    };
    // The deserializer has accepted them all.
    let unread = tag.attributes().flatten().filter(is_unread);
    unread.map(|attribute| format!("{name} {}=", AsRef::<str>::as_ref(&attribute.key))).collect()
}

/// Whether an attribute has the value that it has without being there.
fn is_default(key: &str, value: &str) -> bool {
    matches!((key, value), (_, "off" | "default") | ("rerror_policy", "report"))
}
