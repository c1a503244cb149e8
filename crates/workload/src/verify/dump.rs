// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `verify_dump`: a bad block as it was read, and as it should be.
//!
//! Guarantees: both are as on the disk, with the header where the job has it. What should be there has the header that was read, so that the
//! two differ only in what is bad. It is unknown if the header itself is bad. Does not do: files.

use super::{Expect, Fault, Verifier, VerifyError, digest, header, header_len};
use crate::buffer::{pattern_fill, random_fill};

/// A bad block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// Byte offset in the file.
    pub offset: u64,
    /// What was read.
    pub received: Vec<u8>,
    /// What should have been read; `None`: the header is bad.
    pub expected: Option<Vec<u8>>,
}

impl BadBlock {
    /// The contents, each with what fio adds to the name of its file.
    pub fn parts(&self) -> Vec<(&'static str, &[u8])> {
        match &self.expected {
            None => vec![("hdr_fail", &self.received)],
            Some(expected) => vec![("received", &self.received), ("expected", expected)],
        }
    }
}

impl Verifier {
    /// The block with the fault `error` of a read of `offset` that returned `buf`. `None` for one that was trimmed.
    pub(super) fn bad_block(
        &self,
        buf: &[u8],
        offset: u64,
        expect: Expect,
        error: &VerifyError,
    ) -> Option<Box<BadBlock>> {
        let step = self.step(buf.len());
        let at = match error.fault {
            Fault::NotZero { .. } => return None,
            Fault::Content { at, .. } => at / step * step,
            _ => (error.offset - offset) as usize,
        };
        let received = buf[at..buf.len().min(at + step)].to_vec();
        let has_good_header = matches!(error.fault, Fault::Content { .. } | Fault::Checksum);
        let expected = has_good_header.then(|| self.expected(&received, (buf.len(), offset), at, expect));
        Some(Box::new(BadBlock { offset: offset + at as u64, received, expected }))
    }

    /// The block that should be `at` bytes into an I/O. `io`: length and offset of the I/O.
    fn expected(&self, received: &[u8], io: (usize, u64), at: usize, expect: Expect) -> Vec<u8> {
        let mut found = received.to_vec();
        self.swap_header(&mut found);
        let mut all = vec![0; io.0];
        match (&self.pattern, expect) {
            (Some(pattern), _) => pattern_fill(&mut all, pattern, 0, io.1),
            (None, Expect::Exactly(stamp)) if self.checks_seed => random_fill(&mut all, stamp.seed),
            (None, _) => {
                let head = found.first_chunk::<{ header::LEN }>().and_then(|raw| header::decode(raw).ok());
                random_fill(&mut all, head.map_or(0, |h| h.seed));
            }
        }
        let mut block = all[at..at + received.len()].to_vec();
        if self.kind.has_header() {
            let (head, body) = block.split_at_mut(header_len(self.kind));
            head.copy_from_slice(&found[..head.len()]);
            digest::store(self.kind, body, &mut head[header::LEN..]);
            self.swap_header(&mut block);
        }
        block
    }
}
