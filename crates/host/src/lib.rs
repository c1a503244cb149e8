// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real machine: clock, memory, drivers. The only crate with system calls and `unsafe` code; a module that needs
//! `unsafe` says so here.

pub mod error;
#[allow(unsafe_code)]
pub mod clock;
#[allow(unsafe_code)]
pub mod mem;
pub mod driver;
#[allow(unsafe_code)]
pub mod create;
pub mod target;
#[allow(unsafe_code)]
pub mod run;
