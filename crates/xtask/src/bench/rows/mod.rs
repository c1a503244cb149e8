// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of the bench, as data: what is measured, and the goals.
//!
//! [`row`] defines what a row is made of. Guarantees: both sides of a comparison get the same job; what only one of them understands is
//! in that side's `extra` lines or `args`. Job texts are fio job files with blanks that [`super::job`] fills. Both sides record latencies,
//! because that is fio's default.
//!
//! [`against_fio`] has the rows whose sides run jobs. Of these, rows on iSCSI and Ceph are in [`network`], and rows of a disk with
//! several paths in [`paths`]. [`agreement`] has the simulator's rows, [`served`] the rows of a client and servers.

mod against_fio;
mod agreement;
mod network;
mod paths;
mod row;
mod served;

pub use row::{Agrees, By, Client, Disk, Goal, Metric, Need, Program, Pull, Pulled, Row, Served, Side, Unequal};

/// Every row, in the order of a full run.
pub fn all() -> impl Iterator<Item = &'static Row> {
    against_fio::ROWS.iter().chain(network::ROWS).chain(paths::ROWS).chain(agreement::ROWS).chain(served::ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_speak_of_sides_their_row_has() {
        for row in all() {
            let has = |name: &str| row.sides.iter().any(|side| side.name == name);
            for goal in row.goals {
                assert!(has(goal.of), "{}: {}", row.name, goal.of);
                assert!(goal.to.is_none_or(has), "{}: {:?}", row.name, goal.to);
                if let Need::AtLeastOrPeer(_, of, to) = goal.need {
                    assert!(has(of) && has(to), "{}: {of}/{to}", row.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for (index, row) in all().enumerate() {
            assert!(all().take(index).all(|other| other.name != row.name), "{}", row.name);
            for (index, side) in row.sides.iter().enumerate() {
                let earlier = &row.sides[..index];
                assert!(earlier.iter().all(|other| other.name != side.name));
            }
        }
    }

    #[test]
    fn only_sides_that_name_it_get_an_nbd_server() {
        let with: Vec<&str> = all().filter(|row| row.sides.iter().any(Side::needs_nbd)).map(|row| row.name).collect();
        assert_eq!(with, ["nbd-driver-qd1", "nbd-driver-qd32"]);
    }
}
