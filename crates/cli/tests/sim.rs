// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim` from the outside.

mod common;

use common::Dir;

#[test]
fn one_case_is_shown_event_by_event_and_the_same_every_time() {
    let dir = Dir::new("sim");
    let first = dir.mqblk(&["sim", "--seed", "3"]).exits(0);
    first.prints(&[" Q submitter ", " D hctx ", " C hctx ", " E submitter ", "\n1 case: "]);
    first.prints(&[
        " S safety phase: ",
        " S liveness phase: no more faults, ",
        "\nsafety phase: ",
        "\nliveness phase: ",
    ]);
    assert_eq!(first.out, dir.mqblk(&["sim", "--seed", "3"]).exits(0).out);
    assert_ne!(first.out, dir.mqblk(&["sim", "--seed", "4"]).exits(0).out);
    assert!(dir.list().is_empty(), "nothing is written");
}

#[test]
fn many_cases_are_counted_whatever_order_they_ran_in() {
    let dir = Dir::new("sim");
    let args = ["sim", "--seed", "10", "--count", "30"];
    let out = dir.mqblk(&args).exits(0).out;
    assert!(out.starts_with("30 cases: "), "{out}");
    assert_eq!(out, dir.mqblk(&args).exits(0).out);
}

#[test]
fn seeds_have_an_end() {
    let dir = Dir::new("sim");
    dir.mqblk(&["sim", "--seed", "18446744073709551615", "--count", "2"]).exits(2).says(&["--count 2", "lower it"]);
    dir.mqblk(&["sim", "--count", "0"]).exits(2);
}
