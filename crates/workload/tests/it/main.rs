// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program: a program of its own costs a link, and most tests are shorter than that.

// Modules that several tests use.
extern crate mqblk_workload as workload;

mod common;

mod engine_exchange;
mod engine_jobs;
mod engine_policies;
mod engine_props;
mod fio_files;
mod fio_parity;
mod fio_random;
mod fio_verify;
mod fuzz_seeds;
mod hist_oracle;
mod interval_logs;
mod job_examples;
mod job_fio_agreement;
mod job_fuzz;
mod job_published;
mod job_semantics;
mod job_table;
mod oltp_sim;
mod random_jobs;
mod replay;
