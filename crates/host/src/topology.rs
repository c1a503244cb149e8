// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPUs of this machine as Linux tells them in sysfs: NUMA nodes, cores, last-level caches.
//!
//! Guarantees: what is returned is consistent, and has exactly the CPUs asked for, numbered as the kernel does. Needs a
//! tree laid out as /sys/devices/system. Does not do: offline CPUs, CPU numbers with gaps, or a process that may use
//! some of the CPUs only (`None`; the caller invents a uniform machine).
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-devices-node; Documentation/admin-guide/cputopology.rst.

use blk::cpumap::CpuTopology;
use std::fs;
use std::path::Path;

/// Where the kernel has it.
pub const SYSTEM: &str = "/sys/devices/system";

/// The topology under `root`, if its present CPUs are 0..`nr_cpus` and it says which are siblings. Without nodes there is
/// one; without caches CPUs of a node share one.
pub fn read(root: &Path, nr_cpus: u16) -> Option<CpuTopology> {
    let present = cpu_list(&text(&root.join("cpu/present"))?)?;
    if !present.iter().copied().eq(0..nr_cpus) {
        return None;
    }
    let node_of = nodes(&root.join("node"), nr_cpus);
    let cpu = |n: u16| root.join(format!("cpu/cpu{n}"));
    // The lowest sibling stands for all: core_id is unique within a package only.
    let core_of =
        (0..nr_cpus).map(|n| first_of(&cpu(n).join("topology/thread_siblings_list"))).collect::<Option<_>>()?;
    let cache_of: Option<Vec<u16>> = (0..nr_cpus).map(|n| last_level_cache(&cpu(n).join("cache"))).collect();
    let cache_of = cache_of.unwrap_or_else(|| node_of.clone());
    CpuTopology::new(node_of, core_of, cache_of, vec![true; usize::from(nr_cpus)]).ok()
}

/// The CPUs under `root` that are online now.
pub fn online(root: &Path) -> Option<Vec<u16>> {
    // At least one CPU is online, because the caller runs on it. So an empty list is a list that is being written.
    cpu_list(&text(&root.join("cpu/online"))?).filter(|cpus| !cpus.is_empty())
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// `0-3,8,10-11` in rising order.
fn cpu_list(text: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|r| !r.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

fn first_of(path: &Path) -> Option<u16> {
    cpu_list(&text(path)?)?.first().copied()
}

/// The lowest of the CPUs that share the cache of the highest level with this one.
fn last_level_cache(dir: &Path) -> Option<u16> {
    let caches = (0..).map(|i| dir.join(format!("index{i}"))).take_while(|index| index.is_dir());
    let level = |index: &Path| text(&index.join("level"))?.trim().parse::<u32>().ok();
    let last = caches.filter_map(|index| Some((level(&index)?, index))).max_by_key(|(level, _)| *level)?;
    first_of(&last.1.join("shared_cpu_list"))
}

/// The node of each CPU; 0 for those that no node names.
fn nodes(dir: &Path, nr_cpus: u16) -> Vec<u16> {
    let mut node_of = vec![0; usize::from(nr_cpus)];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|n| n.strip_prefix("node")?.parse().ok()) else { continue };
        let cpus = text(&entry.path().join("cpulist")).and_then(|list| cpu_list(&list)).unwrap_or_default();
        for cpu in cpus {
            if let Some(node) = node_of.get_mut(usize::from(cpu)) {
                *node = number;
            }
        }
    }
    node_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let tree = Tree(std::env::temp_dir().join(format!("topology-{}-{name}", std::process::id())));
            tree.add(files);
            tree
        }

        fn add(&self, files: &[(&str, &str)]) {
            for (path, content) in files {
                let path = self.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{content}\n")).unwrap();
            }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Two nodes of two CPUs, siblings across: 0 and 2 are one core, 1 and 3 the other.
    const FILES: &[(&str, &str)] = &[
        ("cpu/present", "0-3"),
        ("cpu/cpu0/topology/thread_siblings_list", "0,2"),
        ("cpu/cpu1/topology/thread_siblings_list", "1,3"),
        ("cpu/cpu2/topology/thread_siblings_list", "0,2"),
        ("cpu/cpu3/topology/thread_siblings_list", "1,3"),
        ("node/node0/cpulist", "0,2"),
        ("node/node1/cpulist", "1,3"),
        ("node/possible", "0-1"),
    ];

    #[test]
    fn nodes_cores_and_caches_are_read() {
        let tree = Tree::new("all", FILES);
        let t = read(&tree.0, 4).unwrap();
        assert_eq!((&t.node_of[..], &t.core_of[..]), (&[0, 1, 0, 1][..], &[0, 1, 0, 1][..]));
        assert_eq!(t.cache_group_of, t.node_of, "no caches: one per node");
        let caches = (0..4).flat_map(|n| {
            let of = |i: u32, file: &str| format!("cpu/cpu{n}/cache/index{i}/{file}");
            [
                (of(0, "level"), "1".to_owned()),
                (of(0, "shared_cpu_list"), n.to_string()),
                (of(1, "level"), "3".to_owned()),
                (of(1, "shared_cpu_list"), "0-3".to_owned()),
            ]
        });
        let caches: Vec<_> = caches.collect();
        tree.add(&caches.iter().map(|(p, c)| (p.as_str(), c.as_str())).collect::<Vec<_>>());
        assert_eq!(read(&tree.0, 4).unwrap().cache_group_of, [0; 4]);
    }

    #[test]
    fn what_is_not_the_whole_machine_is_not_guessed() {
        let tree = Tree::new("part", FILES);
        assert_eq!(read(&tree.0, 2), None, "a process on two of four CPUs");
        assert_eq!(read(&tree.0.join("none"), 4), None);
        fs::write(tree.0.join("cpu/present"), "0-1,4-5").unwrap();
        assert_eq!(read(&tree.0, 4), None, "gaps");
        fs::write(tree.0.join("cpu/present"), "0-x").unwrap();
        assert_eq!(read(&tree.0, 4), None);
    }
}
