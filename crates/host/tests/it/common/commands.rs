// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SCSI passthrough commands, to any target.

use super::initiator::fixture;
use blk::bio::OpFlags;
use blk::id::HctxId;
use blk::scsi::cdb::Cdb;
use blk::scsi::disposition::{HostByte, sam};
use blk::scsi::sense::{Sense, SenseKey};
use blk::status::BlkStatus;
use blk::time::Duration;
use host::driver::HostDriver;
use host::driver::iscsi::Iscsi;
use host::driver::{RawAnswer, RawCommand};

/// Sends a command by the first queue, which must be answered.
pub fn raw(driver: &Iscsi, cdb: &[u8], data_out: &[u8], data_in: usize) -> RawAnswer {
    let command = RawCommand { cdb, data_out, data_in, timeout: Duration::from_secs(30) };
    let answer = driver.execute(HctxId::new(0), &command).unwrap();
    assert_eq!(answer.host, HostByte::Ok);
    answer
}

/// Does the same, and repeats the command if the target first reported a unit attention.
pub fn raw_after_attention(driver: &Iscsi, cdb: &[u8], data_out: &[u8], data_in: usize) -> RawAnswer {
    let answer = raw(driver, cdb, data_out, data_in);
    let has_news = Sense::parse(&answer.sense).is_some_and(|s| s.key == SenseKey::UnitAttention);
    if has_news { raw(driver, cdb, data_out, data_in) } else { answer }
}

/// PERSISTENT RESERVE OUT.
fn reserve(driver: &Iscsi, action: u8, key: u64, service_key: u64) -> RawAnswer {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&service_key.to_be_bytes());
    // Write exclusive.
    raw_after_attention(driver, Cdb::persistent_reserve_out(action, 1, 24).as_bytes(), &list, 0)
}

/// Two initiators reserve a disk, and one preempts the other. `url` gives the disk's URL for each initiator name.
pub fn reservations(url: impl Fn(&str) -> String) {
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    const PREEMPT: u8 = 4;
    let url = |who: &str| url(&format!("?sessions=1&initiator=iqn.2026-11.test:{who}"));
    let ((mut a, a_driver), (mut b, b_driver)) = (fixture(&url("a"), 1), fixture(&url("b"), 1));
    assert_eq!(reserve(&a_driver, REGISTER, 0, 0xa).status, sam::GOOD);
    assert_eq!(reserve(&b_driver, REGISTER, 0, 0xb).status, sam::GOOD);
    let keys = raw(&a_driver, Cdb::persistent_reserve_in(0, 256).as_bytes(), &[], 256);
    let registered: Vec<u64> =
        keys.data[8..].chunks_exact(8).map(|k| u64::from_be_bytes(k.try_into().unwrap())).take(2).collect();
    assert!(registered.contains(&0xa) && registered.contains(&0xb), "{:x?}", keys.data);
    assert_eq!(reserve(&a_driver, RESERVE, 0xa, 0).status, sam::GOOD);
    assert_eq!(a.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(b.write(8, &[2; 4096], OpFlags::NONE), BlkStatus::ResvConflict);
    let troubles = b_driver.path().troubles().join("; ");
    assert!(troubles.contains("Status: Reservation Conflict; CDB: Write(10), LBA 8, 8 blocks"), "{troubles}");
    let refused = reserve(&b_driver, RESERVE, 0xb, 0);
    assert_eq!((refused.status, refused.blk_status), (sam::RESERVATION_CONFLICT, BlkStatus::ResvConflict));
    assert_eq!(reserve(&b_driver, PREEMPT, 0xb, 0xa).status, sam::GOOD);
    assert_eq!(b.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(a.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::ResvConflict);
    assert_eq!(a.read(0, 4096).1, [2; 4096]);
}
