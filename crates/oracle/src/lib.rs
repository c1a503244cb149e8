// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real kernel as oracle: what Linux did with an exact I/O script, and what the whole stack here does with it.
//!
//! A case is a script (`NAME.io`), the settings it ran under (`NAME.env`) and the kernel's block events (`NAME.trace`). The
//! script runs through submitter, plug, merge, tags, elevator and a model of null_blk in virtual time. From the trace comes
//! only what the block layer does not decide: when the process called, when the device was done. Every decision is ours
//! and is compared: merges, insertions, order of issue.
//!
//! | module | what it is |
//! |---|---|
//! | [`script`], [`settings`], [`trace`] | readers of the three files; errors name file, line, rule and remedy |
//! | [`event`] | the vocabulary both sides are put into |
//! | [`disk`] | null_blk with its timer completion |
//! | [`world`] | the process that runs the script, on the whole stack |
//! | [`replay`] | the world driven by a recorded trace |
//! | [`free`] | the world driven by nominal times: what we would do, without a trace |
//! | [`rules`] | what an elevator's definition determines, so what must be equal |
//! | [`compare`] | both lists of events against those rules |
//! | [`case`] | a case from its files, and its verdict |
//! | [`tags`] | reader of recordings of shared tags: structure, and the maximum in flight |
//! | [`sharing`] | several disks in one tag set, driven as those recordings were |
//! | [`random`] | cases from seeds, to be recorded |

pub mod event;
pub mod script;
pub mod settings;
pub mod trace;
pub mod disk;
pub mod world;
pub mod replay;
pub mod free;
pub mod rules;
pub mod compare;
pub mod case;
pub mod tags;
pub mod sharing;
pub mod random;

/// The lock the block layer is run with. One thread runs a replay, so it is never contended.
pub type Lock = parking_lot::RawMutex;

/// What is wrong with a file of a case: place, rule, value, remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseError(pub String);

impl std::fmt::Display for CaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaseError {}
