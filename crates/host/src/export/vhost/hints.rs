// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration that makes an export a guest's disk: QEMU arguments, libvirt XML.
//!
//! Does not know the guest; the size of its memory is only an example.
//!
//! Source: QEMU docs/system/devices/vhost-user.rst (shared guest memory), libvirt formatdomain (`type='vhostuser'`; its validation rejects
//! cache, io, discard, iothread, serial and readonly there).

use super::spec::VhostUserPlan;
use crate::serve::export_spec::{Hint, HintContext};
use crate::shell::{absolute, quoted};

pub(super) fn hints(v: &VhostUserPlan, export: &HintContext<'_>) -> Vec<Hint> {
    let id = qemu_id(export.name);
    let path = absolute(&v.socket);
    let chardev = quoted(&format!("socket,id={id},path={},reconnect=1", path.replace(',', ",,")));
    let qemu = format!(
        "-object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\\n\
         -chardev {chardev} \\\n\
         -device vhost-user-blk-pci,chardev={id},num-queues={},queue-size={}",
        v.num_queues, v.queue_size
    );
    let dev = guest_name(export.disk, export.index);
    let xml = format!(
        "<disk type='vhostuser' device='disk'>\n  \
           <driver name='qemu' type='raw' queues='{}' queue_size='{}'/>\n  \
           <source type='unix' path='{}'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  \
           </source>\n  \
           <target dev='{dev}' bus='virtio'/>\n\
         </disk>",
        v.num_queues,
        v.queue_size,
        xml_text(&path)
    );
    vec![
        Hint {
            key: "qemu",
            title: "QEMU (the guest's memory must be shared; size= must equal -m, here 1G)",
            text: qemu,
        },
        Hint {
            key: "libvirt",
            title: "libvirt (virsh attach-device DOMAIN FILE; in place of the disk of that name, if there is one)",
            text: xml,
        },
        Hint {
            key: "libvirt_memory",
            title: "libvirt, once per domain (the guest's memory must be shared)",
            text: "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>".to_owned(),
        },
    ]
}

/// Escapes a value for use between apostrophes in XML.
fn xml_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns an id for QEMU, which must begin with a letter.
fn qemu_id(name: &str) -> String {
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name.to_owned() } else { format!("d{name}") }
}

/// Returns the disk's name in the guest: its own name if that is of the form vdX, otherwise one by its index, from vdb on.
fn guest_name(disk: &str, index: usize) -> String {
    let letters = disk.strip_prefix("vd").unwrap_or_default();
    if !letters.is_empty() && letters.len() <= 3 && letters.bytes().all(|b| b.is_ascii_lowercase()) {
        return disk.to_owned();
    }
    let mut n = index + 1;
    let mut name = String::new();
    loop {
        // `n % 26` is below 26.
        name.insert(0, char::from(b'a' + (n % 26) as u8));
        n /= 26;
        if n == 0 {
            return format!("vd{name}");
        }
        n -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_see_the_disks_own_name_or_the_next_one() {
        assert_eq!(guest_name("vdb", 7), "vdb");
        let names: Vec<_> = [0, 1, 24, 25, 26, 51, 701].iter().map(|i| guest_name("disk.img", *i)).collect();
        assert_eq!(names, ["vdb", "vdc", "vdz", "vdaa", "vdab", "vdba", "vdaaa"]);
        assert_eq!(guest_name("vd1", 0), "vdb");
    }

    #[test]
    fn ids_and_xml_are_what_qemu_and_libvirt_take() {
        assert_eq!(qemu_id("0disk"), "d0disk");
        assert_eq!(xml_text("a'b<c&d"), "a&apos;b&lt;c&amp;d");
        assert_eq!(xml_text("a\">b"), "a&quot;&gt;b");
    }
}
