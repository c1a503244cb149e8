// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All tests of the engine in fio, in one program.

mod common;
mod fio;
mod random;
#[path = "../../../workload/tests/it/random_jobs.rs"]
mod random_jobs;
