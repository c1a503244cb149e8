// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every fault that a block can have is found and named.

use super::progress::Completions;
use super::*;
use crate::job::{BlockSizes, PerDir, Rw, SizeWeight};
use sim::rng::Rng;

const KINDS: [VerifyKind; 4] = [VerifyKind::Crc32c, VerifyKind::Md5, VerifyKind::Sha256, VerifyKind::Xxhash];
const STAMP: Stamp = Stamp { seed: 0x1234_5678_9abc_def1, number: 7 };
const OFFSET: u64 = 1 << 33;

fn verifier(kind: VerifyKind, set: impl FnOnce(&mut Job)) -> Verifier {
    let mut job = Job::new("v");
    job.rw = Rw { mode: RwMode::Write, random: false };
    job.verify = Some(kind);
    set(&mut job);
    Verifier::new(&job, 3).unwrap().expect("the job verifies")
}

fn block(v: &Verifier, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    v.prepare(&mut buf, OFFSET, STAMP, Instant::from_ns(5_000_000_009));
    buf
}

fn fault(v: &mut Verifier, buf: &[u8], offset: u64, expect: Expect) -> Option<Fault> {
    v.check(buf, offset, expect).err().map(|e| e.fault)
}

#[test]
fn each_fault_is_found_and_named() {
    for kind in KINDS {
        let mut v = verifier(kind, |_| ());
        let good = block(&v, 4096);
        let exactly = Expect::Exactly(STAMP);
        assert_eq!(fault(&mut v, &good, OFFSET, exactly), None);
        assert_eq!(fault(&mut v, &good, OFFSET, Expect::Valid), None);
        let mut bad = |at: usize, expect| {
            let mut buf = good.clone();
            buf[at] ^= 0x40;
            fault(&mut v, &buf, OFFSET, expect)
        };
        assert!(matches!(bad(0, exactly), Some(Fault::Magic(_))));
        assert!(matches!(bad(4, exactly), Some(Fault::Length(_))));
        assert!(matches!(bad(8, exactly), Some(Fault::Seed { .. })));
        assert!(matches!(bad(17, exactly), Some(Fault::Misplaced(_))));
        assert!(matches!(bad(34, exactly), Some(Fault::Stale { want: 7, .. })));
        assert_eq!(bad(25, Expect::Valid), Some(Fault::HeaderChecksum), "the time is covered by the header's checksum");
        for at in [header::LEN, header_len(kind), 2000, 4095] {
            assert_eq!(bad(at, Expect::Valid), Some(Fault::Checksum), "{kind:?} byte {at}");
        }
    }
}

#[test]
fn older_and_misplaced_blocks_are_not_accepted() {
    let mut v = verifier(VerifyKind::Crc32c, |_| ());
    let good = block(&v, 4096);
    let newer = Expect::Exactly(Stamp { seed: 99, number: 8 });
    assert_eq!(fault(&mut v, &good, OFFSET, newer), Some(Fault::Stale { got: 7, want: 8 }));
    assert_eq!(fault(&mut v, &good, OFFSET + 4096, Expect::Valid), Some(Fault::Misplaced(OFFSET)));
    let e = v.check(&good, OFFSET + 4096, Expect::Valid).unwrap_err().to_string();
    assert_eq!(e, "verify crc32c: block belongs to offset 8589934592 at offset 8589938688, length 4096");
}

#[test]
fn varying_sizes_carry_a_header_every_smallest_block() {
    let sizes = BlockSizes::Range { min_bytes: 1024, max_bytes: 8192 };
    let mut v = verifier(VerifyKind::Md5, |j| j.block_sizes = PerDir::all(sizes));
    let buf = block(&v, 4096);
    let mut reader = verifier(VerifyKind::Md5, |j| j.block_sizes = PerDir::all(BlockSizes::Fixed(1024)));
    for i in 0..4u64 {
        let part = &buf[i as usize * 1024..][..1024];
        assert_eq!(fault(&mut reader, part, OFFSET + i * 1024, Expect::Valid), None);
    }
    let mut bad = buf.clone();
    bad[2048 + 500] ^= 1;
    let e = v.check(&bad, OFFSET, Expect::Exactly(STAMP)).unwrap_err();
    assert_eq!((e.offset, e.len, e.fault), (OFFSET + 2048, 1024, Fault::Checksum));
}

#[test]
fn a_pattern_has_no_header_and_names_the_wrong_byte() {
    let pattern = Pattern { bytes: vec![0xaa, 0, 0, 0, 0, 0, 0, 0, 0, 0xbb], offset_at: vec![1] };
    let mut v = verifier(VerifyKind::Pattern, |j| j.verify_pattern = Some(pattern));
    let buf = block(&v, 1000);
    assert_eq!(buf[..10], [0xaa, 0, 0, 0, 0, 2, 0, 0, 0, 0xbb], "the offset stands where %o is");
    assert_eq!(fault(&mut v, &buf, OFFSET, Expect::Valid), None);
    let mut bad = buf.clone();
    bad[999] = 0;
    assert_eq!(fault(&mut v, &bad, OFFSET, Expect::Valid), Some(Fault::Content { at: 999, got: 0, want: 0xbb }));
    assert!(fault(&mut v, &buf, OFFSET + 512, Expect::Valid).is_some(), "another offset is another pattern");
}

#[test]
fn a_right_checksum_over_a_wrong_body_is_found() {
    // A block of the same write, offset and number, but with another body: only the comparison of the body can tell.
    let mut v = verifier(VerifyKind::Xxhash, |_| ());
    let mut buf = block(&v, 4096);
    buf[3000] ^= 1;
    let (head, body) = buf.split_at_mut(header_len(VerifyKind::Xxhash));
    digest::store(VerifyKind::Xxhash, body, &mut head[header::LEN..]);
    assert_eq!(fault(&mut v, &buf, OFFSET, Expect::Valid), None);
    assert!(matches!(fault(&mut v, &buf, OFFSET, Expect::Exactly(STAMP)), Some(Fault::Content { at: 3000, .. })));
}

#[test]
fn blocks_too_small_for_their_header_are_refused() {
    let mut job = Job::new("v");
    job.rw = Rw { mode: RwMode::Write, random: false };
    job.verify = Some(VerifyKind::Sha256);
    job.block_sizes = PerDir::all(BlockSizes::Fixed(104));
    let e = Verifier::new(&job, 1).unwrap_err().to_string();
    assert_eq!(e, "bs=104: verify=sha256 puts 104 bytes in front of every block; raise bs to 512 or more (job 'v')");
}

/// All lengths of I/Os that `job` writes, or reads and verifies.
fn lengths_by_hand(job: &Job) -> Vec<u64> {
    let of = |sizes: &BlockSizes| -> Vec<u64> {
        match sizes {
            BlockSizes::Fixed(bytes) => vec![*bytes],
            BlockSizes::Range { min_bytes, max_bytes } if job.bs_unaligned => (*min_bytes..=*max_bytes).collect(),
            BlockSizes::Range { min_bytes, max_bytes } => {
                (*min_bytes..=*max_bytes).step_by(*min_bytes as usize).chain([*max_bytes]).collect()
            }
            BlockSizes::Split(split) => split.iter().filter(|s| s.pct > 0).map(|s| s.bytes).collect(),
        }
    };
    let reads = job.rw.mode == RwMode::Read || job.bs_is_seq_rand;
    let used: Vec<&BlockSizes> = [(reads, &job.block_sizes.read), (job.rw.has(Dir::Write), &job.block_sizes.write)]
        .into_iter()
        .filter_map(|(is_used, sizes)| is_used.then_some(sizes))
        .collect();
    let mut lengths: Vec<u64> = used.iter().copied().flat_map(of).collect();
    if job.rw.random {
        let largest = used.iter().map(|sizes| sizes.max_bytes()).max().unwrap_or(0);
        let shortened = used.iter().flat_map(|sizes| (sizes.min_bytes()..=largest).step_by(sizes.min_bytes() as usize));
        lengths.extend(shortened);
    }
    lengths
}

/// A write of 65,537 bytes with a header every 4096 panicked: the last byte has no room for one.
#[test]
fn every_size_of_an_accepted_job_has_room_for_its_headers() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..4000 {
        let mut rng = Rng::new(seed);
        let mut sizes = || match rng.below(3) {
            0 => BlockSizes::Fixed(100 + rng.below(3000)),
            1 => {
                let min_bytes = 100 + rng.below(1000);
                BlockSizes::Range {
                    min_bytes,
                    max_bytes: min_bytes * (1 + rng.below(4)) + rng.below(2) * rng.below(200),
                }
            }
            _ => BlockSizes::Split((0..3).map(|_| SizeWeight { bytes: 100 * (1 + rng.below(30)), pct: 33 }).collect()),
        };
        let mut job = Job::new("v");
        (job.block_sizes.read, job.block_sizes.write) = (sizes(), sizes());
        job.rw = Rw {
            mode: [RwMode::Read, RwMode::Write, RwMode::ReadWrite][rng.below(3) as usize],
            random: rng.below(2) == 0,
        };
        (job.bs_is_seq_rand, job.bs_unaligned) = (rng.below(3) == 0, rng.below(4) == 0);
        job.verify = Some(VerifyKind::Crc32c);
        job.verify_interval = (rng.below(3) == 0).then(|| 80 + rng.below(1000));
        let lengths = lengths_by_hand(&job);
        let Ok(verifier) = Verifier::new(&job, 1) else {
            let distance = interval(&job);
            let has_room = |len: &u64| !(1..=44).contains(&if job.bs_unaligned { *len } else { len % distance });
            assert!(distance <= 44 || !lengths.iter().all(has_room), "seed {seed} is refused: {job:?}");
            refused += 1;
            continue;
        };
        let mut verifier = verifier.expect("the job verifies");
        for len in lengths {
            let good = block(&verifier, len as usize);
            assert_eq!(fault(&mut verifier, &good, OFFSET, Expect::Valid), None, "seed {seed}: {len}");
        }
        accepted += 1;
    }
    assert!(accepted > 500 && refused > 500, "{accepted} and {refused}");
}

#[test]
fn a_bad_block_is_dumped_beside_what_it_should_be() {
    let set: fn(&mut Job) = |j| {
        j.verify_dump = true;
        (j.verify_interval, j.verify_offset) = (Some(1024), Some(300));
    };
    for kind in KINDS {
        let mut v = verifier(kind, set);
        let good = block(&v, 4096);
        let mut dump = |at: usize, expect| {
            let mut bad = good.clone();
            bad[at] ^= 1;
            (v.check(&bad, OFFSET, expect).unwrap_err().dump.expect("the job dumps"), bad)
        };
        for expect in [Expect::Valid, Expect::Exactly(STAMP)] {
            let (found, bad) = dump(2048 + 20, expect);
            assert_eq!((found.offset, &found.received[..]), (OFFSET + 2048, &bad[2048..3072]));
            assert_eq!(found.expected.as_deref(), Some(&good[2048..3072]), "{kind:?} {expect:?}");
            let (found, _) = dump(300, expect);
            assert_eq!((found.offset, found.expected.is_none(), found.parts()[0].0), (OFFSET, true, "hdr_fail"));
        }
    }
    let mut v = verifier(VerifyKind::Crc32c, |j| (j.verify_dump, j.verify_header_seed) = (true, false));
    let good = block(&v, 4096);
    let mut bad = good.clone();
    bad[2000] ^= 1;
    let found = v.check(&bad, OFFSET, Expect::Exactly(Stamp { seed: 1, ..STAMP })).unwrap_err().dump.unwrap();
    assert!(found.expected == Some(good), "its data is that of its own seed");
    let mut v = verifier(VerifyKind::Crc32c, |_| ());
    assert_eq!(v.check(&[0; 4096], OFFSET, Expect::Valid).unwrap_err().dump, None, "only if it is asked for");
}

#[test]
fn number_and_seed_are_checked_unless_told_otherwise() {
    let other = Expect::Exactly(Stamp { seed: 1, number: 8 });
    for (number, seed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut v = verifier(VerifyKind::Md5, |j| (j.verify_write_sequence, j.verify_header_seed) = (number, seed));
        let good = block(&v, 4096);
        let found = fault(&mut v, &good, OFFSET, other);
        let expected = match (number, seed) {
            (true, _) => Some(Fault::Stale { got: 7, want: 8 }),
            (false, true) => Some(Fault::Seed { got: STAMP.seed, want: 1 }),
            (false, false) => None,
        };
        assert_eq!(found, expected, "number {number}, seed {seed}");
    }
}

#[test]
fn a_state_above_its_limit_is_not_kept() {
    let mut job = Job::new("v");
    (job.rw, job.verify) = (Rw { mode: RwMode::Write, random: false }, Some(VerifyKind::Md5));
    job.iodepth = 1 << 16;
    assert!(Completions::new(&job, 1, 16).is_some() && Completions::new(&job, 1, 17).is_none());
    job.verify_only = true;
    assert!(Completions::new(&job, 1, 1).is_none(), "the state of the writes stays");
}
