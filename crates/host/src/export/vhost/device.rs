// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtio block device as its driver sees it: features, configuration space, and the requested cache mode.
//!
//! Source: virtio 1.3, section 5.2; feature bits and layout of `struct virtio_blk_config`.

use super::descriptor::RingFeatures;
use blk::limits::Limits;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Feature bits of the block device.
pub mod feature {
    /// `VIRTIO_BLK_F_SEG_MAX`: `seg_max` is valid.
    pub const SEG_MAX: u64 = 1 << 2;
    /// `VIRTIO_BLK_F_RO`: writes fail.
    pub const RO: u64 = 1 << 5;
    /// `VIRTIO_BLK_F_BLK_SIZE`: `blk_size` is valid.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// `VIRTIO_BLK_F_FLUSH`: flush is supported.
    pub const FLUSH: u64 = 1 << 9;
    /// `VIRTIO_BLK_F_TOPOLOGY`: `topology` is valid.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// `VIRTIO_BLK_F_CONFIG_WCE`: the driver may switch the write cache.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// `VIRTIO_BLK_F_MQ`: `num_queues` is valid.
    pub const MQ: u64 = 1 << 12;
    /// `VIRTIO_BLK_F_DISCARD`: discard is supported.
    pub const DISCARD: u64 = 1 << 13;
    /// `VIRTIO_BLK_F_WRITE_ZEROES`: write zeroes is supported.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// `VHOST_F_LOG_ALL`: writes to the guest's memory are logged.
    pub const LOG_ALL: u64 = 1 << 26;
    /// `VIRTIO_F_INDIRECT_DESC`
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `VIRTIO_F_EVENT_IDX`
    pub const EVENT_IDX: u64 = 1 << 29;
    /// `VHOST_USER_F_PROTOCOL_FEATURES`
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// `VIRTIO_F_VERSION_1`
    pub const VERSION_1: u64 = 1 << 32;
    /// `VIRTIO_F_RING_PACKED`
    pub const RING_PACKED: u64 = 1 << 34;
}

/// Maximum number of segments of a request that are reported to a driver: what fits into a queue of 128 besides header and status.
const SEG_MAX: u32 = 126;

/// Returns the maximum number of segments of a request that is reported to the driver of rings of `queue_size` entries. Without indirect
/// descriptors a request with more, and its header and status, never fits into the ring. Source: QEMU hw/block/virtio-blk.c,
/// `seg-max-adjust`.
pub const fn seg_max(queue_size: u16) -> u32 {
    let most = (queue_size as u32).saturating_sub(2);
    if most > SEG_MAX {
        SEG_MAX
    } else if most < 1 {
        1
    } else {
        most
    }
}

/// Maximum number of ranges of one discard or write zeroes.
pub const MAX_RANGES: u32 = 16;
/// Bytes of the configuration space up to and including the fields of write zeroes.
pub const CONFIG_BYTES: usize = 60;
/// Offset of `wce` in the configuration space.
pub const CONFIG_WCE_AT: usize = 32;
/// Bytes of a serial number.
pub const SERIAL_BYTES: usize = 20;

/// One exported block device.
pub struct Device {
    /// The export's name.
    pub name: String,
    /// Limits of the disk.
    pub limits: Limits,
    /// Bytes to which memory and offsets are aligned for I/O without a copy.
    pub block_size: u32,
    /// Bytes that offsets and lengths of requests must be multiples of, or they fail: a power of two, at least a sector.
    pub checked_block: u32,
    /// Writes fail.
    pub read_only: bool,
    /// Memory of clients may be a file of any file system, not only of one that is in memory.
    pub allow_file_memory: bool,
    /// Number of virtqueues.
    pub num_queues: u16,
    /// Entries of a ring, as the export's commands tell the front end.
    pub queue_size: u16,
    /// Each write is stable when it completes, and no cache is reported to the driver.
    pub write_through: bool,
    /// The serial number, padded with zeroes.
    pub serial: [u8; SERIAL_BYTES],
    /// The cache mode that the driver has chosen.
    pub cache: Cache,
    /// A notification of a front end blocked this process; see `super::call`.
    pub call_waits: AtomicBool,
}

/// Whether writes are cached until a flush (`writeback`). Otherwise each write is stable when it completes.
///
/// A front end that reconnects after a restart of this back end does not repeat the mode that its driver had chosen. Until the mode is
/// known, each write is stable when it completes. A flush shows that the driver assumes a cache, because without a cache it has nothing to
/// flush.
#[derive(Debug, Default)]
pub struct Cache(AtomicU8);

const THROUGH: u8 = 0;
const BACK: u8 = 1;
const UNKNOWN: u8 = 2;

impl Cache {
    /// Whether a write may complete before it is stable.
    #[inline]
    pub fn is_back(&self) -> bool {
        self.0.load(Ordering::Relaxed) == BACK
    }

    /// Sets whether writes are cached, as the driver has chosen.
    pub fn set(&self, back: bool) {
        self.0.store(if back { BACK } else { THROUGH }, Ordering::Relaxed);
    }

    /// Sets the mode to unknown: the driver chose it before this back end started.
    pub fn forget(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Notes that the driver flushes, which decides an unknown mode.
    #[inline]
    pub fn flushed(&self) {
        if self.0.load(Ordering::Relaxed) == UNKNOWN {
            // Fails if the mode was set in the meantime.
            let _ = self.0.compare_exchange(UNKNOWN, BACK, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the value for the configuration space: 1 means that a flush is needed.
    pub fn shown(&self) -> u8 {
        u8::from(self.0.load(Ordering::Relaxed) != THROUGH)
    }
}

impl Device {
    /// Returns the offered feature bits.
    pub fn features(&self) -> u64 {
        use feature as f;
        let mut bits = f::SEG_MAX | f::BLK_SIZE | f::TOPOLOGY | f::MQ;
        if !self.write_through {
            bits |= f::FLUSH | f::CONFIG_WCE;
        }
        bits |= f::LOG_ALL | f::INDIRECT_DESC | f::EVENT_IDX | f::PROTOCOL_FEATURES | f::VERSION_1 | f::RING_PACKED;
        if self.read_only {
            return bits | f::RO;
        }
        if self.limits.max_discard_sectors > 0 {
            bits |= f::DISCARD;
        }
        if self.limits.max_write_zeroes_sectors > 0 {
            bits |= f::WRITE_ZEROES;
        }
        bits
    }

    /// Returns the acknowledged features that rings depend on.
    pub fn ring_features(acked: u64) -> RingFeatures {
        RingFeatures { event_idx: acked & feature::EVENT_IDX != 0, indirect: acked & feature::INDIRECT_DESC != 0 }
    }

    /// Resets the cache mode for a new front end. This is done here, not when features are acknowledged, because a front end may read the
    /// configuration before that and give it to the guest's driver later.
    pub fn begin(&self) {
        self.cache.set(!self.write_through);
    }

    /// Sets the cache mode for the acknowledged `features`: without FLUSH a cached write could never become stable. If an earlier back end
    /// served the driver (`goes_on`), the driver may have switched the cache off.
    pub fn acknowledge(&self, features: u64, goes_on: bool) {
        self.cache.set(features & feature::FLUSH != 0);
        if goes_on && features & feature::FLUSH != 0 && features & feature::CONFIG_WCE != 0 {
            self.cache.forget();
        }
    }

    /// Returns the configuration space (`struct virtio_blk_config`) of a disk with `capacity` sectors.
    pub fn config(&self, capacity: u64) -> [u8; CONFIG_BYTES] {
        let l = &self.limits;
        let mut c = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| c[at..at + bytes.len()].copy_from_slice(bytes);
        let blocks = |bytes: u32| bytes / l.logical_block_size;
        put(0, &capacity.to_le_bytes());
        put(12, &seg_max(self.queue_size).to_le_bytes());
        put(20, &l.logical_block_size.to_le_bytes());
        put(24, &[blocks(l.physical_block_size).max(1).ilog2() as u8, 0]);
        put(26, &(blocks(l.physical_block_size).clamp(1, 0xffff) as u16).to_le_bytes());
        put(CONFIG_WCE_AT, &[self.cache.shown()]);
        put(34, &self.num_queues.to_le_bytes());
        put(36, &l.max_discard_sectors.to_le_bytes());
        put(40, &MAX_RANGES.to_le_bytes());
        put(44, &(l.discard_granularity.max(l.logical_block_size) >> 9).to_le_bytes());
        put(48, &l.max_write_zeroes_sectors.to_le_bytes());
        put(52, &MAX_RANGES.to_le_bytes());
        put(56, &[1]);
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(read_only: bool) -> Device {
        Device {
            name: "export".into(),
            limits: Limits { physical_block_size: 4096, max_discard_sectors: 9, ..Limits::default() },
            block_size: 512,
            checked_block: 512,
            read_only,
            num_queues: 3,
            queue_size: 256,
            allow_file_memory: false,
            write_through: read_only,
            serial: [0; SERIAL_BYTES],
            cache: Cache::default(),
            call_waits: AtomicBool::new(false),
        }
    }

    #[test]
    fn a_request_of_the_most_segments_fits_into_the_ring() {
        for (size, expected) in [(2, 1), (3, 1), (4, 2), (64, 62), (128, 126), (256, 126), (1024, 126)] {
            assert_eq!(seg_max(size), expected, "{size} entries");
        }
    }

    #[test]
    fn the_configuration_is_where_the_specification_has_it() {
        let d = device(false);
        d.acknowledge(feature::FLUSH, false);
        let c = d.config(0x1234);
        let word = |at: usize| u32::from_le_bytes(c[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(12), word(20)), (0x1234, 0, SEG_MAX, 512));
        assert_eq!((c[24], c[26], c[32], c[34]), (3, 8, 1, 3));
        assert_eq!((word(36), word(40), word(44)), (9, MAX_RANGES, 1));
        d.acknowledge(0, false);
        assert_eq!(d.config(0x1234)[CONFIG_WCE_AT], 0, "without FLUSH writes go through");
    }

    /// QEMU reads the configuration before the driver has acknowledged features, and shows that copy to the driver. A 0 there used to make
    /// guests send no flush to a device that cached their writes.
    #[test]
    fn a_cache_is_shown_before_features_are_acknowledged() {
        let (d, through) = (device(false), device(true));
        d.begin();
        through.begin();
        assert_eq!((d.config(1)[CONFIG_WCE_AT], through.config(1)[CONFIG_WCE_AT]), (1, 0));
    }

    #[test]
    fn a_driver_that_goes_on_has_durable_writes_until_it_flushes() {
        let d = device(false);
        let both = feature::FLUSH | feature::CONFIG_WCE;
        d.acknowledge(both, true);
        assert!(!d.cache.is_back());
        assert_eq!(d.config(1)[CONFIG_WCE_AT], 1, "it may flush");
        d.cache.flushed();
        assert!(d.cache.is_back());
        d.acknowledge(both, true);
        d.cache.set(false);
        d.cache.flushed();
        assert!(!d.cache.is_back(), "it has said that there is none");
        d.acknowledge(feature::FLUSH, true);
        assert!(d.cache.is_back(), "it could not have switched it");
    }

    #[test]
    fn a_read_only_device_offers_nothing_that_writes() {
        let bits = device(true).features();
        assert_ne!(bits & feature::RO, 0);
        assert_eq!(bits & (feature::DISCARD | feature::WRITE_ZEROES), 0);
        assert_eq!(bits & (feature::FLUSH | feature::CONFIG_WCE), 0, "this one writes through");
    }
}
