// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock type of the core, chosen by the caller: a real mutex in `host`, a mutex that costs virtual time in `sim`.
//! So simulated contention arises at the core's own locks.

/// A raw mutex for a disk that several threads share. Every `lock_api::RawMutex` that is `Send + Sync` implements it.
pub trait Lock: lock_api::RawMutex + Send + Sync + 'static {}

impl<T: lock_api::RawMutex + Send + Sync + 'static> Lock for T {}
