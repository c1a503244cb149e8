// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program: a program of its own costs a link, and most tests are shorter than that.

// Modules that several tests use.
extern crate mqblk_lab as lab;

mod synthetic;

mod detect;
mod false_alarms;
mod fio_parity;
mod fuzz_seeds;
mod sim_world;
mod tune_honesty;
mod tune_optimum;
mod tune_resume;
