// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection: requests of clients fail, are late or are torn on purpose, to test the programs that use a disk.
//!
//! Guarantees: rules apply to requests as clients send them, before these are striped, split or merged. So sectors are those of the disk,
//! and a request meets each rule once, even if its export passes it on in pieces. The first rule that hits decides. With one seed, the
//! same sequence of matching requests gets the same faults. A disk without rules pays one relaxed load per request, of a cache line that
//! is written only when rules change or end. The rules end with their disk. Delayed requests block no thread, and wait no longer than
//! their rule exists, or until their disk gives up what is in flight.
//! Does not do: reach the block layer. Its counters do not include requests that fail here, and a flush that fails here is no failed
//! flush of the device ([`ServedDisk::failed_flush`](super::ServedDisk::failed_flush)).
//!
//! Source: the rules of block/error-injection.c of Linux 7, which apply when a bio is submitted.

mod port;

pub(super) use port::{ClientIo, PortFaults};

use blk::bio::Op;
use blk::id::Sector;
use blk::status::BlkStatus;
use blk::time::Duration;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use workload::rng::Taus258;

/// The operations of clients, with their names in rules.
pub const OPS: [(Op, &str); Op::COUNT] = [
    (Op::Read, "read"),
    (Op::Write, "write"),
    (Op::Flush, "flush"),
    (Op::Discard, "discard"),
    (Op::WriteZeroes, "write-zeroes"),
];

/// Maximum number of rules of a disk: each request is compared with all of them.
const MAX_RULES: usize = 256;
/// Longest delay.
const MAX_DELAY: Duration = Duration::from_secs(3600);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this status and does not reach the disk.
    Error(BlkStatus),
    /// It reaches the disk after this time, at most an hour.
    Delay(Duration),
    /// A write leaves a random number of whole logical blocks of the disk from its beginning, at least one block less than all, and fails
    /// with [`BlkStatus::IoErr`].
    Torn,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Error(status) => write!(f, "error={}", status.name()),
            Fault::Delay(time) => match time.as_ns() {
                ns if ns.is_multiple_of(1_000_000_000) => write!(f, "delay={}s", ns / 1_000_000_000),
                ns if ns.is_multiple_of(1_000_000) => write!(f, "delay={}ms", ns / 1_000_000),
                ns if ns.is_multiple_of(1000) => write!(f, "delay={}us", ns / 1000),
                ns => write!(f, "delay={ns}ns"),
            },
            Fault::Torn => f.write_str("torn"),
        }
    }
}

/// A rule's decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hit {
    /// Number of the rule.
    rule: u32,
    fault: Fault,
    /// Where to tear a write.
    random: u64,
}

/// Which requests get a fault.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    /// The fault.
    pub fault: Fault,
    /// The operations that get it; empty = all, or writes if it is [`Fault::Torn`].
    pub ops: Vec<Op>,
    /// A request must touch one of these sectors of 512 bytes; `None` = any request.
    pub sectors: Option<Range<u64>>,
    /// The probability that a matching request gets the fault, above 0 and at most 1.
    pub probability: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of hits after which the rule has no effect, at least 1; `None` = no limit.
    pub count: Option<u64>,
}

impl FaultRule {
    /// Checks the rule for a disk of `capacity` sectors.
    ///
    /// # Errors
    /// The value that is out of range, with the rule.
    pub fn check(&self, capacity: Sector) -> Result<(), String> {
        if let Fault::Delay(time) = self.fault
            && !(Duration::from_ns(1)..=MAX_DELAY).contains(&time)
        {
            return Err(format!("{}: must be longer than 0 and at most {} s", self.fault, MAX_DELAY.as_ms() / 1000));
        }
        if self.fault == Fault::Torn && self.ops.iter().any(|op| *op != Op::Write) {
            return Err("torn: only writes can be torn; use op=write, or leave it out".to_owned());
        }
        let is_probability = self.probability > 0.0 && self.probability <= 1.0;
        if !is_probability {
            return Err(format!("probability={}: must be above 0 and at most 1", self.probability));
        }
        if self.count == Some(0) {
            return Err("count=0: must be at least 1; leave it out for no limit".to_owned());
        }
        let Some(Range { start, end }) = &self.sectors else { return Ok(()) };
        if start >= end || *end > capacity.0 {
            let nr = end.saturating_sub(*start);
            return Err(format!("sector={start}+{nr}: must be within the {capacity} sectors of the disk"));
        }
        if self.ops.contains(&Op::Flush) {
            return Err(format!(
                "sector={start}: a flush has no sectors; leave out the sector, or add a separate rule for flushes"
            ));
        }
        Ok(())
    }

    fn matches(&self, op: Op, sectors: &Range<u64>) -> bool {
        let touches = |wanted: &Range<u64>| wanted.start < sectors.end && sectors.start < wanted.end;
        let is_op = match self.fault {
            Fault::Torn => op == Op::Write,
            Fault::Error(_) | Fault::Delay(_) => self.ops.is_empty() || self.ops.contains(&op),
        };
        is_op && self.sectors.as_ref().is_none_or(touches)
    }

    /// Whether it needs random numbers.
    fn is_random(&self) -> bool {
        self.probability < 1.0 || self.fault == Fault::Torn
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault)?;
        if !self.ops.is_empty() {
            let names = OPS.iter().filter(|(op, _)| self.ops.contains(op)).map(|(_, name)| *name);
            write!(f, " op={}", names.collect::<Vec<_>>().join(","))?;
        }
        if let Some(Range { start, end }) = &self.sectors {
            write!(f, " sector={start}+{}", end - start)?;
        }
        if self.probability < 1.0 {
            write!(f, " probability={}", self.probability)?;
        }
        if self.is_random() {
            write!(f, " seed={}", self.seed)?;
        }
        self.count.map_or(Ok(()), |count| write!(f, " count={count}"))
    }
}

/// A rule of a disk, and how often it has hit.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleStatus {
    /// Its number, unique among all rules that the disk has had.
    pub id: u32,
    /// The rule.
    pub rule: FaultRule,
    /// Number of requests that got the fault.
    pub hits: u64,
}

impl RuleStatus {
    /// Whether it has no effect any more.
    fn is_over(&self) -> bool {
        self.rule.count.is_some_and(|count| self.hits >= count)
    }
}

impl fmt::Display for RuleStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({}) has hit {} requests", self.id, self.rule, self.hits)
    }
}

/// A rule with its random numbers.
struct Rule {
    status: RuleStatus,
    rng: Taus258,
}

impl Rule {
    /// Returns its decision if the rule hits this request, and adds its number to `missed` if chance spared the request.
    fn meet(&mut self, op: Op, sectors: &Range<u64>, missed: &mut Vec<u32>) -> Option<Hit> {
        let RuleStatus { id, rule, .. } = &self.status;
        if self.status.is_over() || missed.contains(id) || !rule.matches(op, sectors) {
            return None;
        }
        if rule.probability < 1.0 && fraction(self.rng.next_u64()) >= rule.probability {
            missed.push(*id);
            return None;
        }
        self.status.hits += 1;
        let fault = self.status.rule.fault;
        let random = if fault == Fault::Torn { self.rng.next_u64() } else { 0 };
        Some(Hit { rule: self.status.id, fault, random })
    }
}

/// Returns a random number as a fraction, at least 0 and below 1.
fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

#[derive(Default)]
struct Rules {
    list: Vec<Rule>,
    /// The number of the rule that was added last.
    last_id: u32,
}

/// The rules of a disk.
#[derive(Default)]
pub struct Injection {
    /// Some rule may hit. Stored under the lock of `rules`.
    is_active: CachePadded<AtomicBool>,
    rules: Mutex<Rules>,
    /// Hits of all rules that the disk has had.
    hits: AtomicU64,
    /// Number of times that rules were removed. Changed under the lock of `rules`.
    removals: AtomicU64,
    /// Number of pieces of requests that are delayed now, at all ports.
    delayed: AtomicU64,
    /// Delays end at once, though their rules stay.
    gives_up: AtomicBool,
}

impl Injection {
    /// Whether a rule may hit.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        // Relaxed: the rules themselves are behind a lock.
        self.is_active.load(Ordering::Relaxed)
    }

    /// Returns the rules, in the order in which they were added.
    pub fn rules(&self) -> Vec<RuleStatus> {
        self.rules.lock().list.iter().map(|rule| rule.status.clone()).collect()
    }

    /// Whether requests may be delayed.
    pub(super) fn has_delays(&self) -> bool {
        self.rules.lock().list.iter().any(|rule| matches!(rule.status.rule.fault, Fault::Delay(_)))
    }

    /// Returns the number of requests that got a fault, since the disk was opened.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Returns the number of I/Os that are delayed now. A request in pieces counts once for each.
    pub fn delayed(&self) -> u64 {
        // Relaxed: only a count.
        self.delayed.load(Ordering::Relaxed)
    }

    /// Ends all delays at once from now on, or no more. The caller wakes the IOThreads, which then pass on what is delayed.
    pub(super) fn set_give_up(&self, give_up: bool) {
        // Relaxed: the wake-up that follows orders it.
        self.gives_up.store(give_up, Ordering::Relaxed);
    }

    /// Adds a rule that was checked. Returns its number.
    ///
    /// # Errors
    /// There are too many rules.
    pub(super) fn add(&self, rule: FaultRule) -> Result<u32, String> {
        let mut rules = self.rules.lock();
        if rules.list.len() >= MAX_RULES {
            return Err(format!("the disk has {MAX_RULES} rules, the maximum: remove some"));
        }
        rules.last_id += 1;
        let id = rules.last_id;
        let rng = Taus258::new(rule.seed);
        rules.list.push(Rule { status: RuleStatus { id, rule, hits: 0 }, rng });
        self.set_active(&rules);
        Ok(id)
    }

    /// Removes the rule with this number, or with `None` all rules. Returns what was removed. The caller wakes the IOThreads, which then
    /// pass on the requests that the rule has delayed.
    pub(super) fn remove(&self, id: Option<u32>) -> Vec<RuleStatus> {
        let mut rules = self.rules.lock();
        let removed = rules.list.extract_if(.., |rule| id.is_none_or(|id| id == rule.status.id));
        let removed = removed.map(|rule| rule.status).collect();
        self.set_active(&rules);
        // Relaxed: the wake-up that follows orders it.
        self.removals.fetch_add(1, Ordering::Relaxed);
        removed
    }

    fn set_active(&self, rules: &Rules) {
        self.is_active.store(rules.list.iter().any(|rule| !rule.status.is_over()), Ordering::Relaxed);
    }

    /// Returns a number that changes when rules are removed.
    fn removals(&self) -> u64 {
        self.removals.load(Ordering::Relaxed)
    }

    /// Returns the fault of a request, or of a piece of it. `missed` has the rules that the request has met without a hit.
    fn decide(&self, op: Op, sectors: &Range<u64>, missed: &mut Vec<u32>) -> Option<Hit> {
        let mut rules = self.rules.lock();
        let hit = rules.list.iter_mut().find_map(|rule| rule.meet(op, sectors, missed))?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        if rules.list.iter().all(|rule| rule.status.is_over()) {
            self.set_active(&rules);
        }
        Some(hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn rule(fault: Fault) -> FaultRule {
        FaultRule { fault, ops: Vec::new(), sectors: None, probability: 1.0, seed: 1, count: None }
    }

    const MEDIUM: Fault = Fault::Error(BlkStatus::Medium);

    /// The number of each of 1000 reads that got a fault.
    fn hits(injection: &Injection) -> Vec<u32> {
        (0..1000).filter(|_| injection.decide(Op::Read, &(0..8), &mut Vec::new()).is_some()).collect()
    }

    #[test]
    fn rules_hit_their_operations_and_sectors() {
        let injection = Injection::default();
        let decide = |op, sectors: Range<u64>| injection.decide(op, &sectors, &mut Vec::new()).map(|hit| hit.fault);
        assert!(!injection.is_active());
        let of_writes = FaultRule { ops: vec![Op::Write, Op::Discard], sectors: Some(8..16), ..rule(MEDIUM) };
        assert_eq!(injection.add(of_writes), Ok(1));
        assert!(injection.is_active());
        assert_eq!(decide(Op::Write, 0..8), None);
        assert_eq!(decide(Op::Write, 0..9), Some(MEDIUM));
        assert_eq!(decide(Op::Discard, 15..100), Some(MEDIUM));
        assert_eq!(decide(Op::Write, 16..24), None);
        assert_eq!(decide(Op::Read, 8..16), None);
        let space = Fault::Error(BlkStatus::NoSpc);
        assert_eq!(injection.add(rule(space)), Ok(2));
        assert_eq!(
            (decide(Op::Write, 8..9), decide(Op::Flush, 0..0)),
            (Some(MEDIUM), Some(space)),
            "the first decides"
        );
        assert_eq!(injection.rules().iter().map(|r| (r.id, r.hits)).collect::<Vec<_>>(), [(1, 3), (2, 1)]);
        assert_eq!(injection.remove(Some(1)).len(), 1);
        assert_eq!(
            (injection.remove(Some(1)).len(), injection.add(rule(MEDIUM))),
            (0, Ok(3)),
            "numbers are not reused"
        );
        assert_eq!((injection.remove(None).len(), injection.is_active(), injection.hits()), (2, false, 4));
    }

    #[test]
    fn a_seed_repeats_the_hits_and_gives_their_share() {
        let with_seed = |seed| {
            let injection = Injection::default();
            injection.add(FaultRule { probability: 0.3, seed, ..rule(MEDIUM) }).unwrap();
            hits(&injection)
        };
        let first = with_seed(7);
        assert!((200..400).contains(&first.len()), "{}", first.len());
        assert_eq!(first, with_seed(7));
        assert_ne!(first, with_seed(8));
    }

    #[test]
    fn a_rule_with_a_count_ends_and_costs_nothing_then() {
        let injection = Injection::default();
        injection.add(FaultRule { count: Some(3), ..rule(MEDIUM) }).unwrap();
        assert_eq!(hits(&injection), [0, 1, 2]);
        assert!(!injection.is_active());
        assert_eq!(injection.rules()[0].to_string(), "rule 1 (error=medium count=3) has hit 3 requests");
    }

    #[test]
    fn rules_out_of_range_are_rejected() {
        let refused = |rule: FaultRule| rule.check(Sector(64)).unwrap_err();
        for probability in [0.0, -1.0, 1.5, f64::NAN] {
            let text = refused(FaultRule { probability, ..rule(MEDIUM) });
            assert!(text.contains("must be above 0 and at most 1"), "{text}");
        }
        assert!(refused(FaultRule { count: Some(0), ..rule(MEDIUM) }).starts_with("count=0"));
        for sectors in [Range { start: 8, end: 8 }, 60..65] {
            let text = refused(FaultRule { sectors: Some(sectors), ..rule(MEDIUM) });
            assert!(text.contains("within the 64 sectors"), "{text}");
        }
        for delay in [Duration::ZERO, Duration::from_secs(3601)] {
            let text = refused(rule(Fault::Delay(delay)));
            assert!(text.starts_with("delay=") && text.ends_with("at most 3600 s"), "{text}");
        }
        let flush = FaultRule { ops: vec![Op::Flush], sectors: Some(0..1), ..rule(MEDIUM) };
        assert!(refused(flush).contains("a flush has no sectors"));
        let discard = FaultRule { ops: vec![Op::Write, Op::Discard], ..rule(Fault::Torn) };
        assert!(refused(discard).contains("only writes can be torn"));
        let good = FaultRule { sectors: Some(0..64), probability: 0.5, ..rule(MEDIUM) };
        assert_eq!(good.check(Sector(64)), Ok(()));
        assert_eq!(good.to_string(), "error=medium sector=0+64 probability=0.5 seed=1");
        let torn = FaultRule { ops: vec![Op::Write], ..rule(Fault::Torn) };
        assert_eq!((torn.check(Sector(64)), torn.to_string()), (Ok(()), "torn op=write seed=1".to_owned()));
        let times = [7, 1000, 1_500_000, 20_000_000, 3_600_000_000_000].map(|ns| Fault::Delay(Duration::from_ns(ns)));
        assert!(times.iter().all(|fault| rule(*fault).check(Sector(64)).is_ok()));
        let texts = times.map(|fault| fault.to_string());
        assert_eq!(texts, ["delay=7ns", "delay=1us", "delay=1500us", "delay=20ms", "delay=3600s"]);
    }

    #[test]
    fn no_disk_has_more_rules_than_can_be_searched() {
        let injection = Injection::default();
        for _ in 0..MAX_RULES {
            injection.add(rule(MEDIUM)).unwrap();
        }
        assert!(injection.add(rule(MEDIUM)).unwrap_err().contains("remove some"));
    }
}
