// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for the data of a connection's requests, in regions that the disk's driver can access.
//!
//! Guarantees: each request slot always has a buffer of [`SMALL_BYTES`]. Longer requests share [`LARGE_BYTES`]; a request of so many fits
//! when no other request uses part of them. Requests that are longer still use [`LONGEST_BYTES`], one after the other. The memory is taken
//! when first used and goes back to the disk for the next connection; [`LONGEST_BYTES`] go back as soon as no request uses or waits for
//! them. The memory is only copied or handed to system calls, never accessed as a slice, because a driver may write it at any time.
//! Needs from callers: no I/O uses a buffer when it is given back, or any of the memory when [`Buffers`] is dropped; otherwise they call
//! [`Buffers::abandon`] first. A request that waited for a buffer takes one later, or the caller calls [`Buffers::stop_waiting`].

use crate::error::Result;
use crate::mem::Span;
use crate::nbd::wire::{MAX_PAYLOAD, MAX_SERVED};
use crate::net::owner::Owner;
use crate::serve::ServedDisk;
use blk::bio::DataRef;
use std::sync::Arc;

/// Bytes of a slot's own buffer; only longer requests need shared memory.
pub(in crate::export) const SMALL_BYTES: usize = 64 << 10;
/// Memory for all longer requests of a connection.
const LARGE_BYTES: usize = MAX_PAYLOAD as usize;
/// Memory for the one request that does not fit there.
const LONGEST_BYTES: usize = MAX_SERVED as usize;
const UNITS: usize = LARGE_BYTES / SMALL_BYTES;

/// Where the data of one request is.
#[derive(Clone, Copy, Debug)]
pub(in crate::export) struct Buffer {
    pub(in crate::export) data: DataRef,
    share: Share,
}

/// The memory that a buffer is part of.
#[derive(Clone, Copy, Debug)]
enum Share {
    /// Its slot's.
    Small,
    /// That of longer requests: first unit and number of units.
    Large(usize, usize),
    /// That of the longest requests.
    Longest,
}

struct Large {
    region: u16,
    used: [bool; UNITS],
}

struct Longest {
    region: u16,
    is_used: bool,
    /// A request waits for it, and takes it when it is free. So that request cannot lose the memory to another client.
    is_wanted: bool,
}

/// See the module's text.
pub(in crate::export) struct Buffers {
    disk: Arc<ServedDisk>,
    /// Of the client; `None`: there is no client.
    owner: Option<Owner>,
    /// 0: the memory was abandoned.
    slots: usize,
    small: u16,
    large: Option<Box<Large>>,
    longest: Option<Longest>,
}

impl Buffers {
    /// Makes the buffers of `slots` request slots, at least one, for a client of `owner`.
    ///
    /// # Errors
    /// Resource: there is no memory for it, or clients have too much.
    pub(in crate::export) fn new(disk: &Arc<ServedDisk>, slots: usize, owner: Option<Owner>) -> Result<Buffers> {
        let small = disk.take_client_buffers(slots * SMALL_BYTES, owner)?;
        Ok(Buffers { disk: Arc::clone(disk), owner, slots, small, large: None, longest: None })
    }

    /// Returns a buffer of at least `bytes`, which is at most [`MAX_SERVED`], for the request in `slot`; `None` if others must complete
    /// first.
    ///
    /// # Errors
    /// There is no memory, and waiting for others will not help.
    #[inline]
    pub(in crate::export) fn take(&mut self, slot: u16, bytes: usize) -> Result<Option<Buffer>> {
        if bytes <= SMALL_BYTES {
            let data = DataRef::new(self.small, u64::from(slot) * SMALL_BYTES as u64);
            return Ok(Some(Buffer { data, share: Share::Small }));
        }
        self.take_large(bytes)
    }

    fn take_large(&mut self, bytes: usize) -> Result<Option<Buffer>> {
        if bytes > LARGE_BYTES {
            return self.take_longest();
        }
        if self.large.is_none() {
            let region = self.disk.take_client_buffers(LARGE_BYTES, self.owner)?;
            self.large = Some(Box::new(Large { region, used: [false; UNITS] }));
        }
        let Some(Large { region, used }) = self.large.as_deref_mut() else { return Ok(None) };
        let units = bytes.div_ceil(SMALL_BYTES);
        let mut free = 0;
        for i in 0..UNITS {
            free = if used[i] { 0 } else { free + 1 };
            if free == units {
                let first = i + 1 - units;
                used[first..=i].fill(true);
                let data = DataRef::new(*region, (first * SMALL_BYTES) as u64);
                return Ok(Some(Buffer { data, share: Share::Large(first, units) }));
            }
        }
        Ok(None)
    }

    #[cold]
    fn take_longest(&mut self) -> Result<Option<Buffer>> {
        let longest = match &mut self.longest {
            Some(longest) => longest,
            none => {
                let region = self.disk.take_client_buffers(LONGEST_BYTES, self.owner)?;
                none.insert(Longest { region, is_used: false, is_wanted: false })
            }
        };
        // A free one is there only for the request that takes it now.
        longest.is_wanted = longest.is_used;
        if longest.is_used {
            return Ok(None);
        }
        longest.is_used = true;
        Ok(Some(Buffer { data: DataRef::new(longest.region, 0), share: Share::Longest }))
    }

    /// Gives a buffer back. Returns whether a request may have waited for it.
    #[inline]
    pub(in crate::export) fn give_back(&mut self, buffer: Buffer) -> bool {
        match buffer.share {
            Share::Small => return false,
            Share::Large(first, units) => {
                if let Some(large) = &mut self.large {
                    large.used[first..first + units].fill(false);
                }
            }
            Share::Longest => self.give_longest_back(),
        }
        true
    }

    #[cold]
    fn give_longest_back(&mut self) {
        if let Some(longest) = &mut self.longest {
            longest.is_used = false;
        }
        self.return_longest();
    }

    /// Forgets that a request waits for a buffer: it will not take one.
    #[cold]
    pub(in crate::export) fn stop_waiting(&mut self) {
        if let Some(longest) = &mut self.longest {
            longest.is_wanted = false;
        }
        self.return_longest();
    }

    /// Returns the memory of the longest requests to the disk, if no request uses it or waits for it.
    fn return_longest(&mut self) {
        if let Some(longest) = self.longest.take_if(|longest| !longest.is_used && !longest.is_wanted) {
            self.disk.give_client_buffers_back(LONGEST_BYTES, longest.region, self.owner);
        }
    }

    /// Returns the `len` bytes at `from` of a buffer.
    #[inline]
    pub(in crate::export) fn span(&self, buffer: Buffer, from: usize, len: usize) -> Span<'_> {
        let at = buffer.data.advance(from as u64);
        self.disk.regions.resolve(at, len).expect("a buffer lies in its region")
    }

    /// Leaves the memory to I/O that is still in flight: it never goes back.
    #[cold]
    pub(in crate::export) fn abandon(&mut self) {
        (self.slots, self.large, self.longest) = (0, None, None);
    }
}

impl Drop for Buffers {
    /// Returns all memory to the disk.
    fn drop(&mut self) {
        if self.slots > 0 {
            self.disk.give_client_buffers_back(self.slots * SMALL_BYTES, self.small, self.owner);
        }
        if let Some(large) = self.large.take() {
            self.disk.give_client_buffers_back(LARGE_BYTES, large.region, self.owner);
        }
        if let Some(longest) = self.longest.take() {
            self.disk.give_client_buffers_back(LONGEST_BYTES, longest.region, self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Regions;
    use crate::serve::{IoThreads, Polling, ThreadOptions};
    use crate::target::{Needs, TargetSpec};
    use blk::settings::QueueConfig;

    fn served() -> (IoThreads, Arc<ServedDisk>) {
        let option = ThreadOptions { name: "io0".into(), cpus: Vec::new(), polling: Polling::default() };
        let threads = IoThreads::start(&[option]).unwrap();
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let driver = TargetSpec::parse("ram:size=1m").unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
        let disk = threads.disk("disk", driver, regions, QueueConfig::default()).unwrap();
        (threads, disk)
    }

    /// Whether the disk has memory for longest requests that no connection has.
    fn has_spare(disk: &ServedDisk) -> bool {
        let before = disk.regions.count();
        let region = disk.take_client_buffers(LONGEST_BYTES, None).unwrap();
        let spare = disk.regions.count() == before;
        disk.give_client_buffers_back(LONGEST_BYTES, region, None);
        spare
    }

    /// One request over 32 MiB used to keep 64 MiB until its client left.
    #[test]
    fn memory_of_the_longest_request_goes_back_at_its_end() {
        let (_threads, disk) = served();
        let mut buffers = Buffers::new(&disk, 2, None).unwrap();
        let longest = buffers.take(0, LARGE_BYTES + 1).unwrap().unwrap();
        assert!(buffers.longest.is_some());
        assert!(buffers.give_back(longest) && buffers.longest.is_none());
        assert!(has_spare(&disk));
        // The same memory serves the next one.
        let longest = buffers.take(0, LONGEST_BYTES).unwrap().unwrap();
        assert!(!has_spare(&disk));
        assert!(buffers.give_back(longest));
    }

    #[test]
    fn a_request_that_waits_gets_the_memory_itself() {
        let (_threads, disk) = served();
        let mut buffers = Buffers::new(&disk, 2, None).unwrap();
        let first = buffers.take(0, LONGEST_BYTES).unwrap().unwrap();
        assert!(buffers.take(1, LONGEST_BYTES).unwrap().is_none());
        assert!(buffers.give_back(first) && buffers.longest.is_some(), "it is kept for the second request");
        let second = buffers.take(1, LONGEST_BYTES).unwrap().unwrap();
        assert!(buffers.give_back(second) && buffers.longest.is_none());
        // Requests that wait and are dropped, before and after the memory is free.
        for is_free in [false, true] {
            let first = buffers.take(0, LONGEST_BYTES).unwrap().unwrap();
            assert!(buffers.take(1, LONGEST_BYTES).unwrap().is_none());
            if !is_free {
                buffers.stop_waiting();
                assert!(buffers.longest.is_some(), "the first request uses it");
            }
            buffers.give_back(first);
            if is_free {
                buffers.stop_waiting();
            }
            assert!(buffers.longest.is_none());
        }
    }

    /// A client that is refused after it got memory leaves none behind.
    #[test]
    fn memory_goes_back_when_buffers_are_dropped() {
        let (_threads, disk) = served();
        let take_all = || {
            let mut buffers = Buffers::new(&disk, 2, None).unwrap();
            buffers.take(0, SMALL_BYTES + 1).unwrap().unwrap();
            buffers.take(1, LONGEST_BYTES).unwrap().unwrap();
            buffers
        };
        drop(take_all());
        let before = disk.regions.count();
        let mut buffers = take_all();
        assert_eq!(disk.regions.count(), before, "the memory is used again");
        buffers.abandon();
        drop(buffers);
        drop(take_all());
        assert_eq!(disk.regions.count(), before + 3, "I/O may still use what was abandoned");
    }
}
