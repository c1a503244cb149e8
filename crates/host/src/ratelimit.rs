// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits how often a message is logged for one peer, and counts what is suppressed.
//!
//! Guarantees: a message is logged at most [`BURST`] times in [`INTERVAL`] for each peer, and at most [`TOTAL_BURST`] times for all
//! clients together. Errors of a peer are not hidden by its warnings, nor these by what is less urgent. Each suppressed message is counted in exactly one [`Suppressed`]. Memory is bounded, however many peers there are.
//! Needs from callers: they call [`Ratelimits::expired`] about once per interval, because the last messages of a burst have no
//! successor that could report them. Does not do: read a clock, log.
//!
//! Source: `___ratelimit` of Linux (lib/ratelimit.c), with its defaults. The kernel has one state per message; here each peer has its
//! own, so that a noisy client hides no other.

use log::Level;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Time in which a burst is allowed. Source: `DEFAULT_RATELIMIT_INTERVAL`.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Messages in an interval. Source: `DEFAULT_RATELIMIT_BURST`.
pub const BURST: u32 = 10;
/// Messages in an interval from all clients together.
pub const TOTAL_BURST: u32 = 100;
/// Maximum number of states with which a client gets one. Beyond that, a new client of a message has only the limit of all clients.
const MAX_STATES: usize = 1024;
/// Longest message that is kept for the count's line, bytes.
const MAX_TEXT: usize = 256;
/// Maximum number of counts that wait to be reported. Beyond that, they are added up.
const MAX_DUE: usize = 1024;

/// A place in the program that logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Its file.
    pub file: &'static str,
    /// Its line in the file.
    pub line: u32,
    /// How urgent it is.
    pub level: Level,
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer<'a> {
    /// A client, of which there may be any number.
    Client(&'a str),
    /// Something in the configuration, such as a disk; empty: the daemon.
    Configured(&'a str),
}

/// How many messages were suppressed in an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// Their number, at least 1.
    pub count: u64,
    /// How urgent they were.
    pub level: Level,
    /// The peer; empty: several, or the daemon.
    pub peer: String,
    /// The last of these messages, maybe truncated.
    pub last: String,
}

/// The kernel's `struct ratelimit_state`.
struct State {
    begin: Instant,
    printed: u32,
    missed: u64,
    last: String,
}

impl State {
    fn new(now: Instant) -> State {
        State { begin: now, printed: 0, missed: 0, last: String::new() }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begin) >= INTERVAL
    }

    /// Whether there were so many messages in the interval. Then this one is counted as missed.
    fn is_used_up(&mut self, burst: u32, text: &str) -> bool {
        let is_used_up = self.printed >= burst;
        if is_used_up {
            self.missed += 1;
            text[..text.floor_char_boundary(MAX_TEXT)].clone_into(&mut self.last);
        }
        is_used_up
    }

    fn count(self, (message, peer): Key) -> Option<Suppressed> {
        let State { missed: count, last, .. } = self;
        (count > 0).then(|| Suppressed { count, level: message.level, peer: peer.unwrap_or_default(), last })
    }
}

/// A message of a peer; without a peer, of all clients together.
type Key = (Message, Option<String>);

/// The states of all messages.
#[derive(Default)]
pub struct Ratelimits {
    states: HashMap<Key, State>,
    /// Counts of intervals that are over, to be reported.
    due: Vec<Suppressed>,
}

impl Ratelimits {
    /// Decides whether `message`, whose text is `text`, may be logged at `now`, and counts it if not.
    pub fn passes(&mut self, message: Message, peer: Peer<'_>, text: &str, now: Instant) -> bool {
        let (name, is_client) = match peer {
            Peer::Client(name) => (name, true),
            Peer::Configured(name) => (name, false),
        };
        let own = (message, Some(name.to_owned()));
        let has_own = !is_client || self.states.contains_key(&own) || self.states.len() < MAX_STATES;
        if has_own && self.state(own.clone(), now).is_used_up(BURST, text) {
            return false;
        }
        if is_client {
            let total = self.state((message, None), now);
            if total.is_used_up(TOTAL_BURST, text) {
                return false;
            }
            total.printed += 1;
        }
        if has_own {
            self.state(own, now).printed += 1;
        }
        true
    }

    /// Returns the state of the current interval.
    fn state(&mut self, key: Key, now: Instant) -> &mut State {
        if self.states.get(&key).is_some_and(|state| state.is_over(now)) {
            let over = self.states.remove(&key);
            if let Some(count) = over.and_then(|state| state.count(key.clone())) {
                self.add_due(count);
            }
        }
        self.states.entry(key).or_insert_with(|| State::new(now))
    }

    fn add_due(&mut self, count: Suppressed) {
        let is_full = self.due.len() >= MAX_DUE;
        match self.due.last_mut() {
            Some(all) if is_full => {
                *all = Suppressed { count: all.count + count.count, peer: String::new(), ..count };
            }
            _ => self.due.push(count),
        }
    }

    /// Returns the counts of intervals that are over at `now`, and forgets those intervals.
    pub fn expired(&mut self, now: Instant) -> Vec<Suppressed> {
        self.take(|state| state.is_over(now))
    }

    /// Returns all counts, and forgets all intervals.
    pub fn end(&mut self) -> Vec<Suppressed> {
        self.take(|_| true)
    }

    fn take(&mut self, is_taken: impl Fn(&State) -> bool) -> Vec<Suppressed> {
        let taken = self.states.extract_if(|_, state| is_taken(state));
        self.due.extend(taken.filter_map(|(key, state)| state.count(key)));
        let mut counts = std::mem::take(&mut self.due);
        // The map's order is random.
        counts.sort_by(|a, b| (&a.last, &a.peer).cmp(&(&b.last, &b.peer)));
        counts
    }
}

/// Returns what identifies a client over its connections: its address without the port (of IPv6 the network of 64 bits, in which one
/// machine has any number of addresses), or its user without the process.
pub fn peer_of(client: &str) -> String {
    match client.parse::<SocketAddr>().map(|at| at.ip()) {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_none() => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => client.find("uid ").map_or(client, |at| &client[at..]).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Message = Message { file: "a.rs", line: 1, level: Level::Info };
    const CAME: Message = Message { file: "a.rs", line: 2, level: Level::Warn };

    #[test]
    fn a_burst_is_printed_and_the_rest_is_counted() {
        let (mut limits, now) = (Ratelimits::default(), Instant::now());
        let printed = (0..1000).filter(|_| limits.passes(LEFT, Peer::Client("uid 1"), "left", now)).count();
        assert_eq!(printed, BURST as usize);
        assert!(limits.passes(LEFT, Peer::Client("uid 2"), "left", now), "another peer has a burst of its own");
        assert!(limits.passes(CAME, Peer::Client("uid 1"), "came", now), "and so has another message");
        assert_eq!(limits.expired(now), [], "the interval is not over");
        assert!(limits.passes(LEFT, Peer::Client("uid 1"), "left", now + INTERVAL));
        let count = Suppressed { count: 990, level: Level::Info, peer: "uid 1".to_owned(), last: "left".to_owned() };
        assert_eq!(limits.expired(now + INTERVAL), [count]);
        assert_eq!(limits.end(), [], "it is reported once");
    }

    #[test]
    fn a_burst_without_a_successor_is_reported_when_it_expires() {
        let (mut limits, now) = (Ratelimits::default(), Instant::now());
        let long = "\u{e4}".repeat(MAX_TEXT);
        for _ in 0..=BURST {
            limits.passes(LEFT, Peer::Client("uid 1"), &long, now);
        }
        let counts = limits.expired(now + INTERVAL);
        assert_eq!((counts.len(), counts[0].count, counts[0].last.len()), (1, 1, MAX_TEXT));
        assert!(limits.states.is_empty());
    }

    #[test]
    fn a_daemon_of_many_disks_reports_each() {
        let (mut limits, now) = (Ratelimits::default(), Instant::now());
        let opened =
            (0..5000).filter(|disk| limits.passes(CAME, Peer::Configured(&format!("disk{disk}")), "opened", now));
        assert_eq!(opened.count(), 5000);
    }

    #[test]
    fn many_clients_together_are_limited_and_all_are_counted() {
        let (mut limits, start) = (Ratelimits::default(), Instant::now());
        let (mut printed, mut all) = (0, 0);
        for interval in 0..3 {
            let now = start + INTERVAL * interval;
            // A few noisy peers, and more peers than there are states.
            for message in 0..6000_u32 {
                let peer = if message < 600 { message % 20 } else { message };
                printed += u64::from(limits.passes(LEFT, Peer::Client(&peer.to_string()), "left", now));
                all += 1;
                assert!(limits.states.len() <= MAX_STATES + 1);
            }
            assert!(printed <= u64::from(TOTAL_BURST * (interval + 1)), "{printed}");
        }
        let counted: u64 = limits.end().iter().map(|c| c.count).sum();
        assert_eq!(printed + counted, all);
    }

    #[test]
    fn a_peer_is_an_address_without_its_port_or_a_user() {
        for (client, peer) in [
            ("127.0.0.1:4711", "127.0.0.1"),
            ("[::ffff:10.0.0.1]:4711", "10.0.0.1"),
            ("[2001:db8:1:2:3:4:5:6]:7", "2001:db8:1:2::/64"),
            ("pid 17 uid 1000", "uid 1000"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(peer_of(client), peer);
        }
    }
}
