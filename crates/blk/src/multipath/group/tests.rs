// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of groups and paths, without I/O.

use super::*;

const T0: Instant = Instant::from_ns(1_000_000_000);

fn after(ms: u64) -> Instant {
    T0 + Duration::from_ms(ms)
}

/// Makes groups with these numbers of paths; the paths are numbered across all groups.
fn state(groups: &[usize], features: Features, has_handler: bool) -> GroupsState {
    let list = groups.iter().map(|_| Group { selector: Selector::RoundRobin, bypassed: false }).collect();
    let mut s = GroupsState::new(list, features, has_handler);
    let of = groups.iter().enumerate().flat_map(|(g, n)| vec![g; *n]);
    for (i, group) in of.enumerate() {
        s.paths[i] = Some(Path {
            name: format!("p{i}"),
            group,
            args: PathArgs::default(),
            is_active: true,
            fail_count: 0,
            is_leaving: false,
        });
    }
    s
}

fn queueing(secs: u64) -> Features {
    Features { queue_if_no_path: true, no_path_timeout: Duration::from_secs(secs), ..Features::default() }
}

fn p(n: u8) -> PathId {
    PathId(n)
}

const WAIT: Found = Found::Wait(Duration::from_ms(100));

#[test]
fn a_group_is_kept_while_it_has_a_path() {
    let mut s = state(&[2, 1, 1], Features::default(), false);
    assert_eq!(s.find(T0).0, Found::Paths(0b11));
    assert!(s.fail(p(0), T0));
    assert!(!s.fail(p(0), T0), "once");
    assert_eq!(s.find(T0).0, Found::Paths(0b10));
    s.fail(p(1), T0);
    assert_eq!(s.open(), 0);
    assert_eq!(s.find(T0).0, Found::Paths(0b100));
    // No automatic failback.
    assert!(s.reinstate(p(0)).unwrap().run);
    assert_eq!(s.reinstate(p(0)), None);
    assert_eq!(s.find(T0).0, Found::Paths(0b100));
    s.switch(0);
    assert_eq!(s.find(T0).0, Found::Paths(0b1));
    s.switch(1);
    s.fail(p(2), T0);
    assert_eq!(s.find(T0).0, Found::Paths(0b1), "a switch to a group without paths chooses anew");
    assert_eq!(s.paths[2].as_ref().unwrap().fail_count, 1);
}

#[test]
fn bypassed_groups_come_last() {
    let mut s = state(&[1, 1], Features::default(), false);
    s.bypass(0, true);
    assert_eq!(s.find(T0).0, Found::Paths(0b10));
    s.fail(p(1), T0);
    assert_eq!(s.find(T0).0, Found::Paths(0b01));
    s.reinstate(p(1));
    s.bypass(0, false);
    s.bypass(1, true);
    assert_eq!(s.find(T0).0, Found::Paths(0b01));
    s.switch(1);
    assert_eq!(s.find(T0).0, Found::Paths(0b10), "a switch ends it");
}

#[test]
fn without_a_path_requests_fail_or_wait_for_so_long() {
    let mut s = state(&[1], Features::default(), false);
    s.fail(p(0), T0);
    assert_eq!(s.find(T0).0, Found::Fail);
    assert!(!s.may_retry(T0, T0));
    let mut s = state(&[1], queueing(0), false);
    s.fail(p(0), T0);
    assert_eq!(s.find(after(1 << 40)).0, WAIT, "for ever");
    s.set_queueing(false, T0);
    assert_eq!(s.find(T0).0, Found::Fail);

    let mut s = state(&[1], queueing(2), false);
    s.fail(p(0), T0);
    assert_eq!(s.find(after(1850)).0, WAIT);
    assert_eq!(s.find(after(1950)).0, Found::Wait(Duration::from_ms(50)), "no longer than is left");
    // The path was reinstated in time and failed again, so the time restarts.
    s.reinstate(p(0));
    s.fail(p(0), after(1990));
    assert!(s.may_retry(T0, after(3900)));
    assert_eq!(s.find(after(3990)).0, Found::Fail);
    assert!(!s.features.queue_if_no_path, "it is off until it is set again");
    s.set_queueing(true, after(5000));
    assert_eq!(s.find(after(6999)).0, Found::Wait(Duration::from_ms(1)));
    assert_eq!(s.find(after(7000)).0, Found::Fail);
}

#[test]
fn a_group_is_activated_before_it_is_used() {
    let mut s = state(&[2, 1], Features::default(), true);
    let (found, wanted) = s.find(T0);
    assert_eq!(found, WAIT);
    assert_eq!(wanted, Wanted { activate: vec![p(0), p(1)], ..Wanted::default() });
    assert_eq!(s.find(T0), (WAIT, Wanted::default()), "it is being activated");
    assert_eq!(s.pg_init_done(p(0), PgInit::Done, T0), Wanted::default());
    assert_eq!(s.open(), 0, "the other one is not yet");
    assert_eq!(s.pg_init_done(p(1), PgInit::Done, T0), Wanted::RUN);
    assert_eq!(s.open(), 0b11);
    // A path that is reinstated in the current group is activated alone.
    s.fail(p(0), T0);
    assert_eq!(s.open(), 0b10);
    assert_eq!(s.reinstate(p(0)).unwrap().activate, [p(0)]);
    assert_eq!(s.pg_init_done(p(0), PgInit::Done, T0), Wanted::RUN);
}

#[test]
fn an_activation_is_retried_so_often_and_then_its_path_fails() {
    let delay = Some(Duration::from_ms(500));
    for (result, pg_init_delay, after) in [
        (PgInit::Retry, None, Duration::from_secs(2)),
        (PgInit::Retry, delay, Duration::from_ms(500)),
        (PgInit::RetryNow, delay, Duration::ZERO),
    ] {
        let features = Features { pg_init_retries: 2, pg_init_delay, ..Features::default() };
        let mut s = state(&[1, 1], features, true);
        assert_eq!(s.find(T0).1.activate, [p(0)]);
        for _ in 0..2 {
            let again = s.pg_init_done(p(0), result, T0);
            assert_eq!(again, Wanted { activate: vec![p(0)], after, ..Wanted::default() }, "{result:?}");
        }
        assert_eq!(s.pg_init_done(p(0), result, T0), Wanted { failed: Some(p(0)), ..Wanted::RUN });
        assert!(!s.paths[0].as_ref().unwrap().is_active);
        assert_eq!(s.find(T0).1.activate, [p(1)], "then the other group");
        assert_eq!(s.pg_init_count, 1);
    }
}

#[test]
fn busy_controller_switches_groups_and_failed_path_fails() {
    let mut s = state(&[1, 1], Features::default(), true);
    s.find(T0);
    assert!(s.pg_init_done(p(0), PgInit::Busy, T0).run);
    assert!(s.groups[0].bypassed);
    assert_eq!(s.find(T0).1.activate, [p(1)]);
    assert_eq!(s.pg_init_done(p(1), PgInit::Failed, T0).failed, Some(p(1)));
    assert_eq!(s.open(), 0);
    let (found, wanted) = s.find(T0);
    assert_eq!((found, wanted.activate), (WAIT, vec![p(0)]), "the bypassed one, after a while");
    assert_eq!(wanted.after, Duration::from_secs(2));
    s.pg_init_done(p(0), PgInit::Done, T0);
    assert!(!s.groups[0].bypassed);
    assert_eq!(s.open(), 0b1);
    s.pg_init_done(PathId(63), PgInit::Done, T0);
    assert_eq!(s.pg_init_done(p(1), PgInit::Failed, T0).failed, None, "it had failed");
}

#[test]
fn new_groups_are_a_new_table() {
    let mut s = state(&[1, 1, 0], Features::default(), false);
    assert_eq!(s.find(T0).0, Found::Paths(0b01));
    s.bypass(0, true);
    assert!(s.regroup(&[vec![p(1)], vec![p(0)]]).run);
    assert_eq!((s.open(), s.find(T0).0), (0, Found::Paths(0b10)), "the best, whatever was in use");
    s.regroup(&[vec![p(0), p(1)]]);
    assert_eq!(s.find(T0).0, Found::Paths(0b11));
    s.fail(p(1), T0);
    s.regroup(&[vec![p(1)], vec![p(0)]]);
    assert_eq!(s.find(T0).0, Found::Paths(0b01), "failed paths stay failed");
}

#[test]
fn new_groups_are_activated_when_what_is_out_has_ended() {
    let mut s = state(&[1, 1], Features::default(), true);
    let (found, wanted) = s.find(T0);
    assert_eq!((found, wanted.activate), (WAIT, vec![p(0)]));
    s.regroup(&[vec![p(1)], vec![p(0)]]);
    let (found, wanted) = s.find(T0);
    assert_eq!((found, wanted.activate), (WAIT, vec![]), "one is out");
    let wanted = s.pg_init_done(p(0), PgInit::Done, T0);
    assert_eq!((s.open(), wanted.activate), (0, vec![p(1)]));
    assert!(s.pg_init_done(p(1), PgInit::Done, T0).run);
    assert_eq!(s.open(), 0b10);
}

/// Giving up does not wait for a handler, and starts no activation.
#[test]
fn giving_up_does_not_wait_for_a_handler() {
    let mut s = state(&[1], queueing(0), true);
    s.gives_up = true;
    let (found, wanted) = s.find(T0);
    assert_eq!((found, wanted), (Found::Fail, Wanted::default()));
    s.gives_up = false;
    let (found, wanted) = s.find(T0);
    assert_eq!(found, WAIT);
    assert_ne!(wanted, Wanted::default());
    s.gives_up = true;
    assert_eq!(s.find(T0).0, Found::Fail, "its handler has not ended");
}
