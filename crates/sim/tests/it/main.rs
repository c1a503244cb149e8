// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program: a program of its own costs a link, and most tests are shorter than that.

extern crate mqblk_sim as sim;

mod bad_input;
mod broken_drivers;
mod hdd;
mod machine;
mod multipath;
mod pressure;
mod regressions;
mod scenarios;
mod study;
mod swarm;
