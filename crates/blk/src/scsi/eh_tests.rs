// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Aborts that wait for each other; `tests/it/core_scsi_eh.rs` tests the rest of the ladder on a debug host.

use super::*;

const PATIENCE: EhOptions =
    EhOptions { eh_timeout: EH_TIMEOUT, eh_deadline: None, host_reset: EH_TIMEOUT, allow_restart: false };

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn id(tag: u32) -> CommandId {
    CommandId { lun: LunId(0), hctx: HctxId::new(0), tag: Tag::new(tag) }
}

/// Carries out all actions that are due, with `say` as the result of an abort. Returns the tags of the aborts.
fn aborts(ladder: &mut EhLadder, now: Instant, say: impl Fn(u32) -> Abort) -> Vec<u32> {
    let mut asked = Vec::new();
    while let Some(ask) = ladder.next(now, 2) {
        let EhAction::Abort(id, _) = ask else { panic!("{ask:?}") };
        let tag = id.tag.index() as u32;
        asked.push(tag);
        ladder.result(&ask, EhResult::Abort(say(tag)), now);
    }
    asked
}

fn two_late() -> EhLadder {
    let mut ladder = EhLadder::new(PATIENCE);
    (0..2).for_each(|tag| ladder.late(id(tag), at(0)));
    ladder
}

#[test]
fn the_time_of_an_abort_begins_with_its_turn() {
    let mut ladder = two_late();
    let first = |tag| if tag == 0 { Abort::Begun } else { Abort::Waits };
    assert_eq!(aborts(&mut ladder, at(1), first), [0, 1]);
    assert_eq!(aborts(&mut ladder, at(9), first), [0, 1]);
    // The first abort is done in time.
    assert_eq!(aborts(&mut ladder, at(10), |tag| if tag == 0 { Abort::Gone } else { Abort::Begun }), [0, 1]);
    assert_eq!(aborts(&mut ladder, at(19), |_| Abort::Begun), [1]);
    assert!(!ladder.is_recovering(), "10 s have not passed since its turn came");
    assert_eq!(aborts(&mut ladder, at(20), |_| Abort::Begun), []);
    assert!(ladder.is_recovering());
}

#[test]
fn a_turn_that_never_comes_is_not_waited_for() {
    let mut ladder = two_late();
    let first = |tag| if tag == 0 { Abort::Begun } else { Abort::Waits };
    assert_eq!(aborts(&mut ladder, at(1), first), [0, 1]);
    assert_eq!(aborts(&mut ladder, at(10), first), [0, 1]);
    // The first abort has used up its time: from now on the time of the second runs.
    assert_eq!(aborts(&mut ladder, at(11), first), [1]);
    assert!(ladder.is_recovering());
    assert_eq!(aborts(&mut ladder, at(20), first), [1]);
    let ask = ladder.next(at(21), 2).expect("it has failed as well, and the ladder is climbed");
    assert!(!matches!(ask, EhAction::Abort(id, _) if id.tag.index() == 1), "{ask:?}");
}

#[test]
fn an_abort_waits_for_others_only_so_long() {
    let mut ladder = two_late();
    // The first abort gets no answer, and its command completes by itself.
    let waits = |_| Abort::Waits;
    let all = |seconds: std::ops::Range<u64>, ladder: &mut EhLadder| {
        seconds.into_iter().for_each(|t| assert_eq!(aborts(ladder, at(t), waits), [0, 1], "at {t} s"));
    };
    all(1..31, &mut ladder);
    assert!(!ladder.is_recovering());
    assert_eq!(ladder.next(at(31), 2), Some(EhAction::Reset(Reset::Lun, LunId(0))), "30 s after it was asked for");
    // While recovery gives up, an abort that waits for others gets no more time.
    let mut ladder = two_late();
    all(1..9, &mut ladder);
    ladder.set_give_up(true);
    assert_eq!(aborts(&mut ladder, at(10), waits), [0, 1]);
    assert_eq!(ladder.next(at(18), 2), Some(EhAction::Reset(Reset::Lun, LunId(0))));
}

#[test]
fn aborts_go_in_the_order_in_which_commands_were_late() {
    let mut ladder = EhLadder::new(PATIENCE);
    (0..4).for_each(|tag| ladder.late(id(tag), at(0)));
    assert_eq!(aborts(&mut ladder, at(1), |tag| if tag == 0 { Abort::Gone } else { Abort::Waits }), [0, 1, 2, 3]);
    assert_eq!(aborts(&mut ladder, at(2), |_| Abort::Waits), [1, 2, 3]);
}

#[test]
fn an_abort_whose_turn_comes_late_has_all_of_its_time() {
    let mut ladder = two_late();
    (1..30).for_each(|t| drop(aborts(&mut ladder, at(t), |_| Abort::Waits)));
    assert_eq!(aborts(&mut ladder, at(30), |_| Abort::Begun), [0, 1]);
    assert_eq!(aborts(&mut ladder, at(39), |_| Abort::Begun), [0, 1]);
    assert!(!ladder.is_recovering());
    assert_eq!(ladder.next(at(40), 2), Some(EhAction::Reset(Reset::Lun, LunId(0))));
}
