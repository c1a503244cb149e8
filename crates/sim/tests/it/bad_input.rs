// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bios that no disk could serve fail with a matching error at the client. Nothing of them reaches the disk, and no
//! neighbour's sector changes. This holds in every mode and with every elevator.
//!
//! Misaligned, empty and out-of-range bios fail with `IoErr`, as in the kernel (`bio_check_eod`, `bio_unaligned`).
//! Contradictory bios fail with `Inval`, and bios that need a missing feature with `NotSupp`.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::elevator::{LEGACY_NAMES, NAMES};
use blk::id::Sector;
use blk::limits::Limits;
use blk::settings::{Mode, QueueConfig};
use blk::status::BlkStatus;
use blk::status::BlkStatus::{Inval, IoErr, NotSupp};
use sim::disk::Behaviour;
use sim::harness::Harness;

const CAPACITY: u64 = 4096;
/// Sectors of a logical block.
const LB: u64 = 8;

/// Every mode with its elevators.
fn stacks() -> impl Iterator<Item = (Mode, &'static str)> {
    NAMES.map(|name| (Mode::Mq, name)).into_iter().chain(LEGACY_NAMES.map(|name| (Mode::Sq, name)))
}

fn limits() -> Limits {
    Limits {
        logical_block_size: 4096,
        physical_block_size: 4096,
        max_discard_sectors: 64,
        max_write_zeroes_sectors: 64,
        write_cache: true,
        ..Limits::default()
    }
}

fn harness(mode: Mode, scheduler: &str, limits: Limits, capacity: u64) -> Harness {
    let behaviour = Behaviour { limits, capacity, ..Behaviour::default() };
    let config = QueueConfig {
        mode,
        topology: CpuTopology::uniform(2),
        nr_hw_queues: (mode == Mode::Mq).then_some(2),
        scheduler: Some(scheduler.into()),
        ..QueueConfig::default()
    };
    Harness::new(1, behaviour, config, &[0, 1])
}

fn bio(op: Op, sector: u64, nr_sectors: u64) -> Bio {
    let data = if op.has_data() { DataRef::new(0, 0) } else { DataRef::NONE };
    let mut bio = Bio::read(Sector(sector), u32::try_from(nr_sectors).expect("a length"), data);
    bio.op = op;
    bio
}

fn with(mut bio: Bio, flags: OpFlags) -> Bio {
    bio.flags = flags;
    bio
}

/// Submits a bad bio alone, and inside a plug between good neighbours. A refused bio must not have touched anything.
fn must_end(mut harness: Harness, bad: Bio, expected: BlkStatus, what: &str) {
    let good = |sector| bio(Op::Read, sector, LB).with_user_data(1);
    let bad = bad.with_user_data(99);
    harness.submit(0, bad);
    harness.run(1000);
    harness.plug(1, 3);
    harness.submit(1, good(0));
    harness.submit(1, bad);
    harness.submit(1, good(2 * LB));
    harness.unplug(1);
    harness.run(1000);
    let ended: Vec<_> = (0..2).flat_map(|s| harness.take_done(s)).map(|d| (d.user_data, d.status)).collect();
    let (bad, good): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(u, _)| *u == 99);
    assert_eq!(bad, [(99, expected); 2], "{what}");
    assert_eq!(good, [(1, BlkStatus::Ok); 2], "{what}: the good ones beside it");
    let seen: Vec<_> = harness.disk.issues().iter().map(|i| (i.op, i.sector, i.nr_sectors)).collect();
    assert_eq!(seen, [(Op::Read, 0, LB as u32), (Op::Read, 2 * LB, LB as u32)], "{what}: seen by the disk");
    harness.check_idle();
}

#[test]
fn addresses_and_lengths() {
    let top = u64::MAX - (LB - 1);
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
        for (what, sector, nr) in [
            ("zero length", 0, 0),
            ("zero length at the end", CAPACITY, 0),
            ("half a block", 0, LB / 2),
            ("a block and a sector", 0, LB + 1),
            ("begins inside a block", 4, LB),
            ("an odd sector", 1, LB),
            ("one block past the end", CAPACITY, LB),
            ("across the end", CAPACITY - LB, 2 * LB),
            ("far past the end", 1 << 40, LB),
            ("the last address there is", top, LB),
            ("wraps around to sector 0", top, 2 * LB),
            ("wraps around far", top, u64::from(u32::MAX) & !(LB - 1)),
            ("the greatest length", 0, u64::from(u32::MAX) & !(LB - 1)),
        ] {
            for (mode, scheduler) in stacks() {
                let harness = harness(mode, scheduler, limits(), CAPACITY);
                must_end(harness, bio(op, sector, nr), IoErr, &format!("{op:?} {what} with {scheduler}"));
            }
        }
    }
}

#[test]
fn contradictions_and_what_the_disk_lacks() {
    let plain = Limits { max_discard_sectors: 0, max_write_zeroes_sectors: 0, ..limits() };
    let read_only = Limits { read_only: true, ..limits() };
    let sectors = Limits { logical_block_size: 512, physical_block_size: 512, takes_bytes: true, ..limits() };
    let read = bio(Op::Read, 0, LB);
    let write = bio(Op::Write, 0, LB);
    let region_end = Bio::write(Sector(0), 2 * LB as u32, DataRef::new(3, DataRef::MAX_OFFSET + 1 - 4096));
    for (what, limits, bad, expected) in [
        ("a flush with sectors", limits(), bio(Op::Flush, 0, LB), Inval),
        ("a reserved flush", limits(), with(Bio::flush(), OpFlags::RESERVED), Inval),
        ("a read with FUA", limits(), with(read, OpFlags::FUA), IoErr),
        ("a read with PREFLUSH", limits(), with(read, OpFlags::PREFLUSH), IoErr),
        ("a discard with FUA", limits(), with(bio(Op::Discard, 0, LB), OpFlags::FUA), IoErr),
        ("data beyond its memory region", limits(), region_end, Inval),
        ("polled without poll queues", limits(), with(read, OpFlags::POLLED), NotSupp),
        ("reserved without reserved tags", limits(), with(read, OpFlags::RESERVED), Inval),
        ("an unknown discard", plain, bio(Op::Discard, 0, LB), NotSupp),
        ("unknown write zeroes", plain, bio(Op::WriteZeroes, 0, LB), NotSupp),
        ("a part of a sector", Limits { takes_bytes: false, ..sectors }, write.at_bytes(100, 8 * 512), NotSupp),
        ("a part of a sector to discard", sectors, bio(Op::Discard, 0, LB).at_bytes(100, 8 * 512), NotSupp),
        ("a write to a read-only disk", read_only, write, IoErr),
        ("a discard on a read-only disk", read_only, bio(Op::Discard, 0, LB), IoErr),
        ("write zeroes on a read-only disk", read_only, bio(Op::WriteZeroes, 0, LB), IoErr),
    ] {
        for (mode, scheduler) in stacks() {
            must_end(harness(mode, scheduler, limits, CAPACITY), bad, expected, &format!("{what} with {scheduler}"));
        }
    }
}

/// If a capacity is not a whole number of blocks, the remainder after the last block cannot be reached.
#[test]
fn the_rest_behind_the_last_block() {
    for (mode, scheduler) in stacks() {
        let small = |bad| must_end(harness(mode, scheduler, limits(), CAPACITY + 3), bad, IoErr, scheduler);
        small(bio(Op::Write, CAPACITY, 3));
        small(bio(Op::Write, CAPACITY, LB));
    }
}

/// The last block of the largest possible disk is an ordinary block.
#[test]
fn the_last_sectors_of_the_largest_disk_are_ordinary_ones() {
    let limits = Limits { chunk_sectors: 16, max_sectors: 16, max_discard_sectors: 64, ..Limits::default() };
    for (mode, scheduler) in stacks() {
        let mut harness = harness(mode, scheduler, limits, u64::MAX);
        let first = u64::MAX - 40;
        for i in 0..40 {
            harness.mem.set(i, 1000 + i);
        }
        // Adjacent bios, and one bio that has to be split, up to the last sector.
        for (sector, nr) in [(first, 8), (first + 8, 32)] {
            let data = DataRef::new(0, (sector - first) << 9);
            harness.submit(0, Bio::write(Sector(sector), nr, data));
        }
        harness.run(1000);
        assert_eq!(
            harness.take_done(0).iter().map(|d| d.status).collect::<Vec<_>>(),
            [BlkStatus::Ok; 2],
            "{scheduler}"
        );
        for i in 0..40 {
            assert_eq!(harness.disk.content(first + i), 1000 + i, "{scheduler} sector {i}");
        }
        harness.submit(0, bio(Op::Read, u64::MAX - 1, 2));
        harness.run(1000);
        assert_eq!(harness.take_done(0)[0].status, IoErr, "{scheduler}: wraps around");
        harness.check_idle();
    }
}
