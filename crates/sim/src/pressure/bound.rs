// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an elevator owes its requests, and what a pressure case counts.

pub(super) const LIMITS: &str = "limits";
pub(super) const HCTXS: &str = "hctxs";

/// A request as bounds know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenRequest {
    /// Its number in the case, by insertion.
    pub(super) id: u64,
    pub(super) client: usize,
    pub(super) cpu: usize,
    pub(super) op: blk::bio::Op,
    /// Best effort, real time or idle.
    pub(super) class: blk::bio::IoPrioClass,
    pub(super) nr_sectors: u32,
    /// When it was inserted, ns.
    pub(super) at: u64,
}

/// What an elevator owes its requests.
pub(super) trait Bound {
    /// A request was queued.
    fn queued(&mut self, r: &SeenRequest);
    /// The elevator was asked for requests at this time.
    fn asked(&mut self, now: u64);
    /// It gave this one. Panics when that breaks the bound for any request.
    fn given(&mut self, r: &SeenRequest);
    /// The device has done this one.
    fn completed(&mut self, _r: &SeenRequest) {}
    /// The most of a bound that was reached, of a thousand: bounds that nothing comes near prove nothing.
    fn closest(&self) -> u64;
}

/// What a pressure case counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressed {
    /// Requests that went through the elevator.
    pub requests: u64,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// The elevator, or what else was pressed.
    pub elevator: &'static str,
    /// The most of a bound that was reached, of a thousand.
    pub closest: u64,
}
