// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program, because linking another program takes longer than most tests.

// What several of them use.
extern crate mqblk_vuclient as vuclient;

mod qsd;
#[path = "../../../host/tests/it/waiting/mod.rs"]
mod waiting;

mod against_qsd;
mod lean_against_qsd;
mod raw_against_qsd;
