// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scaling studies have the known shapes, and give the same points every time.

use sim::scenario::file::Scenario;
use sim::study::{Effort, Point, Study, base, cells, reason, simulate};

/// Simulates the chosen cells of a study.
fn points(study: Study, chosen: impl Fn(&cells::Cell) -> bool) -> Vec<Point> {
    let machine = base::default_of(study);
    let all = cells::of(study, &machine, u32::MAX).into_iter().filter(chosen);
    all.map(|c| simulate(&machine, &c, Effort::QUICK, 0).expect("a point")).collect()
}

fn iops(points: &[Point], series: &str, x: u32) -> f64 {
    points.iter().find(|p| p.series == series && p.x == x).unwrap_or_else(|| panic!("{series} {x}")).iops
}

/// Bjorling et al., SYSTOR 2013: a single queue peaks on one socket and falls with each further socket. Multi-queue grows
/// with the CPUs.
#[test]
fn single_queue_peaks_and_falls_and_multi_queue_grows() {
    let p = points(Study::Cpus, |c| [1, 8, 32, 64, 256].contains(&c.x));
    let sq = |x| iops(&p, "sq", x);
    assert!(sq(8) > 2.0 * sq(1), "{p:?}");
    assert!(sq(64) < 0.9 * sq(32).max(sq(8)) && sq(256) < 0.9 * sq(32).max(sq(8)), "{p:?}");
    for n in [8, 32, 64, 256] {
        let per_cpu = iops(&p, "mq", n) / iops(&p, "mq", 1) / f64::from(n);
        assert!((0.9..1.15).contains(&per_cpu), "{n} CPUs: {per_cpu}");
    }
    let why = reason::of(Study::Cpus, &p);
    assert!(why[0].starts_with("sq: peaks with ") && why[0].contains("waiting for a lock"), "{why:?}");
    assert!(why[1].starts_with("mq: grows 2"), "{why:?}");
}

#[test]
fn each_socket_makes_a_ticket_lock_slower() {
    let p = points(Study::Sockets, |_| true);
    let sq: Vec<f64> = [1, 2, 4, 8].iter().map(|x| iops(&p, "sq", *x)).collect();
    assert!(sq[1] < 0.8 * sq[0] && sq[2] < sq[1] && sq[3] < sq[2] * 1.05, "{sq:?}");
    let times = iops(&p, "mq", 8) / iops(&p, "mq", 1);
    assert!((7.0..9.0).contains(&times), "{times}");
}

#[test]
fn hardware_queues_help_until_each_cpu_has_its_own() {
    let p = points(Study::HwQueues, |c| c.series == "none" && [1, 8, 64].contains(&c.x));
    assert!(iops(&p, "none", 8) > 2.0 * iops(&p, "none", 1), "{p:?}");
    assert!(iops(&p, "none", 64) > 1.7 * iops(&p, "none", 8), "{p:?}");
}

#[test]
fn depth_helps_until_the_device_is_full() {
    let p = points(Study::Depth, |c| c.series == "mq" && [1, 16, 128].contains(&c.x));
    assert!(iops(&p, "mq", 16) > 10.0 * iops(&p, "mq", 1), "{p:?}");
    assert!((0.9..1.1).contains(&(iops(&p, "mq", 128) / 1.6e6)), "128 at a time of 80 us: {p:?}");
}

#[test]
fn an_elevator_with_one_lock_has_an_end() {
    let p =
        points(Study::Elevators, |c| ["none", "mq-deadline"].contains(&c.series.as_str()) && [8, 32].contains(&c.x));
    assert!(iops(&p, "none", 32) > 3.8 * iops(&p, "none", 8), "{p:?}");
    assert!(iops(&p, "mq-deadline", 32) < 2.0 * iops(&p, "mq-deadline", 8), "{p:?}");
}

#[test]
fn iothreads_help_loads_that_fill_one() {
    let p = points(Study::Iothreads, |c| [1, 4].contains(&c.x));
    assert!(iops(&p, "128 users", 4) > 3.0 * iops(&p, "128 users", 1), "{p:?}");
    assert!(iops(&p, "8 users", 4) < 1.1 * iops(&p, "8 users", 1), "{p:?}");
}

#[test]
fn a_study_is_deterministic_and_its_cells_are_independent() {
    let few = points(Study::Elevators, |c| c.x == 2);
    assert_eq!(few.len(), 5, "the elevators");
    assert_eq!(few, points(Study::Elevators, |c| c.x == 2));
    let one = points(Study::Elevators, |c| c.x == 2 && c.series == "kyber");
    assert_eq!(one[0], *few.iter().find(|p| p.series == "kyber").unwrap());
}

#[test]
fn what_a_machine_cannot_do_is_said() {
    let text =
        "[machine]\ncores = 2\n[disk]\nsize_gib = 10\nread_us = 1\nwrite_us = 1\n[settings]\nqueue_depth = 20000\n";
    let e = Scenario::parse_machine("m.toml", text).unwrap_err().to_string();
    assert!(e.starts_with("m.toml:8: queue_depth=20000: must be"), "{e}");
    let machine = Scenario::parse_machine("m.toml", &text.replace("20000", "64")).unwrap();
    assert!(cells::of(Study::Iothreads, &machine, 2).is_empty(), "it has no virtual machines");
}
