// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock of every lock domain of the core, chosen by the caller: a real mutex in `host`, one that costs virtual
//! time in `sim`. So contention in simulation comes from the core's own lock domains.

/// A raw mutex fit for a disk that several threads share. Every `lock_api::RawMutex` that is `Send + Sync` is one.
pub trait Lock: lock_api::RawMutex + Send + Sync + 'static {}

impl<T: lock_api::RawMutex + Send + Sync + 'static> Lock for T {}
