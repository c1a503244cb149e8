// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One front end's connection: sets up virtqueues on IOThreads as its messages demand.
//!
//! Guarantees: a virtqueue runs from its first kick descriptor until the front end asks for its base, the device is reset or the
//! connection ends. A memory slot is removed only when no I/O in it is in flight. A message that breaks a rule is refused, and the reader
//! of the socket drops the front end. Without that the front end would assume success, because most messages have no answer.
//!
//! Source: the vhost-user protocol of QEMU's documentation.

use super::call::Call;
use super::descriptor::{MAX_QUEUE_SIZE, RingAddress, View};
use super::device::{CONFIG_BYTES, CONFIG_WCE_AT, Device, feature, seg_max};
use super::inflight::{self, Inflight};
use super::inflight_packed::{self, PackedInflight};
use super::log::{DirtyLog, RingLog};
use super::memory::{GuestMemory, MAX_SLOTS, SlotAddress};
use super::packed::PackedRing;
use super::ring::Ring;
use super::split::SplitRing;
use super::virtqueue::{Parts, VirtQueue};
use crate::mem::{Alarm, BUFFER_ALIGN, Region, is_memory_file};
use crate::serve::{IoThreads, ServedDisk, SourceHandle};
use crate::stuck;
use blk::time::Duration;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// One virtqueue, as far as messages have set it up.
#[derive(Default)]
struct RingState {
    size: u16,
    address: RingAddress,
    /// Guest address of the used ring, if writes to it are logged.
    log_used: Option<u64>,
    base: u32,
    call: Option<File>,
    err: Option<File>,
    enabled: bool,
    running: Option<SourceHandle>,
}

/// See the module's text.
pub(super) struct Connection {
    threads: Arc<IoThreads>,
    disk: Arc<ServedDisk>,
    device: Arc<Device>,
    /// IOThread of each virtqueue.
    mapping: Vec<usize>,
    memory: Arc<GuestMemory>,
    /// Raised when pages of memory that the front end shares are gone.
    alarm: Arc<Alarm>,
    features: u64,
    protocol: VhostUserProtocolFeatures,
    rings: Vec<RingState>,
    has_owner: bool,
    /// The memory that records requests in flight, and the queue size it is for.
    inflight: Option<(Arc<Region>, u16)>,
    /// An earlier back end began the record, so the driver is already running.
    goes_on: bool,
    /// Where writes to the guest's memory are logged while VHOST_F_LOG_ALL is acknowledged.
    log: Option<Arc<DirtyLog>>,
}

fn refused(rule: &'static str) -> Error {
    Error::InvalidOperation(rule)
}

/// Closes files in a thread, because closing a file of FUSE waits for its server. Beyond a few such threads, the caller waits.
fn close_aside(files: Vec<File>) {
    const MOST: u32 = 16;
    static CLOSING: AtomicU32 = AtomicU32::new(0);
    if CLOSING.fetch_add(1, Ordering::Relaxed) >= MOST {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
        return drop(files);
    }
    let close = move || {
        drop(files);
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    };
    // Without a thread the files are closed here.
    if std::thread::Builder::new().name("mqblk-close".into()).spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn io_error(e: crate::error::Error) -> Error {
    Error::ReqHandlerError(std::io::Error::other(e.to_string()))
}

/// Rejects descriptors other than eventfds, and makes eventfds non-blocking. An IOThread waits for them and writes to them. With another
/// kind of file, such as a file of its own FUSE mount, the front end could block the IOThread forever.
fn check_event(fd: Option<&File>) -> Result<()> {
    let Some(fd) = fd else { return Ok(()) };
    if !stuck::is_eventfd(fd) {
        return Err(refused("kick, call and error descriptors must be eventfds"));
    }
    rustix::io::ioctl_fionbio(fd, true).map_err(|e| Error::ReqHandlerError(e.into()))
}

/// Duplicates a descriptor that notifies the front end.
fn copy(fd: Option<&File>, device: &Device) -> Result<Option<Call>> {
    let copy = fd.map(File::try_clone).transpose().map_err(Error::ReqHandlerError)?;
    Ok(copy.map(|fd| Call::new(fd, device)))
}

impl Connection {
    pub(super) fn new(
        threads: Arc<IoThreads>,
        disk: Arc<ServedDisk>,
        device: Arc<Device>,
        mapping: Vec<usize>,
        alarm: Arc<Alarm>,
    ) -> Connection {
        device.begin();
        let rings = mapping.iter().map(|_| RingState::default()).collect();
        Connection {
            threads,
            disk,
            device,
            mapping,
            memory: Arc::new(GuestMemory::new(Arc::clone(&alarm))),
            alarm,
            features: 0,
            protocol: VhostUserProtocolFeatures::empty(),
            rings,
            has_owner: false,
            inflight: None,
            goes_on: false,
            log: None,
        }
    }

    /// Returns the log, if writes must be logged.
    fn active_log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref().filter(|_| self.features & feature::LOG_ALL != 0)
    }

    /// Returns the negotiated protocol features.
    pub(super) fn protocol(&self) -> VhostUserProtocolFeatures {
        self.protocol
    }

    /// Whether the front end acknowledged features for a driver and has shared no memory: a guest's memory that is not shared cannot be.
    pub(super) fn lacks_memory(&self) -> bool {
        self.features != 0 && self.memory.numbers().next().is_none()
    }

    /// The IOThread of each virtqueue.
    pub(super) fn mapping(&self) -> &[usize] {
        &self.mapping
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingState> {
        self.rings.get_mut(index as usize).ok_or_else(|| refused("there is no such virtqueue"))
    }

    fn view(&self) -> View {
        View { memory: Arc::clone(&self.memory), regions: Arc::clone(&self.disk.regions) }
    }

    /// Stops a virtqueue once none of its requests is in flight. It can be started again from its base.
    fn stop(&mut self, index: usize) -> Option<Box<VirtQueue>> {
        let handle = self.rings[index].running.take()?;
        let q = self.threads.remove(&handle).expect("a virtqueue stays").into_type::<VirtQueue>();
        q.empty_kick();
        self.rings[index].base = q.base();
        Some(q)
    }

    /// Moves each virtqueue to the IOThread at its index in `mapping`. Returns the longest time in which a virtqueue was not served.
    pub(super) fn remap(&mut self, mapping: &[usize]) -> crate::error::Result<Duration> {
        let mut longest = Duration::ZERO;
        for (i, thread) in mapping.iter().enumerate() {
            if let Some(handle) = &self.rings[i].running {
                longest = longest.max(self.threads.move_to(handle, *thread)?);
            }
            self.mapping[i] = *thread;
        }
        Ok(longest)
    }

    fn stop_all(&mut self) {
        for i in 0..self.rings.len() {
            self.stop(i);
        }
    }

    /// Makes a ring from the state that messages have set up.
    fn make_ring(&self, index: usize) -> Option<Ring> {
        let RingState { size, address, base, log_used, .. } = self.rings[index];
        let features = Device::ring_features(self.features);
        let log = match (self.active_log(), log_used) {
            (Some(log), Some(used)) => Some(RingLog::new(log, &self.memory, address, used)?),
            _ => None,
        };
        if self.features & feature::RING_PACKED != 0 {
            let mut ring = PackedRing::new(&self.memory, address, size, base, features)?;
            ring.log = log;
            if let Some((region, of_size)) = &self.inflight {
                if *of_size < size {
                    return None;
                }
                ring.track(PackedInflight::new(region, index as u16, *of_size, ring.used())?)?;
            }
            return Some(Ring::Packed(ring));
        }
        let mut ring = SplitRing::new(&self.memory, address, size, base as u16, features)?;
        ring.log = log;
        if let Some((region, of_size)) = &self.inflight {
            if *of_size < size {
                return None;
            }
            ring.track(Inflight::new(region, index as u16, *of_size)?);
        }
        Some(Ring::Split(ring))
    }

    fn start(&mut self, index: usize, kick: Option<File>) -> Result<()> {
        if self.rings[index].size == 0 {
            return Err(refused("a virtqueue without a size was started"));
        }
        let ring = self.make_ring(index).ok_or_else(|| refused("a ring is not in the guest's memory"))?;
        let state = &mut self.rings[index];
        let copy = |f: &Option<File>| copy(f.as_ref(), &self.device);
        let mut parts = Parts {
            index: index as u16,
            size: state.size,
            device: Arc::clone(&self.device),
            ring,
            view: View { memory: Arc::clone(&self.memory), regions: Arc::clone(&self.disk.regions) },
            kick,
            call: copy(&state.call)?,
            err: copy(&state.err)?,
            enabled: state.enabled || self.features & feature::PROTOCOL_FEATURES == 0,
            log: self.log.clone().filter(|_| self.features & feature::LOG_ALL != 0),
        };
        if let (Some(_), Some(call)) = (&self.inflight, &mut parts.call) {
            // An earlier back end may not have signalled the last entries that it published.
            call.tell(&self.device);
        }
        let source = VirtQueue::new(parts);
        state.running = Some(self.threads.add(self.mapping[index], &self.disk, source).map_err(io_error)?);
        Ok(())
    }

    /// Runs a function on a running virtqueue, on its IOThread.
    fn visit(&self, index: usize, f: impl FnOnce(&mut VirtQueue) + Send + 'static) {
        if let Some(handle) = &self.rings[index].running {
            self.threads.visit(handle, f);
        }
    }

    /// Stops all virtqueues, changes their settings, and starts them again.
    fn while_stopped(&mut self, change: impl FnOnce(&mut Connection)) -> Result<()> {
        let kicks: Vec<_> = (0..self.rings.len()).map(|i| self.stop(i).map(|q| q.into_kick())).collect();
        change(self);
        for (i, kick) in kicks.into_iter().enumerate() {
            if let Some(kick) = kick {
                self.start(i, kick)?;
            }
        }
        Ok(())
    }

    /// Replaces the guest's memory of all virtqueues. Slots that the new memory lacks are removed.
    fn replace_memory(&mut self, memory: GuestMemory) -> Result<()> {
        self.while_stopped(|c| {
            let old = std::mem::replace(&mut c.memory, Arc::new(memory));
            c.retire(&old);
        })
    }

    /// Removes the slots of `old` that no longer exist from the disk's regions. No virtqueue may run.
    fn retire(&self, old: &GuestMemory) {
        for number in old.numbers().filter(|n| self.memory.numbers().all(|m| m != *n)) {
            // SAFETY: only virtqueues of this connection know the slot. Their IOThreads have handed them back, so none
            // of their requests is in flight. Virtqueues that start later get a memory without the slot.
            unsafe { self.disk.regions.remove(number) };
        }
    }

    /// Refuses files whose pages may never come.
    fn accept(&self, files: Vec<File>) -> Result<Vec<File>> {
        if self.device.allow_file_memory || files.iter().all(|file| is_memory_file(file.as_fd())) {
            return Ok(files);
        }
        close_aside(files);
        Err(refused(
            "memory that the client shares is neither a memfd nor a file of tmpfs or hugetlbfs, so access to its pages may block forever: \
             use a memfd (QEMU: -object memory-backend-memfd,share=on; libvirt: <source type='memfd'/>), or set allow_file_memory = true for \
             this export in the configuration",
        ))
    }

    /// Maps shared memory that is not the guest's memory.
    fn map(&self, fd: impl AsFd, offset: u64, bytes: u64) -> Result<Arc<Region>> {
        let bytes = usize::try_from(bytes).map_err(|_| refused("memory larger than the address space"))?;
        Region::map_shared(fd.as_fd(), offset, bytes, &self.alarm).map(Arc::new).map_err(io_error)
    }

    /// Returns the bytes of the record of requests in flight of a queue of `size`, for the ring layout that was acknowledged so far.
    fn inflight_bytes(&self, size: u16) -> usize {
        match self.features & feature::RING_PACKED {
            0 => inflight::queue_bytes(size),
            _ => inflight_packed::queue_bytes(size),
        }
    }

    fn add(&self, memory: &GuestMemory, region: &VhostUserMemoryRegion, file: &File) -> Result<GuestMemory> {
        let address = SlotAddress {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            len: region.memory_size,
            file_offset: region.mmap_offset,
        };
        memory.with(address, file.as_fd(), &self.disk.regions).map_err(io_error)
    }

    /// Resets all state to that before a driver's first message.
    fn reset(&mut self) {
        self.stop_all();
        self.rings.iter_mut().for_each(|r| *r = RingState::default());
        self.features = 0;
        (self.inflight, self.log) = (None, None);
        self.goes_on = false;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop_all();
        let none = Arc::new(GuestMemory::new(Arc::clone(&self.alarm)));
        let old = std::mem::replace(&mut self.memory, none);
        self.retire(&old);
    }
}

impl VhostUserBackendReqHandlerMut for Connection {
    fn set_owner(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_owner, true) {
            return Err(refused("the device has an owner"));
        }
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.has_owner = false;
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.device.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.device.features() != 0 {
            return Err(refused("a feature was acknowledged that was not offered"));
        }
        let changed = features ^ self.features;
        if changed == feature::LOG_ALL {
            // A migration begins or ends, without the driver's knowledge. Requests that were taken without a log complete without one.
            return self.while_stopped(|c| c.features = features);
        }
        self.features = features;
        self.device.acknowledge(features, self.goes_on);
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        slots: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let files = self.accept(files)?;
        let mut memory = GuestMemory::new(Arc::clone(&self.alarm));
        for (slot, file) in slots.iter().zip(&files) {
            match self.add(&memory, slot, file) {
                Ok(more) => memory = more,
                Err(e) => {
                    // Slots that were already mapped are not in use yet: remove them.
                    let none = Arc::new(GuestMemory::new(Arc::clone(&self.alarm)));
                    let kept = std::mem::replace(&mut self.memory, none);
                    self.retire(&memory);
                    self.memory = kept;
                    return Err(e);
                }
            }
        }
        self.replace_memory(memory)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let packed = self.features & feature::RING_PACKED != 0;
        let ring = self.ring(index)?;
        if ring.running.is_some() {
            return Err(refused("the size of a running virtqueue was set"));
        }
        if num == 0 || num > u32::from(MAX_QUEUE_SIZE) || !packed && !num.is_power_of_two() {
            return Err(refused("the size of a virtqueue must be 1 to 1024, and a power of two for a split virtqueue"));
        }
        ring.size = num as u16;
        let most = seg_max(self.device.queue_size);
        if num < most + 2 && self.features & feature::INDIRECT_DESC == 0 {
            log::warn!(export = self.device.name.as_str(), virtqueue = index; "the ring has {num} entries, but the driver may send \
                       requests of {most} segments, which never fit; set queue_size={num} for this export");
        }
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        log: u64,
    ) -> Result<()> {
        let ring = self.ring(index)?;
        let address = RingAddress { desc, avail, used };
        let log_used = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        if ring.running.is_none() {
            (ring.address, ring.log_used) = (address, log_used);
            return Ok(());
        }
        if address != ring.address {
            return Err(refused("the addresses of a running virtqueue were set"));
        }
        // A change of the log address means that a migration begins or ends.
        if log_used != ring.log_used {
            return self.while_stopped(|c| c.rings[index as usize].log_used = log_used);
        }
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?;
        self.stop(index as usize);
        let ring = self.ring(index)?;
        // The front end sets these again before the next start.
        (ring.call, ring.err) = (None, None);
        Ok(VhostUserVringState::new(index, ring.base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?;
        check_event(fd.as_ref())?;
        self.stop(usize::from(index));
        self.start(usize::from(index), fd)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        check_event(fd.as_ref())?;
        let call = copy(fd.as_ref(), &self.device)?;
        self.ring(u32::from(index))?.call = fd;
        self.visit(usize::from(index), |q| q.set_call(call));
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        check_event(fd.as_ref())?;
        self.ring(u32::from(index))?.err = fd;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        use VhostUserProtocolFeatures as P;
        let channel = P::BACKEND_REQ | P::CONFIG;
        let memory = P::CONFIGURE_MEM_SLOTS | P::INFLIGHT_SHMFD | P::LOG_SHMFD;
        Ok(P::MQ | P::REPLY_ACK | P::RESET_DEVICE | channel | memory)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let known = VhostUserProtocolFeatures::from_bits_truncate(features);
        let offered = self.get_protocol_features()?;
        if features & !known.bits() != 0 || !offered.contains(known) {
            return Err(refused("a protocol feature was acknowledged that was not offered"));
        }
        self.protocol = known;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.rings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        if self.features & feature::PROTOCOL_FEATURES == 0 {
            return Err(refused("a virtqueue was enabled without VHOST_USER_F_PROTOCOL_FEATURES"));
        }
        self.ring(index)?.enabled = enable;
        self.visit(index as usize, move |q| q.set_enabled(enable));
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let (from, len) = (offset as usize, size as usize);
        let config = self.device.config(self.disk.capacity().0);
        // Front ends may ask for a structure with newer fields, which read as zero.
        if from > CONFIG_BYTES || len > 256 {
            return Err(refused("the configuration space has no such part"));
        }
        Ok((from..from + len).map(|i| config.get(i).copied().unwrap_or(0)).collect())
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        match bytes {
            [wce] if offset as usize == CONFIG_WCE_AT && self.features & feature::CONFIG_WCE != 0 => {
                self.device.cache.set(*wce != 0);
                Ok(())
            }
            _ => Err(refused("only the write cache can be set, if VIRTIO_BLK_F_CONFIG_WCE was acknowledged")),
        }
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(refused("a disk has no GPU"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(refused("a disk shares no objects"))
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (asked.num_queues, asked.queue_size);
        if queues == 0 || usize::from(queues) > self.rings.len() || size == 0 || size > MAX_QUEUE_SIZE {
            return Err(refused("in-flight requests of queues that do not exist"));
        }
        let bytes = (self.inflight_bytes(size) * usize::from(queues)).next_multiple_of(BUFFER_ALIGN) as u64;
        let made = memfd_create("mqblk-inflight", MemfdFlags::CLOEXEC);
        let fd =
            made.and_then(|fd| ftruncate(&fd, bytes).map(|()| fd)).map_err(|e| Error::ReqHandlerError(e.into()))?;
        self.inflight = Some((self.map(&fd, 0, bytes)?, size));
        Ok((VhostUserInflight::new(bytes, 0, queues, size), File::from(fd)))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let file = &self.accept(vec![file])?[0];
        let (queues, size) = (usize::from(given.num_queues), given.queue_size);
        let bytes = self.inflight_bytes(size) * queues;
        if queues == 0 || size == 0 || size > MAX_QUEUE_SIZE || given.mmap_size < bytes as u64 {
            return Err(refused("memory for requests in flight that is too small for its queues"));
        }
        if self.rings.iter().any(|r| r.running.is_some()) {
            return Err(refused("memory for requests in flight was set while a virtqueue runs"));
        }
        let region = self.map(file, given.mmap_offset, given.mmap_size)?;
        self.goes_on = inflight::was_used(&region);
        self.inflight = Some((region, size));
        if self.goes_on && self.features != 0 {
            self.device.acknowledge(self.features, true);
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_SLOTS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let fd = &self.accept(vec![fd])?[0];
        self.memory = Arc::new(self.add(&self.memory, region, fd)?);
        for i in 0..self.rings.len() {
            let view = self.view();
            self.visit(i, move |q| q.set_view(view));
        }
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest, user, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        let found = self.memory.without(guest, user, len);
        let (memory, _) = found.ok_or_else(|| refused("there is no such slot of memory"))?;
        self.replace_memory(memory)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(refused("a disk has no state besides its rings"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(refused("a disk has no state besides its rings"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(refused("a disk has no shared memory regions"))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let file = &self.accept(vec![file])?[0];
        let bits = self.map(file, log.mmap_offset, log.mmap_size)?;
        let log = Some(Arc::new(DirtyLog::new(bits)));
        if self.features & feature::LOG_ALL == 0 {
            self.log = log;
            return Ok(());
        }
        self.while_stopped(|c| c.log = log)
    }
}
