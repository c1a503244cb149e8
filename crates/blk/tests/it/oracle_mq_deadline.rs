// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All decisions of mq-deadline, compared with the Linux kernel's mq-deadline, see `oracle/mod.rs`.

use crate::oracle;

use oracle::replay;

macro_rules! cases {
    ($($test:ident: $name:literal, issued $issued:literal, merged $merged:literal;)*) => {
        $(#[test]
        fn $test() {
            assert_eq!(replay("mq-deadline", $name), ($issued, $merged));
        })*
    };
}

cases! {
    reads_are_sorted: "dl-reads", issued 50, merged 0;
    reads_go_before_writes_in_batches: "dl-mixed", issued 82, merged 0;
    bios_merge_back_and_front_and_neighbours_join: "dl-merge", issued 6, merged 18;
    without_front_merges_only_the_last_request_grows_forward: "dl-nofront", issued 13, merged 11;
    a_plug_is_inserted_as_one_batch: "dl-plugged", issued 26, merged 0;
    few_scheduler_tags: "dl-depth8", issued 62, merged 0;
    expired_requests_start_a_batch: "dl-expire", issued 62, merged 0;
    classes_are_served_in_order: "dl-prio", issued 62, merged 0;
    several_driver_tags: "dl-hw4", issued 62, merged 0;
}
