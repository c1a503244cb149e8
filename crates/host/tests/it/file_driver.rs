// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the file driver alone: rejected files, bytes that must not change, and the end of a file.

use crate::common;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::driver::Driver;
use blk::id::{HctxId, Sector};
use blk::status::BlkStatus;
use common::{DriverFixture, Kind, SLOT_BYTES, TempFile};
use host::driver::file::{File, FileOptions, FilePart};
use host::driver::{Aio, Space};
use host::error::ErrorKind;
use host::mem::Regions;
use sim::rng::Rng;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

fn open(path: &Path, options: FileOptions) -> host::error::Result<File> {
    File::open(path, &options, Arc::new(Regions::new())).map(|(file, _)| file)
}

#[test]
fn unusable_targets_are_refused_with_a_reason() {
    let file = TempFile::new();
    let size = fs::metadata(&file.0).unwrap().len();
    let cases = [
        (Path::new(env!("CARGO_TARGET_TMPDIR")), 0, ErrorKind::Denied, "a directory"),
        (Path::new("/dev/null"), 0, ErrorKind::Denied, "neither a regular file nor a block device"),
        (&file.0.join("x"), 0, ErrorKind::Io, "cannot open"),
        (&file.0.with_extension("missing"), 0, ErrorKind::NotFound, "does not exist"),
        (&*file.0, size + 1, ErrorKind::NoSpace, "are needed"),
    ];
    for (path, min_bytes, kind, text) in cases {
        let e = open(path, FileOptions { min_bytes, ..FileOptions::default() }).err().expect("refused");
        assert!(e.kind() == kind && e.to_string().contains(text), "{path:?}: {e}");
    }
    fs::File::options().write(true).open(&file.0).unwrap().set_len(100).unwrap();
    let e = open(&file.0, FileOptions::default()).err().expect("smaller than a block");
    assert!(e.to_string().contains("has 100 bytes"), "{e}");
}

#[test]
fn a_file_that_cannot_be_written_serves_reads_only() {
    let file = TempFile::new();
    fs::set_permissions(&file.0, fs::Permissions::from_mode(0o444)).unwrap();
    let writable = open(&file.0, FileOptions::default());
    // Root may write the read-only file even so.
    if let Err(e) = writable {
        assert!(e.kind() == ErrorKind::Denied && e.to_string().contains("the job writes"), "{e}");
    }
    let reader = open(&file.0, FileOptions { write: false, ..FileOptions::default() }).unwrap();
    assert!(reader.limits().read_only);
}

#[test]
fn the_size_is_rounded_down_to_blocks() {
    let file = TempFile::new();
    fs::File::options().write(true).open(&file.0).unwrap().set_len((1 << 20) + 511).unwrap();
    let driver = open(&file.0, FileOptions::default()).unwrap();
    let block = u64::from(driver.limits().logical_block_size);
    assert_eq!(driver.capacity().0 << 9, ((1 << 20) + 511) / block * block);
}

/// Written bytes reach their place in the file. The file's size and its other blocks do not change.
#[test]
fn only_what_is_written_changes_in_the_file() {
    for kind in Kind::FILES {
        let mut fixture = DriverFixture::new(kind);
        let path = fixture.path().to_owned();
        let mut rng = Rng::new(0x5eed_0010);
        let mut expected = rng.bytes(fs::metadata(&path).unwrap().len() as usize);
        fs::write(&path, &expected).unwrap();
        let fill = rng.bytes(8192);
        assert_eq!(fixture.write(24, &fill, OpFlags::FUA), BlkStatus::Ok);
        let zero = Bio { op: Op::WriteZeroes, ..Bio::read(Sector(100), 3 * 8, DataRef::NONE) };
        assert_eq!(fixture.io(zero), BlkStatus::Ok);
        let discard = Bio { op: Op::Discard, ..zero };
        assert_eq!(fixture.io(Bio { sector: Sector(1000), ..discard }), BlkStatus::Ok);
        expected[24 * 512..][..8192].copy_from_slice(&fill);
        expected[100 * 512..][..3 * 4096].fill(0);
        expected[1000 * 512..][..3 * 4096].fill(0);
        assert!(fs::read(&path).unwrap() == expected, "{kind:?}");
    }
}

/// Sector 0 is the first of the part, and no byte outside the part changes.
#[test]
fn a_part_of_a_file_is_a_disk_by_itself() {
    const MIB: usize = 1 << 20;
    for (direct, aio) in [(true, Aio::IoUring), (false, Aio::IoUring), (true, Aio::Threads), (false, Aio::Threads)] {
        let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
        let mut rng = Rng::new(0x5eed_0013);
        let mut expected = rng.bytes(fs::metadata(&file.0).unwrap().len() as usize);
        fs::write(&file.0, &expected).unwrap();
        let part = FilePart { offset: MIB as u64, size: Some(2 * MIB as u64) };
        let options = FileOptions { direct, aio: Some(aio), part, read_ahead_kb: Some(128), ..FileOptions::default() };
        let driver = File::open(&file.0, &options, regions.clone()).unwrap().0;
        let mut fixture = DriverFixture::on(Arc::new(driver), regions, |_| ());
        assert_eq!(fixture.disk.capacity(), Sector(4096));
        let fill = rng.bytes(8192);
        assert_eq!(fixture.write(0, &fill, OpFlags::FUA), BlkStatus::Ok);
        expected[MIB..][..8192].copy_from_slice(&fill);
        let zero = Bio { op: Op::WriteZeroes, ..Bio::read(Sector(4096 - 8), 8, DataRef::NONE) };
        assert_eq!(fixture.io(zero), BlkStatus::Ok);
        expected[3 * MIB - 4096..3 * MIB].fill(0);
        assert_eq!(fixture.io(Bio { op: Op::Discard, sector: Sector(2048), ..zero }), BlkStatus::Ok);
        expected[2 * MIB..][..4096].fill(0);
        assert!(fs::read(&file.0).unwrap() == expected, "direct={direct}, {aio:?}");
        for sector in [0, 8, 16, 24, 4096 - 8] {
            let (status, data) = fixture.read(sector, 4096);
            let at = MIB + sector as usize * 512;
            assert!(status == BlkStatus::Ok && data == expected[at..][..4096], "sector {sector}");
        }
    }
}

/// Whatever is written, the file keeps its size, and the bytes of the last sector after it read as zeroes.
#[test]
fn a_disk_may_end_within_a_sector() {
    let ways = [(true, Aio::IoUring), (false, Aio::IoUring), (true, Aio::Threads), (false, Aio::Threads)];
    for (size, (direct, aio)) in [1, 511, 513, 4097].into_iter().flat_map(|size| ways.map(|way| (size, way))) {
        let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
        let mut rng = Rng::new(0x5eed_0014);
        let mut expected = rng.bytes(size);
        fs::write(&file.0, &expected).unwrap();
        let options =
            FileOptions { direct, aio: Some(aio), any_size: true, read_ahead_kb: Some(128), ..FileOptions::default() };
        let (driver, warnings) = File::open(&file.0, &options, regions.clone()).unwrap();
        let said = warnings.iter().filter(|w| w.to_string().contains("within a sector")).count();
        assert!(!driver.is_direct() && said <= usize::from(direct), "{warnings:?}");
        assert_eq!(driver.exact_bytes(), Some(size as u64));
        let sectors = size.div_ceil(512);
        assert_eq!(driver.capacity(), Sector(sectors as u64));
        let mut fixture = DriverFixture::on(Arc::new(driver), regions, |_| ());
        let check = |fixture: &mut DriverFixture, expected: &[u8], what: &str| {
            assert!(fs::read(&file.0).unwrap() == expected, "{what}: size {size}, direct={direct}, {aio:?}");
            let mut padded = expected.to_vec();
            padded.resize(sectors * 512, 0);
            let (status, data) = fixture.read(0, sectors * 512);
            assert!(status == BlkStatus::Ok && data == padded, "{what}: size {size}, direct={direct}, {aio:?}");
        };
        check(&mut fixture, &expected, "as it was");
        let last = sectors - 1;
        for flags in [OpFlags::NONE, OpFlags::FUA] {
            let fill = rng.bytes(512);
            assert_eq!(fixture.write(last as u64, &fill, flags), BlkStatus::Ok);
            expected[last * 512..].copy_from_slice(&fill[..size - last * 512]);
            check(&mut fixture, &expected, "written");
        }
        let tail = Bio::read(Sector(last as u64), 1, DataRef::NONE);
        for (op, flags) in
            [(Op::WriteZeroes, OpFlags::NONE), (Op::WriteZeroes, OpFlags::NOUNMAP), (Op::Discard, OpFlags::NONE)]
        {
            let fill = rng.bytes(512);
            assert_eq!(fixture.write(last as u64, &fill, OpFlags::NONE), BlkStatus::Ok);
            assert_eq!(fixture.io(Bio { op, ..tail }.with_flags(flags)), BlkStatus::Ok);
            expected[last * 512..].fill(0);
            check(&mut fixture, &expected, "zeroed");
        }
        // In one request of several pieces: each bio has its own buffer.
        let fill = rng.bytes(sectors * 512);
        let bios = (0..sectors).map(|i| (2 + i as u32, Bio::write(Sector(i as u64), 1, DataRef::NONE)));
        let bios: Vec<_> = bios.collect();
        for (slot, bio) in &bios {
            let at = bio.sector.0 as usize * 512;
            fixture.pool.with_slot(*slot, |b| b[..512].copy_from_slice(&fill[at..at + 512]));
        }
        let statuses = fixture.io_batch(bios.clone());
        assert!(statuses.iter().all(|s| *s == BlkStatus::Ok), "{statuses:?}");
        expected.copy_from_slice(&fill[..size]);
        check(&mut fixture, &expected, "written in pieces");
        for (slot, _) in &bios {
            fixture.pool.with_slot(*slot, |b| b.fill(0xee));
        }
        let bios = bios.into_iter().map(|(slot, bio)| (slot, Bio { op: Op::Read, ..bio })).collect();
        assert!(fixture.io_batch(bios).iter().all(|s| *s == BlkStatus::Ok));
        let mut end = fill[last * 512..].to_vec();
        end[size - last * 512..].fill(0);
        assert!(fixture.pool.with_slot(2 + last as u32, |b| b[..512] == end[..]), "size {size}");
    }
}

/// The bytes after such a part belong to the file.
#[test]
fn a_part_may_end_within_a_sector_of_its_file() {
    for (direct, aio) in [(true, Aio::IoUring), (false, Aio::IoUring), (true, Aio::Threads)] {
        let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
        let mut rng = Rng::new(0x5eed_0015);
        let mut expected = rng.bytes(8192);
        fs::write(&file.0, &expected).unwrap();
        let part = FilePart { offset: 512, size: Some(1000) };
        let options = FileOptions { direct, aio: Some(aio), part, any_size: true, ..FileOptions::default() };
        let driver = File::open(&file.0, &options, regions.clone()).unwrap().0;
        assert_eq!((driver.exact_bytes(), driver.capacity()), (Some(1000), Sector(2)));
        let mut fixture = DriverFixture::on(Arc::new(driver), regions, |_| ());
        let fill = rng.bytes(1024);
        assert_eq!(fixture.write(0, &fill, OpFlags::NONE), BlkStatus::Ok);
        expected[512..1512].copy_from_slice(&fill[..1000]);
        assert!(fs::read(&file.0).unwrap() == expected, "written, direct={direct}, {aio:?}");
        let (status, data) = fixture.read(0, 1024);
        assert!(status == BlkStatus::Ok && data[..1000] == fill[..1000] && data[1000..].iter().all(|b| *b == 0));
        let zero = Bio { op: Op::WriteZeroes, ..Bio::read(Sector(1), 1, DataRef::NONE) };
        assert_eq!(fixture.io(zero), BlkStatus::Ok);
        assert_eq!(fixture.io(Bio { op: Op::Discard, ..zero }), BlkStatus::Ok);
        expected[1024..1512].fill(0);
        assert!(fs::read(&file.0).unwrap() == expected, "zeroed, direct={direct}, {aio:?}");
    }
}

#[test]
fn a_disk_that_ends_within_a_sector_gets_any_size() {
    let file = TempFile::new();
    fs::write(&file.0, [1; 1000]).unwrap();
    let driver = open(&file.0, FileOptions { any_size: true, ..FileOptions::default() }).unwrap();
    let len = || fs::metadata(&file.0).unwrap().len();
    for (bytes, shrink) in [(1025, false), (2048, false), (4097, false), (513, true), (1, true)] {
        assert_eq!(driver.resize(Some(bytes), shrink).unwrap().unwrap(), bytes);
        driver.adopt(bytes);
        assert_eq!((driver.exact_bytes(), len()), (Some(bytes), bytes));
    }
    assert!(driver.resize(Some(0), true).unwrap().is_err());
    fs::write(&file.0, [1; 700]).unwrap();
    assert_eq!(driver.resize(None, false).unwrap().unwrap(), 700);
    driver.adopt(700);
    assert_eq!(driver.exact_bytes(), Some(700));
    let refused = driver.resize(Some(699), false).unwrap().unwrap_err();
    assert!(refused.to_string().contains("size=699: the disk has 700 bytes"), "{refused}");
    // A disk of whole sectors keeps whole sectors.
    let whole = TempFile::new();
    let driver = open(&whole.0, FileOptions { any_size: true, direct: false, ..FileOptions::default() }).unwrap();
    assert_eq!(driver.exact_bytes(), None);
    assert!(driver.resize(Some((8 << 20) + 1), false).unwrap().is_err());
}

#[test]
fn a_part_is_resized_at_its_end_and_only_without_a_size() {
    const MIB: u64 = 1 << 20;
    let file = TempFile::new();
    let part = |offset, size| FileOptions { part: FilePart { offset, size }, ..FileOptions::default() };
    let fixed = open(&file.0, part(MIB, Some(2 * MIB))).unwrap();
    let refused = fixed.resize(Some(MIB), true).unwrap().unwrap_err();
    assert!(refused.to_string().contains("has size=2097152: change it there"), "{refused}");
    let tail = open(&file.0, part(MIB, None)).unwrap();
    let before = tail.capacity();
    assert_eq!(tail.resize(Some(3 * MIB), true).unwrap().unwrap(), 3 * MIB);
    assert_eq!((fs::metadata(&file.0).unwrap().len(), tail.capacity()), (4 * MIB, before));
    tail.adopt(3 * MIB);
    assert_eq!(tail.capacity(), Sector(3 * 2048));
    assert_eq!(fixed.resize(None, true).unwrap().unwrap(), 2 * MIB, "its part is there");
    fs::File::options().write(true).open(&file.0).unwrap().set_len(MIB).unwrap();
    for (driver, why) in [(&fixed, "end at 3145728"), (&tail, "nothing follows offset=1048576")] {
        let refused = driver.resize(None, true).unwrap().unwrap_err();
        assert!(refused.to_string().contains(why) && refused.to_string().ends_with("keeps its size"), "{refused}");
    }
    for (offset, size, why) in [(MIB, None, "nothing follows"), (0, Some(2 * MIB), "end at"), (100, None, "blocks of")]
    {
        let refused = open(&file.0, part(offset, size)).err().expect("refused");
        assert!(refused.kind() == ErrorKind::Usage && refused.to_string().contains(why), "{refused}");
    }
}

/// Bytes after the last whole sector used to be cut off without `shrink`.
#[test]
fn a_resize_counts_every_byte_of_the_file() {
    let file = TempFile::new();
    let driver = open(&file.0, FileOptions::default()).unwrap();
    let has = fs::metadata(&file.0).unwrap().len();
    fs::File::options().write(true).open(&file.0).unwrap().set_len(has + 100).unwrap();
    let refused = driver.resize(Some(has), false).unwrap().unwrap_err();
    assert!(refused.to_string().contains(&format!("the disk has {} bytes", has + 100)), "{refused}");
    assert_eq!(driver.resize(Some(has), true).unwrap().unwrap(), has);
}

#[test]
fn discard_gives_space_back() {
    for kind in Kind::DIRECT_FILES {
        let mut fixture = DriverFixture::new(kind);
        let path = fixture.path().to_owned();
        fs::write(&path, Rng::new(0x5eed_0011).bytes(8 << 20)).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let before = fs::metadata(&path).unwrap().blocks();
        let all = fixture.disk.capacity().0 as u32;
        assert_eq!(fixture.io(Bio { op: Op::Discard, ..Bio::read(Sector(0), all, DataRef::NONE) }), BlkStatus::Ok);
        let after = fs::metadata(&path).unwrap();
        assert!(after.blocks() < before && after.len() == 8 << 20, "{before} -> {} blocks", after.blocks());
    }
}

/// The file is truncated under the running driver. I/O beyond its new end fails, I/O before it succeeds, a
/// request across the end fails, and nothing hangs.
#[test]
fn a_file_cut_short_gives_io_errors() {
    for kind in Kind::FILES {
        let mut fixture = DriverFixture::new(kind);
        fs::File::options().write(true).open(fixture.path()).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(fixture.read(8, 4096).0, BlkStatus::Ok);
        assert_eq!(fixture.read(4096, 4096).0, BlkStatus::IoErr, "{kind:?}");
        assert_eq!(fixture.read(2048 - 8, 8192).0, BlkStatus::IoErr, "{kind:?}");
        assert_eq!(fixture.read(2048 - 8, 4096).0, BlkStatus::Ok);
    }
}

/// Entries that the kernel refuses stay in the ring, like those of a lazy submission. An IOThread that slept for the ring's descriptor had
/// nothing to wake it until a request's timeout.
#[test]
fn a_ring_with_unsubmitted_entries_asks_to_be_polled() {
    for kind in Kind::DIRECT_FILES {
        let mut fixture = DriverFixture::new(kind);
        let hctx = HctxId::new(0);
        fixture.driver.issuer().set_lazy_commit(hctx, 8);
        assert_eq!(fixture.driver.next_due(hctx), None, "{kind:?}");
        fixture.begin(Bio::flush());
        let is_ring = fixture.driver.aio() == Some(Aio::IoUring);
        assert_eq!(fixture.driver.next_due(hctx).is_some(), is_ring, "{kind:?}");
        fixture.poll();
        assert_eq!(fixture.driver.next_due(hctx), None, "{kind:?}");
        assert_eq!(fixture.finish(), BlkStatus::Ok);
    }
}

/// Regions that are added after the rings were made work like earlier ones.
#[test]
fn data_may_lie_in_regions_added_later() {
    for kind in Kind::DIRECT_FILES {
        let fixture = DriverFixture::new(kind);
        let file = fs::File::open(fixture.path()).unwrap();
        let (mut first, mut second) = fixture.split_in_two_on_cpu(0);
        for (i, fixture) in [&mut first, &mut second].into_iter().enumerate() {
            let fill = Rng::new(0x5eed_0012 + i as u64).bytes(4096);
            assert_eq!(fixture.write(i as u64 * 8, &fill, OpFlags::FUA), BlkStatus::Ok);
            let mut seen = vec![0; 4096];
            file.read_exact_at(&mut seen, i as u64 * 4096).unwrap();
            assert!(seen == fill);
        }
    }
}

/// Reads and writes of any bytes, many of them in flight, also next to each other in one sector, and with a split inside.
#[test]
fn bytes_reach_their_place_without_their_sectors_neighbours() {
    for kind in [Kind::FileBuffered, Kind::FileBufferedThreads, Kind::Keeps("ram:size=8m")] {
        let mut fixture = DriverFixture::with(kind, |c| c.max_sectors_kb = Some(4));
        let mut rng = Rng::new(0x5eed_0012);
        let mut expected = rng.bytes(8 << 20);
        for (at, chunk) in expected.chunks(SLOT_BYTES).enumerate() {
            assert_eq!(fixture.write(((at * SLOT_BYTES) >> 9) as u64, chunk, OpFlags::NONE), BlkStatus::Ok);
        }
        for round in 0..40 {
            let mut at = rng.below(7 << 20);
            let mut bios = Vec::new();
            for slot in 0..16 {
                let bytes = 1 + rng.below(if round % 2 == 0 { 700 } else { SLOT_BYTES as u64 }) as u32;
                let range = at as usize..at as usize + bytes as usize;
                let fill = rng.bytes(bytes as usize);
                fixture.pool.with_slot(slot, |b| b[..fill.len()].copy_from_slice(&fill));
                expected[range].copy_from_slice(&fill);
                bios.push((slot, Bio::write(Sector(0), 0, DataRef::NONE).at_bytes(at, bytes)));
                at += u64::from(bytes);
            }
            assert!(fixture.io_batch(bios.clone()).iter().all(|s| *s == BlkStatus::Ok), "{kind:?}");
            for (slot, _) in &bios {
                fixture.pool.with_slot(*slot, |b| b.fill(0xee));
            }
            let reads: Vec<_> = bios.into_iter().map(|(slot, bio)| (slot, Bio { op: Op::Read, ..bio })).collect();
            assert!(fixture.io_batch(reads.clone()).iter().all(|s| *s == BlkStatus::Ok), "{kind:?}");
            for (slot, bio) in reads {
                let range = bio.bytes().start as usize..bio.bytes().end as usize;
                fixture.pool.with_slot(slot, |b| {
                    assert!(b[..range.len()] == expected[range.clone()], "{kind:?}: {range:?}");
                    assert!(b[range.len()..].iter().all(|b| *b == 0xee), "{kind:?}: bytes behind {range:?}");
                });
            }
        }
        for (at, chunk) in expected.chunks(SLOT_BYTES).enumerate() {
            let (status, data) = fixture.read(((at * SLOT_BYTES) >> 9) as u64, SLOT_BYTES);
            assert!(status == BlkStatus::Ok && data == chunk, "{kind:?}: {at}");
        }
    }
}

#[test]
fn disks_of_whole_sectors_refuse_bytes() {
    for kind in Kind::DIRECT_FILES {
        let mut fixture = DriverFixture::new(kind);
        let bio = Bio::write(Sector(0), 0, DataRef::NONE).at_bytes(100, 2300);
        assert_eq!(fixture.io_with_slot(0, bio), BlkStatus::NotSupp);
    }
    let mut fixture = DriverFixture::new(Kind::FileBuffered);
    let discard = Bio { op: Op::Discard, ..Bio::read(Sector(0), 0, DataRef::NONE) }.at_bytes(100, 2300);
    assert_eq!(fixture.io(discard), BlkStatus::NotSupp);
}
