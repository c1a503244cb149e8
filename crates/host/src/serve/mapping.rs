// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IOThread Virtqueue Mapping: which IOThread serves which virtqueue, by QEMU's rules.
//!
//! Guarantees: a mapping that resolves gives each virtqueue one existing IOThread. Any other mapping is refused, with the reason and the
//! remedy. Needs from callers: IOThread names that are unique. Does not do: choose IOThreads for exports that name none (see
//! `super::plan`), start threads, move virtqueues.
//!
//! The rules: each IOThread exists and is named once; either all entries list virtqueues or none does; without lists
//! virtqueue i goes to entry i mod n; with lists each index is below `num_queues`, and each virtqueue is listed exactly once.
//!
//! Source: QEMU qapi/virtio.json, `IOThreadVirtQueueMapping` (since 9.0), hw/virtio/iothread-vq-mapping.c; libvirt
//! formatdomain, `<driver><iothreads>`.

use crate::error::{Error, Result};
use blk::suggest::did_you_mean;

/// One entry of a mapping: an IOThread, and the virtqueues it serves if the mapping is explicit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingEntry {
    /// Name of the IOThread.
    pub iothread: String,
    /// Indices of virtqueues; `None`: virtqueues are distributed round robin.
    pub vqs: Option<Vec<u16>>,
}

/// Which IOThreads serve the virtqueues of one export, as requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// In the order given; empty = any.
    pub entries: Vec<MappingEntry>,
}

impl Mapping {
    /// Makes a round-robin mapping over these IOThreads.
    pub fn round_robin<S: Into<String>>(iothreads: impl IntoIterator<Item = S>) -> Mapping {
        let entries = iothreads.into_iter().map(|name| MappingEntry { iothread: name.into(), vqs: None });
        Mapping { entries: entries.collect() }
    }

    /// Returns, for each of `num_queues` virtqueues, the index in `iothreads` of the IOThread that serves it.
    ///
    /// # Errors
    /// Usage: the mapping breaks a rule of this module, or has no entries.
    pub fn resolve(&self, num_queues: u16, iothreads: &[&str]) -> Result<Vec<usize>> {
        let served_by = self.iothreads(iothreads)?;
        let explicit = self.entries.iter().filter(|e| e.vqs.is_some()).count();
        if explicit == 0 {
            // There is at least one IOThread, because `iothreads` refused a mapping without entries.
            return Ok(served_by.iter().copied().cycle().take(usize::from(num_queues)).collect());
        }
        if let Some(bare) = self.entries.iter().find(|e| e.vqs.is_none()) {
            return refused(format!(
                "IOThread '{}' has no list of virtqueues, but {explicit} of {} entries have one: give each entry a \
                 list, or none a list",
                bare.iothread,
                self.entries.len()
            ));
        }
        self.explicit(num_queues, &served_by)
    }

    /// Returns the index in `iothreads` of each entry's IOThread.
    fn iothreads(&self, iothreads: &[&str]) -> Result<Vec<usize>> {
        if self.entries.is_empty() {
            return refused("the mapping names no IOThread: name at least one, or leave the mapping out".to_owned());
        }
        let mut found: Vec<usize> = Vec::with_capacity(self.entries.len().min(iothreads.len()));
        for entry in &self.entries {
            let name = entry.iothread.as_str();
            let Some(index) = iothreads.iter().position(|known| *known == name) else {
                let hint = did_you_mean(name, iothreads.iter().copied());
                return refused(format!("there is no IOThread '{name}'; {hint}IOThreads: {}", listed(iothreads)));
            };
            if found.contains(&index) {
                return refused(format!("IOThread '{name}' is named twice: give it all its virtqueues in one entry"));
            }
            found.push(index);
        }
        Ok(found)
    }

    fn explicit(&self, num_queues: u16, served_by: &[usize]) -> Result<Vec<usize>> {
        let mut of_vq: Vec<Option<usize>> = vec![None; usize::from(num_queues)];
        for (entry, iothread) in self.entries.iter().zip(served_by) {
            for vq in entry.vqs.iter().flatten() {
                let name = &entry.iothread;
                match of_vq.get_mut(usize::from(*vq)) {
                    None => {
                        return refused(format!(
                            "virtqueue {vq} of IOThread '{name}' does not exist: with num_queues={num_queues} they are \
                             0..={}",
                            num_queues.saturating_sub(1)
                        ));
                    }
                    Some(Some(_)) => {
                        return refused(format!(
                            "virtqueue {vq} is assigned twice, the second time to IOThread '{name}': list each once"
                        ));
                    }
                    Some(free) => *free = Some(*iothread),
                }
            }
        }
        let missing: Vec<usize> = (0..of_vq.len()).filter(|vq| of_vq[*vq].is_none()).collect();
        match missing.first() {
            None => Ok(of_vq.into_iter().flatten().collect()),
            Some(first) => refused(format!(
                "{} of {num_queues} virtqueues have no IOThread, the first is {first}: list each once, or leave out all \
                 lists to distribute them round robin",
                missing.len()
            )),
        }
    }
}

fn refused<T>(text: String) -> Result<T> {
    Err(Error::usage(text))
}

/// Returns names for a message, only the first few if there are many.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THREADS: [&str; 4] = ["io1", "io2", "io3", "io4"];

    fn mapping(entries: &[(&str, Option<&[u16]>)]) -> Mapping {
        let entry = |(name, vqs): &(&str, Option<&[u16]>)| MappingEntry {
            iothread: (*name).to_owned(),
            vqs: vqs.map(<[u16]>::to_vec),
        };
        Mapping { entries: entries.iter().map(entry).collect() }
    }

    fn refused(num_queues: u16, entries: &[(&str, Option<&[u16]>)]) -> String {
        mapping(entries).resolve(num_queues, &THREADS).unwrap_err().to_string()
    }

    #[test]
    fn unlisted_virtqueues_are_mapped_round_robin() {
        let of = |names: &[&str], n| Mapping::round_robin(names.iter().copied()).resolve(n, &THREADS).unwrap();
        assert_eq!(of(&THREADS, 6), [0, 1, 2, 3, 0, 1]);
        assert_eq!(of(&["io4", "io2"], 3), [3, 1, 3]);
        assert_eq!(of(&THREADS, 2), [0, 1], "more IOThreads than virtqueues: some stay idle");
        let published = of(&THREADS, 96);
        assert!(published.iter().enumerate().all(|(vq, thread)| *thread == vq % 4));
    }

    #[test]
    fn with_lists_each_virtqueue_goes_where_it_is_listed() {
        let m = mapping(&[("io3", Some(&[3, 0])), ("io1", Some(&[1, 2]))]);
        assert_eq!(m.resolve(4, &THREADS).unwrap(), [2, 0, 0, 2]);
        let idle = mapping(&[("io1", Some(&[0])), ("io2", Some(&[]))]);
        assert_eq!(idle.resolve(1, &THREADS).unwrap(), [0], "an empty list is a list");
    }

    #[test]
    fn each_broken_rule_is_named_with_the_value_and_the_remedy() {
        assert_eq!(
            refused(2, &[("io1", Some(&[0, 1])), ("io2", None)]),
            "IOThread 'io2' has no list of virtqueues, but 1 of 2 entries have one: give each entry a list, or none a list"
        );
        assert_eq!(
            refused(2, &[("io1", Some(&[0])), ("io2", Some(&[1, 0]))]),
            "virtqueue 0 is assigned twice, the second time to IOThread 'io2': list each once"
        );
        assert_eq!(
            refused(4, &[("io1", Some(&[0, 2]))]),
            "2 of 4 virtqueues have no IOThread, the first is 1: list each once, or leave out all lists to \
             distribute them round robin"
        );
        assert_eq!(
            refused(2, &[("io1", None), ("io1", None)]),
            "IOThread 'io1' is named twice: give it all its virtqueues in one entry"
        );
        assert_eq!(
            refused(2, &[("io5", None)]),
            "there is no IOThread 'io5'; did you mean 'io1'? IOThreads: io1, io2, io3, io4"
        );
        assert_eq!(
            refused(2, &[("io1", Some(&[0, 1, 2]))]),
            "virtqueue 2 of IOThread 'io1' does not exist: with num_queues=2 they are 0..=1"
        );
        assert!(refused(2, &[]).starts_with("the mapping names no IOThread"));
    }

    proptest! {
        /// Whatever comes from a file: a mapping is refused, or every virtqueue has an IOThread that was named for it.
        #[test]
        fn what_resolves_serves_every_virtqueue_once(
            num_queues in 0u16..12,
            entries in prop::collection::vec((0usize..5, prop::option::of(prop::collection::vec(0u16..12, 0..8))), 0..5),
        ) {
            let names = ["io1", "io2", "io3", "io4", "other"];
            let m = Mapping {
                entries: entries.iter().map(|(n, vqs)| MappingEntry { iothread: names[*n].into(), vqs: vqs.clone() }).collect(),
            };
            if let Ok(of_vq) = m.resolve(num_queues, &THREADS) {
                prop_assert_eq!(of_vq.len(), usize::from(num_queues));
                for (vq, thread) in of_vq.iter().enumerate() {
                    let entry = m.entries.iter().find(|e| e.iothread == THREADS[*thread]).expect("a named IOThread");
                    prop_assert!(entry.vqs.as_ref().is_none_or(|vqs| vqs.contains(&(vq as u16))));
                }
                let listed: usize = m.entries.iter().map(|e| e.vqs.as_ref().map_or(0, Vec::len)).sum();
                prop_assert!(listed == 0 || listed == of_vq.len());
            }
        }
    }
}
