// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies that may hold a bio back before it becomes a request (the kernel's rq_qos): per-disk limits and write-back
//! throttling.
//!
//! Guarantees: with neither policy set, a bio costs one relaxed load here, and so does a completion. A held bio waits
//! in its submitter and completes exactly once. Its submitter is notified when the bio may continue. No bio is lost
//! when settings change or the queue freezes or is rebuilt meanwhile. Held bios wait outside the queue, so a freeze
//! does not wait for them.
//!
//! Needs from callers: polls at [`RequestQueue::next_timer`](crate::queue::RequestQueue::next_timer), as for all delayed
//! work. A poll by any submitter gives turns to all submitters. Source: block/blk-rq-qos.c.
//!
//! - Policies, which do not handle bios: `limits` ([`rates`] has their settings), [`wbt`].
//! - `state` and `wbt_shared`: the policy state that a disk and its submitters share; `held_bios` and `line`: a submitter's
//!   held bios.
//! - Calls of the policies for bios and requests: `release` and `grants` (limits), `wbt_hooks`.

pub(crate) mod held_bios;
mod release;
pub(crate) mod limits;
mod line;
pub mod rates;
pub(crate) mod state;
mod grants;
pub mod wbt;
mod wbt_hooks;
pub(crate) mod wbt_shared;
