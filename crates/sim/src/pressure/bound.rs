// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an elevator guarantees its requests, and what a pressure case counts.

pub(super) const LIMITS: &str = "limits";
pub(super) const HCTXS: &str = "hctxs";

/// A request as a bound sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenRequest {
    /// Its number in the case, in order of insertion.
    pub(crate) id: u64,
    pub(crate) client: usize,
    pub(crate) cpu: usize,
    pub(crate) op: blk::bio::Op,
    /// Best effort, real time or idle.
    pub(crate) class: blk::bio::IoPrioClass,
    pub(crate) nr_sectors: u32,
    /// When it was inserted, ns.
    pub(crate) at: u64,
}

/// What an elevator guarantees its requests.
pub(super) trait Bound {
    /// A request was queued.
    fn queued(&mut self, r: &SeenRequest);
    /// The elevator was asked for requests at `now`.
    fn asked(&mut self, now: u64);
    /// The elevator gave this request. Panics when that breaks the bound for any request.
    fn given(&mut self, r: &SeenRequest);
    /// The device has completed this request.
    fn completed(&mut self, _r: &SeenRequest) {}
    /// How near a request came to the bound, per thousand of the bound. A bound that nothing comes near proves nothing.
    fn closest(&self) -> u64;
}

/// What a pressure case counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressed {
    /// Requests that went through the elevator.
    pub requests: u64,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// The elevator, or what else was under pressure.
    pub elevator: &'static str,
    /// How near a request came to the bound, per thousand of the bound.
    pub closest: u64,
}
