// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What elevators that wrap another one share.
//!
//! Guarantees: the elevator inside is mqblk's own, with a lock that costs nothing.

use crate::Lock;
use blk::elevator::{DiskShape, Elevator, for_map};

/// Makes the built-in elevator `name`, which is not `none`, for a disk.
pub(crate) fn built_in(name: &str, disk: &DiskShape<'_>) -> Box<dyn Elevator> {
    let made = for_map::<Lock>(name, disk.nr_slab_requests, disk.map, disk.nr_requests);
    made.expect("a name that exists").expect("not none")
}

/// Forwards to `inner` the methods that neither take requests nor return any. A default would hide what the elevator behind
/// it does.
macro_rules! forward_to_inner {
    () => {
        fn name(&self) -> &'static str {
            self.inner.name()
        }

        fn may_hold(&self) -> bool {
            self.inner.may_hold()
        }

        fn next_run(&self) -> Option<blk::time::Instant> {
            self.inner.next_run()
        }

        fn limit_depth(&self, op: blk::bio::Op, flags: blk::bio::OpFlags) -> Option<u32> {
            self.inner.limit_depth(op, flags)
        }

        fn limit_depth_of(&self, by: blk::id::SubmitterId, op: blk::bio::Op, flags: blk::bio::OpFlags) -> Option<u32> {
            self.inner.limit_depth_of(by, op, flags)
        }

        fn debug(&self) -> Vec<blk::elevator::DebugAttr> {
            self.inner.debug()
        }

        fn tunables(&self) -> Vec<blk::elevator::Tunable> {
            self.inner.tunables()
        }
    };
}
pub(crate) use forward_to_inner;
