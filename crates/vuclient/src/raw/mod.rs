// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vhost-user front-end that does one protocol step at a time, valid or invalid, for tests of corner cases.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | messages exactly as given, their file descriptors, waits with a timeout |
//! | [`guest`] | memory shared with the server, at chosen guest addresses |
//! | [`ring`] | the driver's side of a split or packed virtqueue |
//! | [`block`] | block requests in guest memory |
//! | [`fixed_queue`] | a virtqueue with constant chains, for load with little overhead |
//! | [`dirty`] | which pages of guest memory changed, and which the server has logged |
//!
//! Guarantees: [`Raw`] sends exactly what it is given, except that it asks for acknowledgements once REPLY_ACK is negotiated. Whatever the
//! server does becomes an error or a value, never a panic, and every wait has a timeout. [`Raw::ready`] makes a valid connection in one
//! call, from which a test can deviate.
//!
//! ```no_run
//! use std::time::Duration;
//! use mqblk_vuclient::raw::{Format, Notify, Raw, block, message::protocol};
//! # fn main() -> Result<(), mqblk_vuclient::Error> {
//! let mut raw = Raw::ready("disk.sock", 1 << 32, protocol::CONFIG | protocol::REPLY_ACK)?;
//! raw.start(0, 64, Format::Split, Notify::Both)?;
//! let read = raw.block(block::IN, 0, 4096)?;
//! raw.write_desc(0, 0, read.header, 16, 1, 0)?; // a chain that loops: its next is itself
//! raw.offer(0, 0)?;
//! raw.kick(0)?;
//! assert!(raw.wait_used(0, Duration::from_secs(1)).is_err());
//! # Ok(()) }
//! ```
//!
//! Does not follow the server's kick suppression: [`Raw::kick`] always kicks.
//! Source: QEMU's `docs/interop/vhost-user.rst`; virtio 1.2, 2.7, 2.8, 5.2.

pub mod block;
pub mod dirty;
pub mod guest;
pub mod fixed_queue;
pub mod message;
pub mod ring;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::Error;
use block::BlockRequest;
use guest::Guest;
use message::{Channel, Message, NEED_REPLY, NOFD, PROTOCOL_FEATURES, REPLY, VERSION, protocol, request, timespec};
pub use ring::{Format, Ring, Segment, Used};

/// Longest wait for an answer to a message, unless set otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that [`Raw::ready`] registers with the server: guest address and bytes.
pub const READY_MEMORY: (u64, usize) = (0x10_0000, 8 << 20);

/// Which eventfds a virtqueue gets; for the others the message has the NOFD bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Kick and call.
    Both,
    /// No call: this side polls the used ring.
    NoCall,
    /// No kick: the server is to poll the available ring.
    NoKick,
    /// Neither.
    Neither,
}

/// A virtqueue that was set up at the server.
struct Queue {
    ring: Ring,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
}

/// Shared memory that records requests in flight ("Inflight I/O tracking").
#[derive(Debug)]
pub struct Inflight {
    /// Bytes.
    pub mmap_size: u64,
    /// Offset of the memory in `fd`.
    pub mmap_offset: u64,
    /// Virtqueues.
    pub num_queues: u16,
    /// Descriptors of each virtqueue.
    pub queue_size: u16,
    /// The memory.
    pub fd: OwnedFd,
}

/// A connection, its guest memory and its virtqueues.
pub struct Raw {
    /// The channel for messages.
    pub channel: Channel,
    /// Memory shared with the server.
    pub guest: Guest,
    protocol: u64,
    features: u64,
    queues: BTreeMap<u16, Queue>,
}

impl Raw {
    /// Connects without sending a message.
    ///
    /// # Errors
    /// When no server listens at `socket`.
    pub fn connect(socket: &str) -> Result<Raw, Error> {
        let channel = Channel::connect(socket, PATIENCE)?;
        Ok(Raw { channel, guest: Guest::default(), protocol: 0, features: 0, queues: BTreeMap::new() })
    }

    /// Connects, negotiates those of `features` and `protocol` that the server offers, and registers [`READY_MEMORY`].
    ///
    /// # Errors
    /// When the server refuses one of these steps.
    pub fn ready(socket: &str, features: u64, protocol: u64) -> Result<Raw, Error> {
        Raw::ready_with(socket, features, protocol, READY_MEMORY)
    }

    /// As [`Self::ready`], with a region of this address and length.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub fn ready_with(socket: &str, features: u64, protocol: u64, memory: (u64, usize)) -> Result<Raw, Error> {
        let mut raw = Raw::connect(socket)?;
        raw.set_owner()?;
        let offered = raw.features()?;
        if offered & PROTOCOL_FEATURES != 0 {
            let offered = raw.protocol_features()?;
            raw.set_protocol_features(protocol & offered)?;
        }
        raw.set_features((features | PROTOCOL_FEATURES) & offered)?;
        raw.set_memory(&[memory])?;
        Ok(raw)
    }

    /// Sends a request that has no reply of its own. Once REPLY_ACK is negotiated, asks for an acknowledgement and waits for it; before
    /// that, success only means that the request was sent.
    ///
    /// # Errors
    /// When the server refuses it, or does not answer.
    pub fn call(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if self.protocol & protocol::REPLY_ACK == 0 {
            return self.channel.send(request, VERSION, payload, fds);
        }
        self.channel.send(request, VERSION | NEED_REPLY, payload, fds)?;
        match self.reply_to(request)?.number()? {
            0 => Ok(()),
            refusal => {
                Err(Error::Server(format!("the server refuses request {request} (acknowledged with {refusal})")))
            }
        }
    }

    /// Sends a request that has a reply, and waits for the reply.
    ///
    /// # Errors
    /// If the reply does not arrive or belongs to another request.
    pub fn ask(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Message, Error> {
        self.channel.send(request, VERSION, payload, fds)?;
        self.reply_to(request)
    }

    fn reply_to(&mut self, request: u32) -> Result<Message, Error> {
        let reply = self.channel.receive()?;
        if reply.request != request || reply.flags & (REPLY | 3) != REPLY | VERSION {
            let Message { request: got, flags, .. } = reply;
            return Err(Error::Server(format!("reply to request {request} names {got}, with flags {flags:#x}")));
        }
        Ok(reply)
    }

    /// SET_OWNER.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_owner(&mut self) -> Result<(), Error> {
        self.call(request::SET_OWNER, &[], &[])
    }

    /// Returns the virtio feature bits that the server offers.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn features(&mut self) -> Result<u64, Error> {
        self.ask(request::GET_FEATURES, &[], &[])?.number()
    }

    /// Acknowledges exactly these virtio feature bits, offered or not.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_features(&mut self, features: u64) -> Result<(), Error> {
        self.features = features;
        self.call(request::SET_FEATURES, &features.to_le_bytes(), &[])
    }

    /// Returns the virtio feature bits that were last acknowledged.
    pub fn agreed(&self) -> u64 {
        self.features
    }

    /// Returns the protocol feature bits that the server offers.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn protocol_features(&mut self) -> Result<u64, Error> {
        self.ask(request::GET_PROTOCOL_FEATURES, &[], &[])?.number()
    }

    /// Acknowledges exactly these protocol feature bits, offered or not.
    ///
    /// # Errors
    /// As [`Self::call`]. The first call asks for no acknowledgement, because REPLY_ACK is not negotiated yet.
    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), Error> {
        self.call(request::SET_PROTOCOL_FEATURES, &features.to_le_bytes(), &[])?;
        self.protocol = features;
        Ok(())
    }

    /// GET_QUEUE_NUM.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn queue_num(&mut self) -> Result<u64, Error> {
        self.ask(request::GET_QUEUE_NUM, &[], &[])?.number()
    }

    /// Replaces guest memory by new regions (guest address, bytes) and registers them with the server.
    ///
    /// # Errors
    /// As [`Self::call`], or when the system has no memory.
    pub fn set_memory(&mut self, regions: &[(u64, usize)]) -> Result<(), Error> {
        let mut guest = Guest::default();
        for &(address, len) in regions {
            guest.add(address, len)?;
        }
        self.guest = guest;
        self.show_memory()
    }

    fn show_memory(&mut self) -> Result<(), Error> {
        let mut payload = Vec::from((self.guest.regions().count() as u64).to_le_bytes());
        self.guest.regions().for_each(|region| payload.extend(region_bytes(region)));
        let memories: Vec<_> = self.guest.regions().map(|r| r.memory.clone()).collect();
        let fds: Vec<BorrowedFd<'_>> = memories.iter().map(crate::memory::Memory::fd).collect();
        self.call(request::SET_MEM_TABLE, &payload, &fds)
    }

    /// Reconnects as a front-end does after a server crash, with the same features, memory, rings and inflight record. Rings start at base
    /// 0, because the server has to take their position from the inflight record.
    ///
    /// # Errors
    /// As [`Self::ready`] and [`Self::start`].
    pub fn resume(&mut self, socket: &str, features: u64, inflight: &Inflight, notify: Notify) -> Result<(), Error> {
        self.channel = Channel::connect(socket, PATIENCE)?;
        let protocol = std::mem::take(&mut self.protocol);
        self.set_owner()?;
        let offered = self.features()?;
        self.protocol_features()?;
        self.set_protocol_features(protocol)?;
        self.set_features((features | PROTOCOL_FEATURES) & offered)?;
        self.show_memory()?;
        self.set_inflight(inflight)?;
        for (index, queue) in std::mem::take(&mut self.queues) {
            self.start_ring(index, queue.ring, 0, notify)?;
        }
        Ok(())
    }

    /// Adds a region of guest memory (ADD_MEM_REG).
    ///
    /// # Errors
    /// As [`Self::set_memory`].
    pub fn add_memory(&mut self, address: u64, len: usize) -> Result<(), Error> {
        let region = self.guest.add(address, len)?;
        let (payload, memory) = (single_region(region), region.memory.clone());
        self.call(request::ADD_MEM_REG, &payload, &[memory.fd()])
    }

    /// As [`Self::add_memory`], with a region of exactly `len` bytes, which may end within a page.
    ///
    /// # Errors
    /// As [`Self::add_memory`].
    pub fn add_memory_part(&mut self, address: u64, len: usize) -> Result<(), Error> {
        let region = self.guest.add_part(address, len)?;
        let (payload, memory) = (single_region(region), region.memory.clone());
        self.call(request::ADD_MEM_REG, &payload, &[memory.fd()])
    }

    /// Removes the region at `address` (REM_MEM_REG).
    ///
    /// # Errors
    /// As [`Self::call`], or if there is no such region.
    pub fn remove_memory(&mut self, address: u64) -> Result<(), Error> {
        let region = self.guest.remove(address);
        let region = region.ok_or_else(|| Error::Usage(format!("no region at {address:#x}")))?;
        self.call(request::REM_MEM_REG, &single_region(&region), &[])
    }

    /// Reads configuration space.
    ///
    /// # Errors
    /// As [`Self::ask`], or when the server answers with another length (0 is its refusal).
    pub fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>, Error> {
        let mut payload = words(&[offset, len, 0]);
        payload.resize(12 + len as usize, 0);
        let reply = self.ask(request::GET_CONFIG, &payload, &[])?;
        let got = reply.payload.get(12..).filter(|bytes| bytes.len() == len as usize);
        let refusal = || Error::Server(format!("GET_CONFIG of {len} at {offset}: {} bytes", reply.payload.len()));
        got.map(<[u8]>::to_vec).ok_or_else(refusal)
    }

    /// Writes configuration space.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Error> {
        let mut payload = words(&[offset, bytes.len() as u32, 0]);
        payload.extend(bytes);
        self.call(request::SET_CONFIG, &payload, &[])
    }

    /// GET_INFLIGHT_FD.
    ///
    /// # Errors
    /// As [`Self::ask`], or when no descriptor comes.
    pub fn inflight(&mut self, num_queues: u16, queue_size: u16) -> Result<Inflight, Error> {
        let payload = inflight_bytes(0, 0, num_queues, queue_size);
        let mut reply = self.ask(request::GET_INFLIGHT_FD, &payload, &[])?;
        let (Some(fd), Some(bytes)) = (reply.fds.pop(), reply.payload.first_chunk::<20>()) else {
            return Err(Error::Server("GET_INFLIGHT_FD: a reply of 20 bytes with a descriptor is needed".into()));
        };
        let [mmap_size, mmap_offset] = [&bytes[..8], &bytes[8..16]].map(le64);
        let [num_queues, queue_size] = [&bytes[16..18], &bytes[18..]].map(|field| le64(field) as u16);
        Ok(Inflight { mmap_size, mmap_offset, num_queues, queue_size, fd })
    }

    /// SET_INFLIGHT_FD.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_inflight(&mut self, inflight: &Inflight) -> Result<(), Error> {
        let Inflight { mmap_size, mmap_offset, num_queues, queue_size, .. } = *inflight;
        let payload = inflight_bytes(mmap_size, mmap_offset, num_queues, queue_size);
        self.call(request::SET_INFLIGHT_FD, &payload, &[inflight.fd.as_fd()])
    }

    /// Gives the server a socket for its own messages (SET_BACKEND_REQ_FD). Returns the other end.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn backend_channel(&mut self) -> Result<Channel, Error> {
        let (ours, theirs) = UnixStream::pair().map_err(Error::io("socketpair"))?;
        self.call(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(Channel::over(ours, PATIENCE))
    }

    /// SET_LOG_BASE with a new log for `pages` pages. The server logs them once LOG_ALL is acknowledged.
    ///
    /// # Errors
    /// As [`Self::ask`], or when the system has no memory.
    pub fn set_log(&mut self, pages: usize) -> Result<dirty::DirtyLog, Error> {
        let log = dirty::DirtyLog::new(pages)?;
        let payload = [log.bytes() as u64, 0].map(u64::to_le_bytes).concat();
        self.ask(request::SET_LOG_BASE, &payload, &[log.fd()])?;
        Ok(log)
    }

    /// Sets whether the server logs its writes to the used ring of a started virtqueue.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn log_ring(&mut self, queue: u16, is_logged: bool) -> Result<(), Error> {
        let ring = self.queues.get(&queue).ok_or_else(|| not_started(queue))?.ring.clone();
        let addresses = self.ring_addresses(queue, &ring, is_logged)?;
        self.call(request::SET_VRING_ADDR, &addresses, &[])
    }

    fn ring_addresses(&self, queue: u16, ring: &Ring, is_logged: bool) -> Result<Vec<u8>, Error> {
        let mut addresses = words(&[u32::from(queue), u32::from(is_logged)]);
        for address in [ring.desc, ring.device, ring.driver] {
            addresses.extend(self.guest.user_address(address)?.to_le_bytes());
        }
        addresses.extend(if is_logged { ring.device } else { 0 }.to_le_bytes());
        Ok(addresses)
    }

    /// Makes a ring, tells the server where it is, and enables it.
    ///
    /// # Errors
    /// As [`Self::call`], or when guest memory has no room.
    pub fn start(&mut self, queue: u16, size: u16, format: Format, notify: Notify) -> Result<(), Error> {
        let ring = Ring::new(&mut self.guest, format, size)?;
        // A packed ring's base holds the wrap counters, both set at first (2.8.1; vhost-user, "SET_VRING_BASE").
        let base = if format == Format::Packed { 0x8000_8000 } else { 0 };
        self.start_ring(queue, ring, base, notify)
    }

    /// As [`Self::start`], with an existing ring that continues at `base`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_ring(&mut self, queue: u16, ring: Ring, base: u32, notify: Notify) -> Result<(), Error> {
        let index = u32::from(queue);
        self.call(request::SET_VRING_NUM, &words(&[index, u32::from(ring.size)]), &[])?;
        self.call(request::SET_VRING_BASE, &words(&[index, base]), &[])?;
        let addresses = self.ring_addresses(queue, &ring, false)?;
        self.call(request::SET_VRING_ADDR, &addresses, &[])?;
        let has_call = matches!(notify, Notify::Both | Notify::NoKick);
        let has_kick = matches!(notify, Notify::Both | Notify::NoCall);
        let call = self.give_eventfd(request::SET_VRING_CALL, queue, has_call)?;
        let kick = self.give_eventfd(request::SET_VRING_KICK, queue, has_kick)?;
        self.queues.insert(queue, Queue { ring, kick, call });
        self.enable(queue, true)
    }

    fn give_eventfd(&mut self, request: u32, queue: u16, is_wanted: bool) -> Result<Option<OwnedFd>, Error> {
        let number = u64::from(queue);
        if !is_wanted {
            return self.call(request, &(number | NOFD).to_le_bytes(), &[]).map(|()| None);
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::io("eventfd"))?;
        self.call(request, &number.to_le_bytes(), &[fd.as_fd()])?;
        Ok(Some(fd))
    }

    /// SET_VRING_ENABLE.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn enable(&mut self, queue: u16, is_on: bool) -> Result<(), Error> {
        self.call(request::SET_VRING_ENABLE, &words(&[u32::from(queue), u32::from(is_on)]), &[])
    }

    /// Stops a virtqueue (GET_VRING_BASE). Returns its ring and the base to continue from.
    ///
    /// # Errors
    /// As [`Self::ask`], or when the queue was not started.
    pub fn stop(&mut self, queue: u16) -> Result<(Ring, u32), Error> {
        let reply = self.ask(request::GET_VRING_BASE, &words(&[u32::from(queue), 0]), &[])?;
        let base = le64(reply.payload.get(..8).unwrap_or_default()) >> 32;
        let stopped = self.queues.remove(&queue);
        stopped.map(|q| (q.ring, base as u32)).ok_or_else(|| not_started(queue))
    }

    /// Returns a started virtqueue's ring, and the guest memory that holds it.
    ///
    /// # Errors
    /// When it was not started.
    pub fn ring(&mut self, queue: u16) -> Result<(&mut Ring, &Guest), Error> {
        let found = self.queues.get_mut(&queue).ok_or_else(|| not_started(queue))?;
        Ok((&mut found.ring, &self.guest))
    }

    /// Writes a descriptor exactly as given: see [`Ring::write_desc`].
    ///
    /// # Errors
    /// As [`Ring::write_desc`].
    pub fn write_desc(
        &mut self,
        queue: u16,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        last: u16,
    ) -> Result<(), Error> {
        let (ring, guest) = self.ring(queue)?;
        ring.write_desc(guest, index, addr, len, flags, last)
    }

    /// Puts a head into a split ring's available ring: see [`Ring::offer`].
    ///
    /// # Errors
    /// As [`Ring::offer`].
    pub fn offer(&mut self, queue: u16, head: u16) -> Result<(), Error> {
        let (ring, guest) = self.ring(queue)?;
        ring.offer(guest, head)
    }

    /// Puts a valid chain on the ring: see [`Ring::submit`]. Does not kick.
    ///
    /// # Errors
    /// As [`Ring::submit`].
    pub fn submit(&mut self, queue: u16, segments: &[Segment]) -> Result<u16, Error> {
        let (ring, guest) = self.ring(queue)?;
        ring.submit(guest, segments)
    }

    /// Takes memory for a block request: see [`BlockRequest::new`].
    ///
    /// # Errors
    /// As [`BlockRequest::new`].
    pub fn block(&mut self, kind: u32, sector: u64, len: u32) -> Result<BlockRequest, Error> {
        BlockRequest::new(&mut self.guest, kind, sector, len)
    }

    /// Submits `request`, kicks, and waits for its completion. Returns its status and the bytes the device says it wrote.
    ///
    /// # Errors
    /// If another request completes first, or none completes within `patience`.
    pub fn execute(&mut self, queue: u16, request: &BlockRequest, patience: Duration) -> Result<(u8, u32), Error> {
        let id = self.submit(queue, &request.segments())?;
        self.kick(queue)?;
        match self.wait_used(queue, patience)?[..] {
            [Used { id: ended, len }] if ended == u32::from(id) => Ok((request.status(&self.guest)?, len)),
            ref others => Err(Error::Server(format!("only request {id} was submitted, but completed: {others:?}"))),
        }
    }

    /// Kicks the server, whether or not it asks for kicks. Does nothing without a kick descriptor.
    ///
    /// # Errors
    /// When the queue was not started.
    pub fn kick(&mut self, queue: u16) -> Result<(), Error> {
        let found = self.queues.get(&queue).ok_or_else(|| not_started(queue))?;
        found.kick.as_ref().map_or(Ok(()), notify)
    }

    /// Returns the number of calls from the server since this function was last called; 0 without a call descriptor.
    ///
    /// # Errors
    /// When the queue was not started.
    pub fn calls(&mut self, queue: u16) -> Result<u64, Error> {
        let found = self.queues.get(&queue).ok_or_else(|| not_started(queue))?;
        let Some(call) = &found.call else { return Ok(0) };
        let mut count = [0; 8];
        match rustix::io::read(call, &mut count) {
            Ok(_) => Ok(u64::from_le_bytes(count)),
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(e) => Err(Error::Io { what: "call".into(), source: e.into() }),
        }
    }

    /// Returns the call descriptor, for tests that misuse it.
    ///
    /// # Errors
    /// When the queue was not started with one.
    pub fn call_fd(&self, queue: u16) -> Result<BorrowedFd<'_>, Error> {
        let found = self.queues.get(&queue).and_then(|queue| queue.call.as_ref());
        found.map(AsFd::as_fd).ok_or_else(|| not_started(queue))
    }

    /// Waits for a call from the server. Returns false if there is none within `patience`, or no call descriptor.
    ///
    /// # Errors
    /// When the queue was not started.
    pub fn wait_call(&mut self, queue: u16, patience: Duration) -> Result<bool, Error> {
        let found = self.queues.get(&queue).ok_or_else(|| not_started(queue))?;
        let Some(call) = &found.call else { return Ok(false) };
        poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&timespec(patience))).map_err(Error::io("poll"))?;
        Ok(self.calls(queue)? > 0)
    }

    /// Waits until the device has completed at least one request, and returns all completed requests. Polls the ring instead of waiting for
    /// calls; [`Self::calls`] returns how many calls there were.
    ///
    /// # Errors
    /// If no request completes within `patience`, or the used ring is invalid.
    pub fn wait_used(&mut self, queue: u16, patience: Duration) -> Result<Vec<Used>, Error> {
        let end = Instant::now() + patience;
        loop {
            let (ring, guest) = self.ring(queue)?;
            let used = ring.take_used(guest)?;
            if !used.is_empty() {
                return Ok(used);
            }
            if Instant::now() >= end {
                return Err(Error::Server(format!("virtqueue {queue}: no request completed within {patience:?}")));
            }
            // A short sleep instead of a wait for a call, because a server need not call.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether the server closes the connection within `patience`.
    ///
    /// # Errors
    /// As [`Channel::is_closed`].
    pub fn is_dropped(&self, patience: Duration) -> Result<bool, Error> {
        self.channel.is_closed(patience)
    }
}

fn notify(kick: &OwnedFd) -> Result<(), Error> {
    match rustix::io::write(kick, &1u64.to_le_bytes()) {
        // EAGAIN means that the eventfd's counter is full: a notification is pending.
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(e) => Err(Error::Io { what: "kick".into(), source: e.into() }),
    }
}

fn not_started(queue: u16) -> Error {
    Error::Usage(format!("virtqueue {queue}: not started"))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads the first eight bytes as a little-endian number; missing bytes are 0.
fn le64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn region_bytes(region: &guest::Region) -> Vec<u8> {
    let fields = [region.guest, region.len as u64, region.memory.address() as u64, 0];
    fields.iter().flat_map(|field| field.to_le_bytes()).collect()
}

fn single_region(region: &guest::Region) -> Vec<u8> {
    let mut payload = vec![0; 8];
    payload.extend(region_bytes(region));
    payload
}

fn inflight_bytes(mmap_size: u64, mmap_offset: u64, num_queues: u16, queue_size: u16) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(mmap_size.to_le_bytes());
    payload.extend(mmap_offset.to_le_bytes());
    payload.extend(num_queues.to_le_bytes());
    payload.extend(queue_size.to_le_bytes());
    // The specification shows 20 bytes; QEMU and libvhost-user send the C structure, padded to 24.
    payload.extend([0; 4]);
    payload
}
