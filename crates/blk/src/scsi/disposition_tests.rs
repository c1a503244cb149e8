// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each outcome that a device or transport reports, and the kernel's decision about it.

use super::*;
use Verdict::{End, Recover, Requeue, Retry};

fn verdict(outcome: &Outcome) -> Verdict {
    judge(outcome, &About::default()).verdict
}

fn sense(key: SenseKey, asc: u8, ascq: u8) -> Outcome {
    Outcome::check(Sense::new(key, asc, ascq))
}

#[test]
fn sense_data_decides_as_in_the_kernel() {
    use SenseKey::*;
    let cases = [
        (NoSense, 0, 0, End(BlkStatus::Ok)),
        (RecoveredError, 0x17, 1, End(BlkStatus::Ok)),
        (AbortedCommand, 0x10, 1, End(BlkStatus::Protection)),
        (AbortedCommand, 0x2e, 2, End(BlkStatus::DurationLimit)),
        (AbortedCommand, 0x47, 0, Retry),
        (NotReady, 0x04, 0x01, Requeue(Some(RETRY_DELAY))),
        (NotReady, 0x04, 0x0a, Requeue(Some(RETRY_DELAY))),
        (NotReady, 0x04, 0x0b, End(BlkStatus::Transport)),
        (NotReady, 0x3a, 0x00, End(BlkStatus::IoErr)),
        (UnitAttention, 0x29, 0x00, Requeue(None)),
        (UnitAttention, 0x3f, 0x0e, Requeue(None)),
        (MediumError, 0x11, 0x00, End(BlkStatus::Medium)),
        (MediumError, 0x14, 0x01, End(BlkStatus::Medium)),
        (MediumError, 0x0c, 0x00, Retry),
        (HardwareError, 0x44, 0x00, End(BlkStatus::Target)),
        (IllegalRequest, 0x20, 0x00, End(BlkStatus::Target)),
        (IllegalRequest, 0x21, 0x00, End(BlkStatus::Target)),
        (IllegalRequest, 0x25, 0x00, End(BlkStatus::IoErr)),
        (DataProtect, 0x27, 0x07, End(BlkStatus::NoSpc)),
        (DataProtect, 0x27, 0x00, End(BlkStatus::Target)),
        (BlankCheck, 0, 0, End(BlkStatus::Target)),
        (CopyAborted, 0, 0, End(BlkStatus::Target)),
        (VolumeOverflow, 0, 0, End(BlkStatus::Target)),
        (Miscompare, 0x1d, 0, End(BlkStatus::Target)),
        (VendorSpecific, 0x80, 0, End(BlkStatus::IoErr)),
    ];
    for (key, asc, ascq, expected) in cases {
        assert_eq!(verdict(&sense(key, asc, ascq)), expected, "{key:?} {asc:02x}/{ascq:02x}");
    }
}

#[test]
fn status_and_transport_decide_as_in_the_kernel() {
    let status = |status| Outcome { status, ..Outcome::GOOD };
    assert_eq!(verdict(&Outcome::GOOD), End(BlkStatus::Ok));
    assert_eq!(verdict(&status(sam::CONDITION_MET)), End(BlkStatus::Ok));
    assert_eq!(verdict(&status(sam::BUSY)), Requeue(Some(BUSY_DELAY)));
    assert_eq!(verdict(&status(sam::TASK_SET_FULL)), Requeue(Some(BUSY_DELAY)));
    assert_eq!(verdict(&status(sam::TASK_ABORTED)), Retry);
    assert_eq!(verdict(&status(sam::RESERVATION_CONFLICT)), End(BlkStatus::ResvConflict));
    assert_eq!(verdict(&status(sam::CHECK_CONDITION)), Recover, "no sense data");
    assert_eq!(verdict(&status(0x77)), Recover);
    let hosts = [
        (HostByte::NoConnect, End(BlkStatus::IoErr)),
        (HostByte::BadTarget, End(BlkStatus::IoErr)),
        (HostByte::Abort, End(BlkStatus::IoErr)),
        (HostByte::TransportFailfast, End(BlkStatus::Transport)),
        (HostByte::TransportMarginal, End(BlkStatus::Transport)),
        (HostByte::SoftError, Retry),
        (HostByte::Error, Retry),
        (HostByte::BusBusy, Retry),
        (HostByte::TransportDisrupted, Retry),
        (HostByte::Parity, Retry),
        (HostByte::Reset, Retry),
        (HostByte::ImmRetry, Retry),
        (HostByte::Requeue, Requeue(None)),
        (HostByte::TimeOut, Recover),
    ];
    for (host, expected) in hosts {
        assert_eq!(verdict(&Outcome::host(host)), expected, "{host:?}");
    }
    let conflict = Outcome { status: sam::RESERVATION_CONFLICT, ..Outcome::host(HostByte::Error) };
    assert_eq!(verdict(&conflict), End(BlkStatus::ResvConflict));
}

#[test]
fn what_lacks_data_has_not_gone_well() {
    let recovered = sense(SenseKey::RecoveredError, 0x17, 1);
    for all_is_well in [Outcome::GOOD, Outcome { status: sam::CONDITION_MET, ..Outcome::GOOD }, recovered] {
        let short = Outcome { residual: 512, ..all_is_well };
        assert_eq!((verdict(&all_is_well), verdict(&short)), (End(BlkStatus::Ok), Retry));
        let last = About { is_last: true, ..About::default() };
        assert_eq!(judge(&short, &last).verdict, End(BlkStatus::IoErr));
    }
    let refused = Outcome { residual: 512, ..sense(SenseKey::IllegalRequest, 0x21, 0) };
    assert_eq!(verdict(&refused), End(BlkStatus::Target), "it has not gone well anyway");
}

#[test]
fn tries_and_time_end() {
    let again = [Outcome::host(HostByte::SoftError), sense(SenseKey::MediumError, 0x0c, 0)];
    for outcome in again {
        let last = About { is_last: true, ..About::default() };
        assert_eq!(judge(&outcome, &last).verdict, End(BlkStatus::IoErr));
    }
    // A command whose attempts do not count as retries is sent again until its time is used up.
    let attention = sense(SenseKey::UnitAttention, 0x29, 0);
    assert_eq!(judge(&attention, &About { is_last: true, ..About::default() }).verdict, Requeue(None));
    let late = About { is_late: true, ..About::default() };
    assert_eq!(judge(&attention, &late).verdict, End(BlkStatus::IoErr));
    assert_eq!(judge(&sense(SenseKey::NotReady, 4, 0x0a), &late).verdict, End(BlkStatus::Transport));
    assert_eq!(judge(&Outcome::GOOD, &late).verdict, End(BlkStatus::Ok));
}

#[test]
fn failfast_ends_what_it_names_at_once() {
    let with = |failfast| About { failfast, ..About::default() };
    let path = Failfast { transport: true, ..Failfast::default() };
    let disrupted = Outcome::host(HostByte::TransportDisrupted);
    assert_eq!(judge(&disrupted, &with(path)).verdict, End(BlkStatus::IoErr));
    assert_eq!(judge(&Outcome::host(HostByte::Error), &with(path)).verdict, Retry);
    let device = Failfast { device: true, ..Failfast::default() };
    assert_eq!(judge(&sense(SenseKey::MediumError, 0x0c, 0), &with(device)).verdict, End(BlkStatus::IoErr));
    assert_eq!(judge(&disrupted, &with(device)).verdict, Retry);
}

#[test]
fn a_device_that_does_not_know_unmap_says_so() {
    let unknown = sense(SenseKey::IllegalRequest, 0x20, 0);
    let about = About { is_optional: true, ..About::default() };
    assert_eq!(judge(&unknown, &about).verdict, End(BlkStatus::NotSupp));
    assert_eq!(judge(&sense(SenseKey::IllegalRequest, 0x21, 0), &about).verdict, End(BlkStatus::Target));
}

#[test]
fn what_is_said_about_the_device_is_heard() {
    let of = |outcome: &Outcome| judge(outcome, &About::default()).event;
    let attention = |asc, ascq| of(&sense(SenseKey::UnitAttention, asc, ascq));
    assert_eq!(of(&Outcome { status: sam::TASK_SET_FULL, ..Outcome::GOOD }), DeviceEvent::QueueFull);
    assert_eq!(of(&Outcome::GOOD), DeviceEvent::Good);
    assert_eq!(attention(0x2a, 0x09), DeviceEvent::CapacityChanged);
    assert_eq!(attention(0x3f, 0x0e), DeviceEvent::Changed);
    assert_eq!(attention(0x3f, 0x03), DeviceEvent::Changed);
    for (asc, ascq) in [(0x29, 0), (0x29, 4), (0x2a, 1), (0x2a, 6), (0x2a, 7)] {
        assert_eq!(attention(asc, ascq), DeviceEvent::StateChanged);
    }
    assert_eq!(of(&sense(SenseKey::MediumError, 0x11, 0)), DeviceEvent::None);
}

#[test]
fn every_answer_of_a_device_has_a_verdict() {
    for key in 0..16_u8 {
        for asc in 0..=255 {
            for ascq in 0..=255 {
                let bytes = [0x72, key, asc, ascq, 0, 0, 0, 0];
                let outcome = Outcome::check(Sense::parse(&bytes).unwrap());
                let judged = judge(&outcome, &About { is_last: true, is_late: true, ..About::default() });
                assert!(matches!(judged.verdict, End(_)), "{outcome:?}: {judged:?}");
            }
        }
    }
}
