// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the kernel takes which lock: the table from which contention follows.
//!
//! `hold_ns` is the time inside the lock on a core whose caches have everything, at about 2.4 GHz. `lines` are the cache lines that
//! the code inside reads after another CPU wrote them: the lock's own, those of the elevator's lists and counters, and those of
//! the neighbours of a request in a tree or a list, which other CPUs allocated. `[costs.kernel]` of a file scales all of both.

/// A place at which the kernel takes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockSite {
    /// The lock.
    pub lock: &'static str,
    /// The function that takes it.
    pub function: &'static str,
    /// The function's file.
    pub file: &'static str,
    /// Time inside, nanoseconds.
    pub hold_ns: u32,
    /// Lines that it moves.
    pub lines: u32,
}

/// The sites of an elevator's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElevatorSites {
    /// Its name.
    pub name: &'static str,
    /// Looking for a request to merge a bio with: once per bio.
    pub merge: LockSite,
    /// Inserting: once per list of requests, or once per request.
    pub insert: LockSite,
    /// What each request of the list adds to that hold; `None`: each request takes the lock for itself.
    pub insert_each: Option<(u32, u32)>,
    /// Dispatching: once per request.
    pub dispatch: LockSite,
    /// What each further request of a batch adds to that hold, where the kernel dispatches batches. The next request is a
    /// neighbour of the one before.
    pub dispatch_more: (u32, u32),
    /// Finding none, because the elevator holds back what it has.
    pub dispatch_none: LockSite,
    /// Completing: once per request.
    pub finish: LockSite,
    /// Each hardware queue has a lock of its own.
    pub per_hctx: bool,
    /// Work of a request without the lock that a disk without an elevator does not have: a second tag, and completion one by
    /// one.
    pub unlocked_ns: u32,
}

const DD_FILE: &str = "block/mq-deadline.c";
const BFQ_FILE: &str = "block/bfq-iosched.c";
const KYBER_FILE: &str = "block/kyber-iosched.c";

const fn site(lock: &'static str, function: &'static str, file: &'static str, hold_ns: u32, lines: u32) -> LockSite {
    LockSite { lock, function, file, hold_ns, lines }
}

/// mq-deadline.
pub const MQ_DEADLINE: ElevatorSites = ElevatorSites {
    name: "mq-deadline",
    merge: site("dd->lock", "dd_bio_merge", DD_FILE, 60, 5),
    insert: site("dd->lock", "dd_insert_requests", DD_FILE, 30, 5),
    insert_each: Some((80, 3)),
    dispatch: site("dd->lock", "dd_dispatch_request", DD_FILE, 120, 13),
    dispatch_more: (80, 1),
    dispatch_none: site("dd->lock", "dd_dispatch_request", DD_FILE, 30, 5),
    finish: site("per_prio->stats.completed", "dd_finish_request", DD_FILE, 10, 1),
    per_hctx: false,
    unlocked_ns: 250,
};

/// bfq.
pub const BFQ: ElevatorSites = ElevatorSites {
    name: "bfq",
    merge: site("bfqd->lock", "bfq_bio_merge", BFQ_FILE, 120, 3),
    insert: site("bfqd->lock", "bfq_insert_request", BFQ_FILE, 450, 6),
    insert_each: None,
    dispatch: site("bfqd->lock", "bfq_dispatch_request", BFQ_FILE, 450, 14),
    dispatch_more: (350, 1),
    dispatch_none: site("bfqd->lock", "bfq_dispatch_request", BFQ_FILE, 50, 5),
    finish: site("bfqd->lock", "bfq_finish_requeue_request", BFQ_FILE, 200, 6),
    per_hctx: false,
    unlocked_ns: 250,
};

/// kyber.
pub const KYBER: ElevatorSites = ElevatorSites {
    name: "kyber",
    merge: site("kcq->lock", "kyber_bio_merge", KYBER_FILE, 40, 0),
    insert: site("kcq->lock", "kyber_insert_requests", KYBER_FILE, 60, 0),
    insert_each: None,
    dispatch: site("khd->lock", "kyber_dispatch_request", KYBER_FILE, 160, 5),
    dispatch_more: (160, 5),
    dispatch_none: site("khd->lock", "kyber_dispatch_request", KYBER_FILE, 40, 5),
    finish: site("kqd->domain_tokens", "kyber_finish_request", KYBER_FILE, 60, 2),
    per_hctx: true,
    unlocked_ns: 250,
};

/// The sites of a driver's lock, of which each hardware queue has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverSites {
    /// Submitting: once per request.
    pub each: Option<LockSite>,
    /// Submitting: once per batch.
    pub batch: Option<LockSite>,
    /// Completing: once per request.
    pub complete: Option<LockSite>,
}

const NVME_FILE: &str = "drivers/nvme/host/pci.c";
const VIRTIO_FILE: &str = "drivers/block/virtio_blk.c";

/// NVMe over PCI.
pub const NVME: DriverSites =
    DriverSites { each: None, batch: Some(site("nvmeq->sq_lock", "nvme_queue_rqs", NVME_FILE, 60, 2)), complete: None };

/// virtio-blk.
pub const VIRTIO_BLK: DriverSites = DriverSites {
    each: Some(site("vblk->vqs[i].lock", "virtio_queue_rq", VIRTIO_FILE, 200, 4)),
    batch: None,
    complete: Some(site("vblk->vqs[i].lock", "virtblk_done", VIRTIO_FILE, 120, 3)),
};
