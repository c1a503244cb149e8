// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a waiting device may be served with a disk. The disk must look as before, because the device's users continue.
//!
//! Guarantees: a disk of another size, block size, cache or permission, and other queues, are refused; the message says what differs.
//! Does not do: distinguish two disks that look the same, because a ublk device carries nothing that identifies its disk.

use super::wire::{DevInfo, Shape};

/// What users of a device rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceShape {
    nr_hw_queues: u16,
    queue_depth: u16,
    shape: Shape,
}

impl DeviceShape {
    pub(super) fn new(info: &DevInfo, shape: Shape) -> DeviceShape {
        DeviceShape { nr_hw_queues: info.nr_hw_queues, queue_depth: info.queue_depth, shape }
    }
}

/// Returns why device `id` with shape `there` is not served with shape `here`; `None` if it may be. A larger disk is accepted: the disk
/// may have grown, and the kernel requests nothing beyond the size that it knows.
pub(super) fn refusal(id: u32, there: &DeviceShape, here: &DeviceShape) -> Option<String> {
    let (a, b) = (there.shape, here.shape);
    let cache = |through| if through { "none or \"write through\"" } else { "\"write back\"" }.to_owned();
    let all = [
        ("num_queues", there.nr_hw_queues.to_string(), here.nr_hw_queues.to_string()),
        ("queue_depth", there.queue_depth.to_string(), here.queue_depth.to_string()),
        ("size", a.bytes.to_string(), b.bytes.to_string()),
        ("logical_block_size", a.logical_block.to_string(), b.logical_block.to_string()),
        ("read_only", a.read_only.to_string(), b.read_only.to_string()),
        ("write_cache", cache(a.write_through), cache(b.write_through)),
    ];
    let differ: Vec<String> = all
        .iter()
        .filter(|(name, there, here)| there != here && (*name != "size" || b.bytes < a.bytes))
        .map(|(name, there, here)| format!("{name}={there}, not {here}"))
        .collect();
    (!differ.is_empty()).then(|| {
        format!(
            "ublk device {id} waits for recovery with {}: serve it with its previous disk and settings, or once with \
             recovery=false to delete it",
            differ.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_and_what_is_the_same_is_served() {
        let shape = Shape { bytes: 1 << 20, logical_block: 512, read_only: false, write_through: false };
        let looks = DeviceShape { nr_hw_queues: 2, queue_depth: 64, shape };
        assert_eq!(refusal(5, &looks, &looks), None);
        let said = |here: DeviceShape| refusal(5, &looks, &here).unwrap_or_default();
        let of = |shape: Shape| said(DeviceShape { shape, ..looks });
        let other = DeviceShape { nr_hw_queues: 1, shape: Shape { bytes: 512, ..shape }, ..looks };
        assert!(
            said(other).starts_with(
                "ublk device 5 waits for recovery with num_queues=2, not 1; size=1048576, not 512: serve it with its"
            ),
            "{}",
            said(other)
        );
        assert_eq!(of(Shape { bytes: 2 << 20, ..shape }), "", "a disk that has grown");
        assert!(said(DeviceShape { queue_depth: 32, ..looks }).contains("with queue_depth=64, not 32:"));
        assert!(of(Shape { logical_block: 4096, ..shape }).contains("with logical_block_size=512, not 4096:"));
        assert!(of(Shape { read_only: true, ..shape }).contains("with read_only=false, not true:"));
        let cache = of(Shape { write_through: true, ..shape });
        assert!(cache.contains("with write_cache=\"write back\", not none or \"write through\":"), "{cache}");
    }
}
