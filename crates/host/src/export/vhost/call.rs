// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The descriptors that notify a front end of completed requests (call) and of a broken ring (err).
//!
//! Guarantees: a notification costs one system call. A front end can make that call block at any time, but only once. From then on an
//! io_uring notifies the clients of that export, because the kernel signals its completions without blocking. Without io_uring they are no
//! longer notified. Needs from callers: an eventfd.
//!
//! The io_uring could be used from the start, but takes 1.2 us while a write takes 0.6 us.
//!
//! Source: io_uring_register(2), `IORING_REGISTER_EVENTFD`.

use super::device::Device;
use crate::stuck;
use io_uring::{IoUring, opcode};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// See the module's text.
pub(super) struct Call {
    fd: File,
    signal_ring: Option<SignalRing>,
}

impl Call {
    pub(super) fn new(fd: File, device: &Device) -> Call {
        let signal_ring = device.call_waits.load(Ordering::Relaxed).then(|| SignalRing::new(&fd));
        Call { fd, signal_ring }
    }

    /// Notifies the front end.
    #[inline]
    pub(super) fn tell(&mut self, device: &Device) {
        match &mut self.signal_ring {
            None if stuck::signal(&self.fd).is_ok() => {}
            None => self.use_signal_ring(device),
            Some(signal_ring) => signal_ring.tell(),
        }
    }

    #[cold]
    fn use_signal_ring(&mut self, device: &Device) {
        if !device.call_waits.swap(true, Ordering::Relaxed) {
            log::warn!(export = device.name.as_str(); "a client made its call eventfd blocking and filled it, which \
                                                       blocked an IOThread; this export now notifies its clients \
                                                       through io_uring, which costs more CPU");
        }
        let mut signal_ring = SignalRing::new(&self.fd);
        signal_ring.tell();
        self.signal_ring = Some(signal_ring);
    }
}

/// A ring whose completions the kernel signals; `None` without io_uring.
struct SignalRing(Option<IoUring>);

impl SignalRing {
    #[cold]
    fn new(fd: &File) -> SignalRing {
        let ring = IoUring::new(1).ok();
        SignalRing(ring.filter(|ring| ring.submitter().register_eventfd(fd.as_raw_fd()).is_ok()))
    }

    #[cold]
    fn tell(&mut self) {
        let Some(ring) = &mut self.0 else { return };
        // SAFETY: the request uses no memory. If an entry is left from a failed call, there is no room, and that entry serves as well.
        let _ = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        let _ = ring.submit();
        ring.completion().for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::export::vhost::device::Cache;
    use blk::limits::Limits;
    use std::sync::atomic::AtomicBool;

    fn count(fd: &File) -> Option<u64> {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).ok().map(|_| u64::from_le_bytes(bytes))
    }

    #[test]
    fn a_blocking_client_is_signalled_by_the_ring() {
        let device = Device {
            name: "export".into(),
            limits: Limits::default(),
            block_size: 512,
            checked_block: 512,
            queue_size: 256,
            read_only: false,
            num_queues: 1,
            allow_file_memory: false,
            write_through: false,
            serial: [0; super::super::device::SERIAL_BYTES],
            cache: Cache::default(),
            call_waits: AtomicBool::new(false),
        };
        let good = File::from(event::new().unwrap());
        let mut call = Call::new(good.try_clone().unwrap(), &device);
        call.tell(&device);
        assert!(call.signal_ring.is_none() && count(&good) == Some(1));
        let full = File::from(stuck::full_and_waiting());
        let mut waits = Call::new(full.try_clone().unwrap(), &device);
        waits.tell(&device);
        assert!(waits.signal_ring.is_some() && device.call_waits.load(Ordering::Relaxed));
        // Far more often than the ring has entries.
        (0..100).for_each(|_| waits.tell(&device));
        assert!(count(&full) >= Some(u64::MAX - 1));
        waits.tell(&device);
        assert_eq!(count(&full), Some(1), "it is still told");
        // A well-behaved client of the same export is notified, too.
        let mut next = Call::new(good.try_clone().unwrap(), &device);
        assert!(next.signal_ring.is_some());
        (0..3).for_each(|_| next.tell(&device));
        assert_eq!(count(&good), Some(3));
    }
}
