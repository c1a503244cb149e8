// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounce buffers for requests whose segments in the guest's memory are not whole blocks. virtio lets a driver split its data into
//! segments of any length (virtio 1.3, 2.7.4.1), while a disk accepts whole blocks only.

use super::descriptor::View;
use blk::bio::DataRef;

/// Segments of the guest's memory: address and bytes.
pub(super) type Segments = [(u64, u32)];

/// Copies the segments to `data`, which has room for them. `None` when they are not in the guest's memory.
pub(super) fn gather(view: &View, segments: &Segments, data: DataRef) -> Option<()> {
    each_piece(view, segments, data, |guest, ours, len| {
        let (from, to) = (view.regions.resolve(guest, len).ok()?, view.regions.resolve(ours, len).ok()?);
        from.copy_to(to);
        Some(())
    })
}

/// Copies `data` to the segments. `None` when they are not in the guest's memory.
pub(super) fn scatter(view: &View, segments: &Segments, data: DataRef) -> Option<()> {
    each_piece(view, segments, data, |guest, ours, len| {
        let (from, to) = (view.regions.resolve(ours, len).ok()?, view.regions.resolve(guest, len).ok()?);
        from.copy_to(to);
        Some(())
    })
}

/// Whether all of the segments are in the guest's memory.
pub(super) fn is_mapped(view: &View, segments: &Segments) -> bool {
    each_piece(view, segments, DataRef::NONE, |_, _, _| Some(())).is_some()
}

fn each_piece(
    view: &View,
    segments: &Segments,
    mut data: DataRef,
    mut f: impl FnMut(DataRef, DataRef, usize) -> Option<()>,
) -> Option<()> {
    let mut hint = 0;
    for (addr, len) in segments {
        let (mut addr, mut len) = (*addr, *len);
        while len > 0 {
            let (guest, here) = view.memory.translate(addr, len, &mut hint)?;
            f(guest, data, here as usize)?;
            (addr, len, data) = (addr.checked_add(u64::from(here))?, len - here, data.advance(u64::from(here)));
        }
    }
    Some(())
}
