// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logins against scripted targets.

use super::*;

fn wanted() -> Wanted {
    Wanted {
        initiator: "iqn.2026-11.test:me".into(),
        target: Some("iqn.2026-11.test:t1".into()),
        isid: [0x80, 1, 2, 3, 0, 0],
        chap: None,
        target_chap: None,
        challenge: [7; 16],
        header_digest: false,
        data_digest: false,
    }
}

fn chap(user: &str, password: &str) -> Option<Chap> {
    Some(Chap { user: user.into(), password: password.into() })
}

fn answer(stage: Stage, next: Option<Stage>) -> Pdu {
    Pdu::Login { tag: TAG, stage, next, more: false, tsih: 9, class: 0, detail: 0 }
}

const SECURITY: Stage = Stage::Security;
const OPERATIONAL: Option<Stage> = Some(Stage::Operational);

/// Returns the text of the request, with spaces for zero bytes.
fn said(login: &mut Login) -> String {
    let (_, text) = login.request().unwrap();
    String::from_utf8(text).unwrap().replace('\0', " ")
}

fn to_operational(login: &mut Login) {
    said(login);
    assert_eq!(login.feed(&answer(SECURITY, OPERATIONAL), b"AuthMethod=None\0"), Ok(Progress::Continue));
    said(login);
}

#[test]
fn a_session_without_a_login_is_negotiated() {
    let mut login = Login::new(wanted());
    assert!(said(&mut login).contains("TargetName=iqn.2026-11.test:t1 SessionType=Normal AuthMethod=None"));
    assert_eq!(
        login.feed(&answer(SECURITY, OPERATIONAL), b"AuthMethod=None\0TargetPortalGroupTag=1\0"),
        Ok(Progress::Continue)
    );
    assert!(said(&mut login).contains("InitialR2T=No ImmediateData=Yes"));
    let keys = b"HeaderDigest=None\0InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=65536\0FirstBurstLength=262144\0\
                 MaxRecvDataSegmentLength=16384\0MaxOutstandingR2T=Reject\0X-own=1\0";
    let params = Params {
        initial_r2t: false,
        immediate_data: true,
        first_burst: 65536,
        max_burst: 65536,
        max_send_data: 16384,
        tsih: 9,
        portal_group: Some(1),
        ..Params::default()
    };
    let done = login.feed(&answer(Stage::Operational, Some(Stage::FullFeature)), keys);
    assert_eq!(done, Ok(Progress::Done(params)));
}

#[test]
fn no_more_goes_unasked_than_was_offered() {
    let mut login = Login::new(wanted());
    to_operational(&mut login);
    let keys = b"MaxBurstLength=16777215\0FirstBurstLength=16777215\0";
    let done = login.feed(&answer(Stage::Operational, Some(Stage::FullFeature)), keys);
    let Ok(Progress::Done(params)) = done else { panic!("{done:?}") };
    assert_eq!((params.max_burst, params.first_burst), (16_776_192, 256 << 10));
}

#[test]
fn text_may_come_in_parts() {
    let mut login = Login::new(wanted());
    to_operational(&mut login);
    let part = Pdu::Login { tag: TAG, stage: Stage::Operational, next: None, more: true, tsih: 0, class: 0, detail: 0 };
    assert_eq!(login.feed(&part, b"MaxBurst"), Ok(Progress::Continue));
    assert_eq!(said(&mut login), "", "nothing is said until all is there");
    let done = login.feed(&answer(Stage::Operational, Some(Stage::FullFeature)), b"Length=1024\0");
    assert!(matches!(done, Ok(Progress::Done(Params { max_burst: 1024, first_burst: 1024, .. }))), "{done:?}");
}

fn through_chap(wanted: Wanted, proof: &dyn Fn(&str) -> String) -> Result<Progress, Failure> {
    let mut login = Login::new(wanted);
    said(&mut login);
    login.feed(&answer(SECURITY, None), b"AuthMethod=CHAP\0")?;
    assert_eq!(said(&mut login), "CHAP_A=5 ");
    login.feed(&answer(SECURITY, None), b"CHAP_A=5\0CHAP_I=1\0CHAP_C=0x6368616c6c656e6765\0")?;
    let ours = said(&mut login);
    let expected = chap::to_hex(&chap::respond(1, b"secret", b"challenge"));
    assert!(ours.contains(&format!("CHAP_N=me CHAP_R={expected}")), "{ours}");
    login.feed(&answer(SECURITY, OPERATIONAL), proof(&ours).as_bytes())
}

#[test]
fn chap_goes_one_way_and_both_ways() {
    let one = Wanted { chap: chap("me", "secret"), ..wanted() };
    assert_eq!(through_chap(one.clone(), &|_| String::new()), Ok(Progress::Continue));
    let both = Wanted { target_chap: chap("it", "other"), ..one };
    let right = chap::to_hex(&chap::respond(OUR_ID, b"other", &[7; 16]));
    let proof = |ours: &str| {
        assert!(ours.contains(&format!("CHAP_C={}", chap::to_hex(&[7; 16]))), "{ours}");
        format!("CHAP_N=it\0CHAP_R={right}\0")
    };
    assert_eq!(through_chap(both.clone(), &proof), Ok(Progress::Continue));
    for bad in ["", "CHAP_N=it\0CHAP_R=0x00\0", "CHAP_N=it\0"] {
        let refused = through_chap(both.clone(), &|_| bad.to_owned());
        assert!(matches!(refused, Err(Failure::Impostor(_))), "{bad}: {refused:?}");
    }
    let stranger = through_chap(both, &|_| format!("CHAP_N=who\0CHAP_R={right}\0"));
    assert!(matches!(stranger, Err(Failure::Impostor(_))), "{stranger:?}");
}

#[test]
fn a_user_goes_on_without_a_proof_where_none_is_wanted() {
    let mut login = Login::new(Wanted { chap: chap("me", "secret"), ..wanted() });
    assert!(said(&mut login).ends_with("SessionType=Normal AuthMethod=CHAP,None "));
    assert_eq!(login.feed(&answer(SECURITY, OPERATIONAL), b"AuthMethod=None\0"), Ok(Progress::Continue));
    let _ = said(&mut login);
    assert!(said(&mut login).starts_with("HeaderDigest=None"));
    let done = login.feed(&answer(Stage::Operational, Some(Stage::FullFeature)), b"");
    assert!(matches!(done, Ok(Progress::Done(_))), "{done:?}");
}

#[test]
fn a_target_that_skips_its_proof_is_refused() {
    let both = Wanted { chap: chap("me", "secret"), target_chap: chap("it", "other"), ..wanted() };
    let mut login = Login::new(both.clone());
    said(&mut login);
    let refused = login.feed(&answer(SECURITY, OPERATIONAL), b"AuthMethod=None\0");
    assert!(matches!(refused, Err(Failure::Impostor(_))), "{refused:?}");
    // The target sends the challenge that the initiator is about to send, to get the answer.
    let mut login = Login::new(both);
    said(&mut login);
    login.feed(&answer(SECURITY, None), b"AuthMethod=CHAP\0").unwrap();
    said(&mut login);
    let reflected = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C={}\0", chap::to_hex(&[7; 16]));
    let refused = login.feed(&answer(SECURITY, None), reflected.as_bytes());
    assert!(matches!(refused, Err(Failure::Impostor(_))), "{refused:?}");
}

#[test]
fn refusals_say_what_to_do() {
    for (class, detail, chap, part) in [
        (2, 1, chap("me", "x"), "user 'me'"),
        (2, 1, None, "write USER@"),
        (2, 2, None, "initiator="),
        (2, 3, None, "no target iqn.2026-11.test:t1"),
        (3, 1, None, "iqn.2026-11.test:t1 is unavailable, or unknown"),
        (3, 2, None, "is unavailable (target error 0x02)"),
        (9, 9, None, "status"),
    ] {
        let mut login = Login::new(Wanted { chap, ..wanted() });
        said(&mut login);
        let refused = Pdu::Login { tag: TAG, stage: SECURITY, next: None, more: false, tsih: 0, class, detail };
        let error = Error::from(login.feed(&refused, b"").unwrap_err()).to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut login = Login::new(wanted());
    said(&mut login);
    let moved = Pdu::Login { tag: TAG, stage: SECURITY, next: None, more: false, tsih: 0, class: 1, detail: 1 };
    assert_eq!(
        login.feed(&moved, b"TargetAddress=10.0.0.1:3261,1\0"),
        Ok(Progress::Redirect("10.0.0.1:3261,1".into()))
    );
}

#[test]
fn what_was_not_offered_or_is_out_of_range_is_refused() {
    for keys in [
        &b"MaxBurstLength=511\0"[..],
        b"MaxRecvDataSegmentLength=16777216\0",
        b"HeaderDigest=CRC32C\0",
        b"ErrorRecoveryLevel=2\0",
        b"DataPDUInOrder=No\0",
        b"no key\0",
        b"\xff=\xff\0",
    ] {
        let mut login = Login::new(wanted());
        to_operational(&mut login);
        let refused = login.feed(&answer(Stage::Operational, Some(Stage::FullFeature)), keys);
        assert!(matches!(refused, Err(Failure::Violation(_))), "{refused:?}");
    }
    let mut login = Login::new(Wanted { header_digest: true, ..wanted() });
    to_operational(&mut login);
    let none = login.feed(&answer(Stage::Operational, Some(Stage::FullFeature)), b"HeaderDigest=None\0");
    assert!(matches!(none, Err(Failure::Refused(_))), "{none:?}");
}

#[test]
fn a_login_that_goes_round_ends() {
    let mut login = Login::new(wanted());
    for _ in 0..MAX_ROUNDS {
        login.request().unwrap();
        assert_eq!(login.feed(&answer(SECURITY, None), b"AuthMethod=None\0"), Ok(Progress::Continue));
    }
    assert!(matches!(login.request(), Err(Failure::Violation(_))));
}

#[test]
fn targets_that_were_found_are_listed() {
    let text = b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[::1]:3260,2\0TargetName=iqn.b\0";
    let all = found(text).unwrap();
    let at = |address: &str, group| FoundPortal { address: address.into(), group };
    assert_eq!(all[0].name, "iqn.a");
    assert_eq!(all[0].portals, [at("10.0.0.1:3260", Some(1)), at("[::1]:3260", Some(2))]);
    assert_eq!(all[1], Found { name: "iqn.b".into(), portals: vec![] });
    for text in [&b"TargetName=iqn.\x1b[2J\0"[..], b"TargetName=a\0TargetAddress=h:1\n,1\0", &[b'a'; 400]] {
        assert!(found(text).is_err(), "{text:?}");
    }
}
