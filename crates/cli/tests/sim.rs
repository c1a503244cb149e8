// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim` from the outside.

mod common;

use common::Dir;

#[test]
fn one_case_is_shown_event_by_event_and_the_same_every_time() {
    let dir = Dir::new("sim");
    let first = dir.mqblk(&["sim", "--seed", "3"]).exits(0);
    first.prints(&[" Q submitter ", " D hctx ", " C hctx ", " E submitter ", "\n1 disk case\n  bios "]);
    first.prints(&[
        " S safety phase: ",
        " S liveness phase: no more faults, ",
        "\n  safety    ",
        "\n  liveness  ",
        "\n  trace     ",
    ]);
    assert_eq!(first.out, dir.mqblk(&["sim", "--seed", "3"]).exits(0).out);
    assert_ne!(first.out, dir.mqblk(&["sim", "--seed", "4"]).exits(0).out);
    assert!(dir.list().is_empty(), "nothing is written");
}

/// What a case is made of is told in lines that fit a terminal, and flags and settings by their names.
#[test]
fn a_case_begins_with_what_it_is_made_of() {
    let dir = Dir::new("sim");
    for kind in ["disk", "set", "pressure", "multipath"] {
        let out = dir.mqblk(&["sim", "--kind", kind, "--seed", "3"]).exits(0).out;
        assert!(out.contains(&format!("\n{kind} case of seed 3\n")), "{out}");
        let long = out.lines().find(|line| line.len() > 130);
        assert!(long.is_none(), "{kind}: {long:?}");
        assert!(!out.contains("QueueConfig") && !out.contains("OpFlags("), "{kind}: {out}");
    }
    let out = dir.mqblk(&["sim", "--kind", "disk", "--seed", "3"]).exits(0);
    out.prints(&[" X host      ", "   settings  mode=", "   device    ", "   faults    ", "   cache     ", " +SYNC"]);
    let out = dir.mqblk(&["sim", "--kind", "set", "--seed", "3"]).exits(0);
    out.prints(&[" X tag set   ", " X disk 0 joins\n", " D disk 1 hctx ", " S competition: "]);
}

#[test]
fn many_cases_are_counted_whatever_order_they_ran_in() {
    let dir = Dir::new("sim");
    let args = ["sim", "--seed", "10", "--count", "30"];
    let out = dir.mqblk(&args).exits(0).out;
    assert!(out.starts_with("30 disk cases of 30 seeds\n"), "{out}");
    assert!(out.contains(" set cases of 30 seeds\n") && out.contains(" pressure cases of 30 seeds\n"), "{out}");
    assert_eq!(out, dir.mqblk(&args).exits(0).out);
    let set = dir.mqblk(&["sim", "--seed", "10", "--count", "3", "--kind", "set"]).exits(0).out;
    assert!(set.starts_with("3 set cases of 3 seeds\n") && !set.contains("disk cases"), "{set}");
}

#[test]
fn seeds_have_an_end() {
    let dir = Dir::new("sim");
    dir.mqblk(&["sim", "--seed", "18446744073709551615", "--count", "2"]).exits(2).says(&["--count 2", "lower it"]);
    dir.mqblk(&["sim", "--count", "0"]).exits(2);
    dir.mqblk(&["sim", "--kind", "main"]).exits(2).says(&["disk", "set", "pressure", "multipath"]);
}
