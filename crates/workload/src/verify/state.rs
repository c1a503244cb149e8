// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far the writes of a verified job got: `verify_state_save`, `verify_state_load`. A later verify reads no more than that.
//!
//! The file is that of fio 3.33 on a little-endian machine: 24 bytes of header, then the state.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | version, 3 |
//! | 8..16 | length of the state |
//! | 16..24 | crc32c of the state, without the final inversion |
//! | 24..32 | number of completed writes that are listed |
//! | 32..36, 36..40 | `iodepth`; number of files |
//! | 40..48 | number of writes that were issued |
//! | 48..56 | thread number, 0-based |
//! | 56..112 | the generator of random offsets; only for information |
//! | 112..176 | name of the job, ended by a zero |
//! | from 176 | the listed writes: number of the file, offset; 16 bytes each. There is room for `iodepth` writes of each file |
//!
//! Of each file, the last writes to complete are listed, newest first. Guarantees: [`VerifyState::decode`] takes any bytes.
//! Source: files that fio 3.33 wrote.

use super::header::crc;
use crate::rng::FioRng;
use thiserror::Error;

/// The only version that fio 3.33 reads and writes.
const VERSION: u64 = 3;
const HEADER_LEN: usize = 24;
const FIXED_LEN: usize = 152;
const ENTRY_LEN: usize = 16;
const GENERATOR_AT: usize = 32;
const NAME_AT: usize = 88;
/// Writes that a file has room for at most (16 MiB).
const ENTRIES_MAX: u64 = 1 << 20;
/// Bytes of a name, without the zero that ends it.
const NAME_MAX: usize = 63;

/// The state of one job thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyState {
    /// Name of the job.
    pub job: String,
    /// Number of the thread over the whole job file, 0-based.
    pub index: u64,
    /// `iodepth`: at most so many of the last writes may not have completed.
    pub depth: u32,
    /// Number of the job's files.
    pub files: u32,
    /// Writes that were issued.
    pub writes: u64,
    /// The last writes to complete: file and offset.
    pub completed: Vec<(u64, u64)>,
}

/// Why a file is no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// Another version.
    #[error(
        "has version {0}, and only version 3 (of fio 3.33 and mqblk) is read; write and verify with the same program"
    )]
    Version(u64),
    /// The checksum does not match.
    #[error("is damaged: its checksum does not match; run the write job again")]
    Checksum,
    /// The length is not that of its contents.
    #[error("is damaged: its length does not match its header; run the write job again")]
    Length,
}

impl VerifyState {
    /// Whether the state of a job with this `iodepth` and number of files is small enough to be kept: `iodepth` times files at most 2^20.
    pub fn fits(depth: u32, files: usize) -> bool {
        u64::from(depth).saturating_mul(files as u64) <= ENTRIES_MAX
    }

    /// Name of the file for the thread `number`, 1-based over the whole job file.
    pub fn file_name(job: &str, number: u32) -> String {
        format!("local-{}-{}-verify.state", in_file(job).replace('/', "."), number.saturating_sub(1))
    }

    /// The bytes of the file. `generator` draws the offsets of a random job.
    pub fn encode(&self, generator: Option<&FioRng>) -> Vec<u8> {
        let mut state = vec![0; FIXED_LEN + self.room() * ENTRY_LEN];
        let mut put = |at: usize, bytes: &[u8]| state[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.completed.len() as u64).to_le_bytes());
        put(8, &self.depth.to_le_bytes());
        put(12, &self.files.to_le_bytes());
        put(16, &self.writes.to_le_bytes());
        put(24, &self.index.to_le_bytes());
        put(GENERATOR_AT, &generator.map_or([0; 56], FioRng::to_bytes));
        put(NAME_AT, in_file(&self.job).as_bytes());
        for (n, (file, offset)) in self.completed.iter().enumerate() {
            put(FIXED_LEN + n * ENTRY_LEN, &file.to_le_bytes());
            put(FIXED_LEN + n * ENTRY_LEN + 8, &offset.to_le_bytes());
        }
        let header = [VERSION, state.len() as u64, u64::from(crc(&state))];
        header.into_iter().flat_map(u64::to_le_bytes).chain(state).collect()
    }

    /// Reads the bytes of a file.
    pub fn decode(bytes: &[u8]) -> Result<VerifyState, StateError> {
        let (header, state) = bytes.split_at_checked(HEADER_LEN).ok_or(StateError::Length)?;
        let u64_at = |bytes: &[u8], at: usize| bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let u32_at = |at: usize| state[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        if u64_at(header, 0) != VERSION {
            return Err(StateError::Version(u64_at(header, 0)));
        }
        if u64_at(header, 8) != state.len() as u64 || state.len() < FIXED_LEN {
            return Err(StateError::Length);
        }
        if u64_at(header, 16) != u64::from(crc(state)) {
            return Err(StateError::Checksum);
        }
        let name = &state[NAME_AT..FIXED_LEN];
        let name = name.split(|&b| b == 0).next().unwrap_or(name);
        let mut found = VerifyState {
            job: String::from_utf8_lossy(name).into_owned(),
            index: u64_at(state, 24),
            depth: u32_at(8),
            files: u32_at(12),
            writes: u64_at(state, 16),
            completed: Vec::new(),
        };
        let (entries, rest) = state[FIXED_LEN..].as_chunks::<ENTRY_LEN>();
        let listed = u64_at(state, 0);
        if !rest.is_empty() || entries.len() != found.room() || listed > entries.len() as u64 {
            return Err(StateError::Length);
        }
        found.completed = entries[..listed as usize].iter().map(|e| (u64_at(e, 0), u64_at(e, 8))).collect();
        Ok(found)
    }

    /// Writes that the file has room for.
    fn room(&self) -> usize {
        (self.depth as usize).saturating_mul(self.files as usize)
    }
}

/// As much of a job's name as the state holds.
fn in_file(job: &str) -> &str {
    &job[..job.floor_char_boundary(NAME_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> VerifyState {
        VerifyState {
            job: "write/it".to_owned(),
            index: 2,
            depth: 4,
            files: 2,
            writes: 100,
            completed: vec![(0, 8192), (0, 0), (1, 1 << 40)],
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let bytes = state().encode(Some(&FioRng::new(1, false)));
        assert_eq!(bytes.len(), 24 + 152 + 8 * 16);
        assert_eq!(VerifyState::decode(&bytes), Ok(state()));
        assert_eq!(VerifyState::file_name("write/it", 3), "local-write.it-2-verify.state");
    }

    #[test]
    fn what_is_no_state_is_refused() {
        let good = state().encode(Some(&FioRng::new(1, true)));
        for at in 24..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(VerifyState::decode(&bad), Err(StateError::Checksum), "byte {at}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let sum = u64::from(crc(&bytes[24..]));
            bytes[16..24].copy_from_slice(&sum.to_le_bytes());
            VerifyState::decode(&bytes)
        };
        assert_eq!(with(0, 7), Err(StateError::Version(7)));
        assert_eq!(with(24, 9), Err(StateError::Length), "more writes than there is room for");
        assert_eq!(with(32, 5), Err(StateError::Length), "another depth");
        assert_eq!(VerifyState::decode(&good[..good.len() - 16]), Err(StateError::Length));
        assert_eq!(VerifyState::decode(b"short"), Err(StateError::Length));
    }

    #[test]
    fn a_long_name_is_cut() {
        let long = VerifyState { job: "n".repeat(100), ..state() };
        let read = VerifyState::decode(&long.encode(Some(&FioRng::new(1, false)))).unwrap();
        assert_eq!(read.job.len(), 63);
        assert_eq!(VerifyState::file_name(&long.job, 1), format!("local-{}-0-verify.state", "n".repeat(63)));
    }
}
