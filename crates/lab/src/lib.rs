// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs, comparisons and their statistics as data: this crate returns values and has no flags and no terminal.
//!
//! Modules in the order a comparison meets them:
//! - [`setup`]: the machine, read once at the start.
//! - [`plan`]: how many pairs, in which order.
//! - [`metric`]: the metrics that each run is reduced to.
//! - [`run`], [`stack`]: runs executed through `host`, and the settings they ran with.
//! - [`world`]: the backends that runs use: our block layer, the kernel's devices, simulated machines.
//! - [`iostat`], [`simulated`]: what a run records in addition in the kernel's block layer, and on a simulated machine.
//! - [`stage`], [`little`]: where the time went, and whether the figures agree with each other.
//! - [`detail`]: a run's settings, jobs and latencies over time, for reports.
//! - [`results`]: every pair on disk as soon as it completes.
//! - [`stats`]: intervals, p-values, corrections.
//! - [`steady`], [`warning`]: reasons why a result may mean less than it seems.
//! - [`verdict`], [`compare`]: the verdict, and the table behind it.
//! - [`pairs`]: the runs of a comparison, in the order of its plan.
//! - [`tune`]: a search for better settings whose claims are confirmed by fresh comparisons.
//! - [`report`]: fio's text and JSON layouts, stage tables, comparison tables, pages.
//! - [`trace`]: the events of every request as blktrace's or Chrome's files.
//! - [`profile`]: a workload as a job file, from a trace or a run's results.

pub mod setup;
pub mod plan;
pub mod metric;
pub mod run;
pub mod world;
pub mod stack;
pub mod iostat;
pub mod simulated;
pub mod stage;
pub mod little;
pub mod detail;
pub mod results;
pub mod stats;
pub mod steady;
pub mod warning;
pub mod verdict;
pub mod compare;
pub mod pairs;
pub mod tune;
pub mod report;
pub mod trace;
pub mod profile;
