// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a disk in use, file by file as the kernel shows it under `/sys/kernel/debug/block/DISK`.
//!
//! Guarantees: names, order of lines and field names are the kernel's, so tools that read the kernel's can read these.
//! It may be read while I/O runs, from any thread. Locks of lists are held one at a time and briefly, and I/O is not
//! stopped. So the files do not show a single moment, and a request that moves meanwhile may be shown in a mixed state.
//!
//! Different from the kernel: a request is identified by its number in the disk's slab, and its sectors follow the
//! kernel's fields. Allocation hints belong to submitters and are not shown. The counters of a hardware queue (`queued`,
//! `run`, `dispatched`), which the kernel dropped in 5.18, are shown. Source: block/blk-mq-debugfs.c, lib/sbitmap.c.

use crate::bio::{Op, OpFlags};
use crate::cpumap::HctxType;
use crate::elevator::registry::MqElevator;
use crate::lock::Lock;
use crate::queue::hctx::{Hctx, RqList, state};
use crate::queue::request_queue::RequestQueue;
use crate::queue::state::QueueState;
use crate::request::{NO_TAG, Request, RequestId, Rq, RqState, rqf};
use crate::sync::Ordering;
use crate::tags::hctx_tags::HctxTags;
use crate::tags::sbitmap::Sbitmap;
use core::fmt::Write;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugFile {
    /// Its path below the disk's directory: `hctx0/tags`.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl<L: Lock> RequestQueue<L> {
    /// Returns all files: the disk's own, its elevator's, each hardware queue's, within a directory in the order of
    /// `find | sort`. For a queue that is drained and about to be rebuilt, only `state` is shown.
    pub fn debugfs(&self) -> Vec<DebugFile> {
        let st = self.state();
        let mut files = Files(Vec::new());
        files.add("state", format!("{}\n", self.state_flags(&st)));
        if self.is_sealed() {
            return files.0;
        }
        let [reads, others] = self.inflight();
        files.add("inflight", format!("{reads:8} {others:8}\n"));
        let fields = self.stats().fields(self.in_progress());
        files.add("stat", fields.map(|f| format!("{f:8}")).join(" ") + "\n");
        let requeued: Vec<_> = st.hctxs.iter().flat_map(|h| requeue_list(h)).collect();
        files.add("requeue_list", lines(&st, requeued));
        if let Some(elevator) = &st.elevator {
            for attr in elevator.debug() {
                files.add(&attr.path(), attr.text + &lines(&st, attr.rqs));
            }
        }
        let wbt = self.wbt();
        if wbt.enabled {
            let by_default = self.config().wbt_lat_usec.is_none();
            wbt.files(by_default).into_iter().for_each(|(name, text)| files.add(&format!("rqos/wbt/{name}"), text));
        }
        for h in &st.hctxs {
            self.hctx_files(&st, h, &mut files);
        }
        files.0
    }

    /// Returns how many requests the driver has: reads, and all others (`/sys/block/DISK/inflight`).
    pub fn inflight(&self) -> [u64; 2] {
        let st = self.state();
        let mut n = [0, 0];
        for hctx in 0..st.hctxs.len() {
            let at_driver = ids_at_driver(&st, hctx);
            at_driver.iter().for_each(|id| n[usize::from(st.slab.get(*id).op() != Op::Read)] += 1);
        }
        n
    }

    /// Returns how many requests exist: the ninth field of `/sys/block/DISK/stat`. A tag that a submitter keeps for its
    /// next I/O counts until the submitter gives it back.
    pub fn in_progress(&self) -> u64 {
        u64::from(self.state().requests_in_use())
    }

    fn state_flags(&self, st: &QueueState<L>) -> String {
        let affinity = self.live.rq_affinity.load(Ordering::Relaxed);
        let nomerges = self.live.nomerges.load(Ordering::Relaxed);
        let single = MqElevator::named(st.scheduler()).is_some_and(|e| e.facts().is_sq_sched);
        names(&[
            ("NOMERGES", nomerges == 2),
            ("SAME_COMP", affinity >= 1),
            ("INIT_DONE", true),
            ("REGISTERED", true),
            ("QUIESCED", self.is_quiesced()),
            ("FROZEN", self.is_frozen()),
            ("NOXMERGES", nomerges == 1),
            ("SAME_FORCE", affinity == 2),
            ("HCTX_ACTIVE", st.host_tagset && st.share.as_ref().is_some_and(|s| s.counts(0))),
            ("SQ_SCHED", single),
            ("SINGLE_QUEUE", st.sq.is_some()),
        ])
    }

    fn hctx_files(&self, st: &QueueState<L>, h: &Hctx<L>, files: &mut Files) {
        let i = h.id.index();
        let busy = ids_at_driver(st, i);
        let mut add = |name: &str, text: String| files.add(&format!("hctx{i}/{name}"), text);
        add("active", format!("{}\n", busy.len()));
        add("busy", lines(st, busy));
        add("ctx_map", hexdump(&h.ctx_map));
        let ty = st.map.hctx_type(i as u16);
        for cpu in &h.cpus {
            let rqs = queued(&st.ctx(*cpu, ty).rqs);
            add(&format!("cpu{cpu}/{}_rq_list", ty.name()), lines(st, rqs));
        }
        add("dispatch", lines(st, queued(&h.dispatch)));
        add("dispatch_busy", format!("{}\n", h.dispatch_busy()));
        let stats = self.hctx_stats().get(i).copied().unwrap_or_default();
        add("dispatched", format!("{}\n", stats.dispatched));
        let flags = names(&[
            ("SHOULD_MERGE", true),
            ("TAG_QUEUE_SHARED", st.share.is_some()),
            ("TAG_HCTX_SHARED", st.host_tagset),
        ]);
        add("flags", format!("alloc_policy=FIFO {flags}\n"));
        add("queued", format!("{}\n", stats.queued));
        add("run", format!("{}\n", stats.run));
        if let Some(tags) = st.sched_tags.get(st.map_of(i)) {
            add("sched_tags", tags_text(tags, 0));
            add("sched_tags_bitmap", hexdump(tags.bitmap()));
        }
        add("state", format!("{}\n", self.hctx_state(st, h)));
        if let Some(tags) = st.driver_tags.get(st.map_of(i)) {
            let users = st.share.as_ref().map_or(0, |s| s.users[st.map_of(i)].load(Ordering::Relaxed));
            add("tags", tags_text(tags, users));
            add("tags_bitmap", hexdump(tags.bitmap()));
        }
        add("type", format!("{}\n", HctxType::name(ty)));
    }

    fn hctx_state(&self, st: &QueueState<L>, h: &Hctx<L>) -> String {
        names(&[
            ("TAG_ACTIVE", !st.host_tagset && st.share.as_ref().is_some_and(|s| s.counts(h.id.index()))),
            ("SCHED_RESTART", h.has_flag(state::SCHED_RESTART)),
            ("INACTIVE", !self.hctx_has_cpu(st, h.id.index())),
            ("RUN_PENDING", h.has_flag(state::RUN_PENDING)),
        ])
    }
}

struct Files(Vec<DebugFile>);

impl Files {
    fn add(&mut self, path: &str, text: String) {
        self.0.push(DebugFile { path: path.to_owned(), text });
    }
}

fn names(flags: &[(&str, bool)]) -> String {
    flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect::<Vec<_>>().join("|")
}

fn queued<L: Lock>(list: &RqList<L>) -> Vec<RequestId> {
    list.with(|rqs| rqs.iter().map(Rq::id).collect())
}

fn requeue_list<L: Lock>(h: &Hctx<L>) -> Vec<RequestId> {
    h.requeue.lock().iter().map(Rq::id).collect()
}

/// Returns the requests of an hctx that are at the driver.
fn ids_at_driver<L: Lock>(st: &QueueState<L>, hctx: usize) -> Vec<RequestId> {
    let first = hctx * st.stride as usize;
    let all = (first..(first + st.stride as usize).min(st.slab.len())).map(|i| RequestId::new(i as u32));
    all.filter(|id| st.slab.get(*id).state.get() == RqState::InFlight as u8).collect()
}

fn lines<L: Lock>(st: &QueueState<L>, ids: Vec<RequestId>) -> String {
    let mut text = String::new();
    for id in ids {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line(st, id));
    }
    text
}

fn line<L: Lock>(st: &QueueState<L>, id: RequestId) -> String {
    let rq = st.slab.get(id);
    let tag = |t: u16| if t == NO_TAG { -1 } else { i32::from(t) };
    let (driver_tag, internal) = (tag(rq.driver_tag.get()), st.tag_of_rq(id, usize::from(rq.hctx.get())));
    let (tag, internal) = match (&st.sq, &st.elevator) {
        (None, Some(_)) => (driver_tag, internal as i32),
        _ => (driver_tag, -1),
    };
    format!(
        "rq{} {{.op={}, .cmd_flags={}, .rq_flags={}, .state={}, .tag={tag}, .internal_tag={internal}, .sector={}, \
         .nr_sectors={}}}",
        id.index(),
        op_name(rq.op()),
        cmd_flags(rq.flags()),
        rq_flags(rq, st.elevator.is_some()),
        if rq.state.get() == RqState::InFlight as u8 { "in_flight" } else { "idle" },
        rq.sector(),
        rq.nr_sectors(),
    )
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "READ",
        Op::Write => "WRITE",
        Op::Flush => "FLUSH",
        Op::Discard => "DISCARD",
        Op::WriteZeroes => "WRITE_ZEROES",
    }
}

/// The flags that are shown, in the kernel's order.
const CMD_FLAGS: [OpFlags; 11] = [
    OpFlags::SYNC,
    OpFlags::META,
    OpFlags::NOMERGE,
    OpFlags::IDLE,
    OpFlags::FUA,
    OpFlags::PREFLUSH,
    OpFlags::RAHEAD,
    OpFlags::BACKGROUND,
    OpFlags::NOWAIT,
    OpFlags::NOUNMAP,
    OpFlags::POLLED,
];
/// Flags that are not shown. The kernel shows the first as a flag of the request, the second exists only in
/// `blkdev_issue_zeroout`, and the kernel does not have the third.
const NO_CMD_FLAGS: [OpFlags; 3] = [OpFlags::RESERVED, OpFlags::NOFALLBACK, OpFlags::BYTES];
const _: () = assert!(OpFlags::are_all(&[&CMD_FLAGS, &NO_CMD_FLAGS]));

fn cmd_flags(flags: OpFlags) -> String {
    CMD_FLAGS.iter().filter(|flag| flags.contains(**flag)).flat_map(|flag| flag.names()).collect::<Vec<_>>().join("|")
}

fn rq_flags(rq: &Request, elevator: bool) -> String {
    names(&[
        ("SCHED_TAGS", elevator),
        ("USE_SCHED", rq.has_rqf(rqf::ELV)),
        ("FLUSH_SEQ", rq.has_rqf(rqf::FLUSH_SEQ | rqf::FLUSH_RQ)),
        ("RESV", rq.has_rqf(rqf::RESERVED)),
        ("NOMERGE", rq.has_rqf(rqf::NOMERGE)),
        ("IO_STAT", true),
    ])
}

/// Returns the text of a tag map. `users`: number of active disks on the map.
fn tags_text<L: Lock>(tags: &HctxTags<L>, users: u32) -> String {
    let q = tags.queue();
    let sb = q.sb();
    format!(
        "nr_tags={}\nnr_reserved_tags={}\nactive_queues={users}\n\nbitmap_tags:\ndepth={}\nbusy={}\ncleared={}\nbits_per_word={}\nmap_nr={}\n\
         wake_batch={}\nws_active={}\n",
        sb.depth() + tags.nr_reserved(),
        tags.nr_reserved(),
        sb.depth(),
        sb.weight(),
        sb.cleared(),
        sb.bits_per_word(),
        sb.words(),
        q.wake_batch(),
        q.waiters_active(),
    )
}

/// Returns the bytes of the map from bit 0 on, 16 in a line, as `sbitmap_bitmap_show`.
fn hexdump(map: &Sbitmap) -> String {
    let mut bytes = vec![0u8; map.depth().div_ceil(8) as usize];
    map.for_each_set(0, |bit| {
        bytes[bit as usize / 8] |= 1 << (bit % 8);
        true
    });
    let mut text = String::new();
    for (i, row) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "{:08x}:", i * 16);
        for pair in row.chunks(2) {
            text.push(' ');
            pair.iter().for_each(|b| {
                let _ = write!(text, "{b:02x}");
            });
        }
        text.push('\n');
    }
    text
}
