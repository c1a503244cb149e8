// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The iSCSI driver with the Linux kernel's own target, in a guest: features that only this target has, logins, and a target that stops
//! and restarts. Its target port groups are in `multipath_alua`.
#![cfg(target_arch = "x86_64")]

use crate::common;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::driver::Driver;
use blk::id::Sector;
use blk::scsi::cdb::Cdb;
use blk::scsi::disposition::sam;
use blk::scsi::sense::{Sense, SenseKey};
use blk::status::BlkStatus;
use common::commands::{raw, raw_after_attention, reservations};
use common::initiator::{an_absence_is_not_noticed, fixture, refused, target};
use common::lio::{DISK, IQN, Lio, NODE};
use common::until;
use host::driver::HostDriver;
use host::driver::iscsi::{self, Iscsi};
use host::error::ErrorKind;
use sim::rng::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: usize = 512;

/// Sends COMPARE AND WRITE for one block. Returns whether the block was as expected.
fn swap(driver: &Iscsi, block: u64, old: &[u8], new: &[u8]) -> bool {
    let cdb = Cdb::compare_and_write(block, 1);
    let answer = raw_after_attention(driver, cdb.as_bytes(), &[old, new].concat(), 0);
    if answer.status == sam::GOOD {
        return true;
    }
    let sense = Sense::parse(&answer.sense).unwrap();
    assert_eq!((sense.key, sense.asc, sense.ascq), (SenseKey::Miscompare, 0x1d, 0), "{answer:?}");
    false
}

/// One guest for all checks, because its start takes longer than any of them.
#[test]
fn the_kernels_target_in_a_guest() {
    let mut lio = Lio::new();
    // The order matters: the logins turn on authentication at portal 2, the outage removes its LUN, and the reservations leave the disk
    // reserved.
    compare_and_write_writes_only_over_what_was_expected(&lio);
    unmapped_and_zeroed_ranges_read_as_zeroes(&lio);
    all_login_kinds_read_the_same_data_and_errors_are_named(&mut lio);
    a_portal_that_goes_and_comes_back_is_not_noticed(&mut lio);
    reservations(|options| lio.url(1, options));
}

fn compare_and_write_writes_only_over_what_was_expected(lio: &Lio) {
    let (mut here, driver) = fixture(&lio.url(1, "?sessions=1"), 1);
    assert_eq!(here.write(0, &[5; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert!(swap(&driver, 0, &[5; BLOCK], &[6; BLOCK]));
    assert!(!swap(&driver, 0, &[5; BLOCK], &[7; BLOCK]), "it is no more what it was");
    let (status, bytes) = here.read(0, 4096);
    assert!(status == BlkStatus::Ok && bytes[..BLOCK] == [6; BLOCK] && bytes[BLOCK..] == [5; 4096 - BLOCK]);
    // Rejected because of its length. Nothing is written, although the first block is as expected.
    let many = [vec![6; 255 * BLOCK], vec![8; 255 * BLOCK]].concat();
    let none = raw(&driver, Cdb::compare_and_write(0, 255).as_bytes(), &many, 0);
    assert_eq!(Sense::parse(&none.sense).unwrap().key, SenseKey::IllegalRequest);
    assert_eq!(here.read(0, BLOCK).1, [6; BLOCK]);

    // The purpose of the command: hosts that increment a counter in one block over two portals lose no increment.
    const ROUNDS: u64 = 100;
    /// If no command has failed by then, no host ever wrote between another's read and write.
    const MOST_ROUNDS: u64 = 10_000;
    assert_eq!(here.write(8, &[0; 4096], OpFlags::NONE), BlkStatus::Ok);
    let lost_races = AtomicU64::new(0);
    let counts = |portal: usize| {
        let (_, driver) =
            fixture(&lio.url(portal, &format!("?sessions=1&initiator=iqn.2026-11.test:counts{portal}")), 1);
        let mut done = 0;
        while done < ROUNDS || (lost_races.load(Ordering::Relaxed) == 0 && done < MOST_ROUNDS) {
            loop {
                let old = raw_after_attention(&driver, Cdb::read(8, 1, false).as_bytes(), &[], BLOCK).data;
                let count = u64::from_be_bytes(old[..8].try_into().unwrap());
                let new = (count + 1).to_be_bytes().repeat(BLOCK / 8);
                if swap(&driver, 8, &old, &new) {
                    break;
                }
                lost_races.fetch_add(1, Ordering::Relaxed);
            }
            done += 1;
        }
        done
    };
    let done: u64 = std::thread::scope(|s| {
        let counts = &counts;
        let two = [1, 2].map(|portal| s.spawn(move || counts(portal)));
        two.map(|t| t.join().unwrap()).iter().sum()
    });
    let (_, bytes) = here.read(8, 4096);
    assert_eq!(bytes[..BLOCK], done.to_be_bytes().repeat(BLOCK / 8));
    assert!(lost_races.into_inner() > 0, "{done} rounds, and none was ever too late");
}

/// Writes all of the first MiB in pieces of many lengths, and reads them back over another session.
fn writes_and_reads(url: &str, seed: u64) {
    const PIECES: u64 = 32;
    let (mut here, _) = fixture(url, 1);
    let (mut rng, mut sector) = (Rng::new(seed), 0);
    let mut all = Vec::new();
    for _ in 0..PIECES {
        let blocks = 1 + rng.below(64);
        let bytes = rng.bytes(blocks as usize * BLOCK);
        assert_eq!(here.write(sector, &bytes, OpFlags::NONE), BlkStatus::Ok, "{url}: seed {seed:#x}");
        sector += blocks;
        all.push(bytes);
    }
    drop(here);
    let (mut here, _) = fixture(url, 1);
    let mut at = 0;
    for bytes in all {
        assert!(here.read(at, bytes.len()) == (BlkStatus::Ok, bytes.clone()), "{url}: seed {seed:#x}, sector {at}");
        at += (bytes.len() / BLOCK) as u64;
    }
}

fn all_login_kinds_read_the_same_data_and_errors_are_named(lio: &mut Lio) {
    for (i, options) in ["", "?header_digest=crc32c", "?header_digest=crc32c&data_digest=crc32c"].iter().enumerate() {
        writes_and_reads(&lio.url(1, options), 0x110 + i as u64);
    }
    // All data must be solicited, in short bursts.
    lio.does(&format!("cd {NODE}/tpgt_1/param && echo No >ImmediateData && echo Yes >InitialR2T && echo 4096 >MaxBurstLength && echo 512 >FirstBurstLength"));
    writes_and_reads(&lio.url(1, "?data_digest=crc32c"), 0x11a);
    lio.does(&format!("cd {NODE}/tpgt_1/param && echo Yes >ImmediateData && echo 262144 >MaxBurstLength && echo 65536 >FirstBurstLength"));

    // The second portal group requires authentication.
    lio.does(&format!(
        "cd {NODE}/tpgt_2 && echo 1 >attrib/authentication && echo -n me >auth/userid && echo -n secretsecret1 >auth/password && echo CHAP >param/AuthMethod"
    ));
    writes_and_reads(&lio.url_as("me%secretsecret1@", 2, ""), 0x11b);
    let (kind, said) = refused(&lio.url_as("me%secretsecret2@", 2, ""));
    assert!(kind == ErrorKind::Denied && said.contains("rejected the login of user 'me'"), "{said}");
    let (kind, said) = refused(&lio.url(2, ""));
    assert!(kind == ErrorKind::Io && said.contains("closed the connection at a login without a user"), "{said}");
    let (_, said) = refused(&lio.url(1, "").replace(IQN, "iqn.2026-11.test:other"));
    assert!(said.contains("iqn.2026-11.test:other is unavailable, or unknown (Linux's target"), "{said}");
    let (kind, said) = refused(&format!("{}7", lio.url(1, "")));
    assert!(kind == ErrorKind::NotFound && said.contains("no LUN 7"), "{said}");
    let found = iscsi::discover(&target(&lio.url(1, ""))).unwrap();
    let portals: Vec<_> = found.iter().flat_map(|t| t.portals.iter().map(|p| p.address.as_str())).collect();
    assert!(found[0].name == IQN && portals == ["10.0.2.15:3260", "10.0.2.15:3261"], "{found:?}");
}

fn unmapped_and_zeroed_ranges_read_as_zeroes(lio: &Lio) {
    let (mut here, driver) = fixture(&lio.url(1, "?sessions=1"), 1);
    let limits = driver.limits();
    assert!(limits.max_discard_sectors > 0 && limits.max_write_zeroes_sectors > 0, "{limits:?}");
    let data = Rng::new(0x2e20).bytes(32 << 10);
    for op in [Op::Discard, Op::WriteZeroes] {
        assert_eq!(here.write(0, &data, OpFlags::NONE), BlkStatus::Ok);
        assert_eq!(here.io(Bio { op, ..Bio::read(Sector(16), 32, DataRef::NONE) }), BlkStatus::Ok, "{op:?}");
        let bytes = here.read(0, data.len()).1;
        let gone = 16 * BLOCK..48 * BLOCK;
        assert!(bytes[..gone.start] == data[..gone.start] && bytes[gone.end..] == data[gone.end..], "{op:?}");
        // The target reports that unmapped blocks may read as anything. Zeroed blocks must read as zeroes.
        assert!(op == Op::Discard || bytes[gone].iter().all(|b| *b == 0), "{op:?}");
    }
    assert_eq!(here.io(Bio { op: Op::Flush, ..Bio::read(Sector(0), 0, DataRef::NONE) }), BlkStatus::Ok);
}

fn a_portal_that_goes_and_comes_back_is_not_noticed(lio: &mut Lio) {
    let (mut here, driver) = fixture(&lio.url(1, "?sessions=2"), 1);
    an_absence_is_not_noticed(&mut here, &driver, |serves| {
        lio.does(&format!("echo {} >{NODE}/tpgt_1/enable", u8::from(serves)));
    });
    // Another disk at the same address gets no requests.
    lio.does(&format!("echo 0 >{NODE}/tpgt_1/enable"));
    until("no session is up", || driver.path().connections().unwrap().up == 0);
    lio.does(&format!("rm {NODE}/tpgt_1/lun/lun_0/disk {NODE}/tpgt_2/lun/lun_0/disk && echo LIO0002 >{DISK}/wwn/vpd_unit_serial && ln -s {DISK} {NODE}/tpgt_1/lun/lun_0/disk && echo 1 >{NODE}/tpgt_1/enable"));
    assert_eq!(here.write(8, &[4; 4096], OpFlags::NONE), BlkStatus::Offline);
    let (mut anew, _) = fixture(&lio.url(1, "?sessions=1"), 1);
    assert_eq!(anew.read(8, 4096).1, [3; 4096]);
}
