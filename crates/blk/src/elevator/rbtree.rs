// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests sorted by sector: red-black trees over request numbers, with the nodes in one table.
//!
//! Guarantees: no allocation after construction; every operation is O(log n) in the worst case, whatever sectors a
//! guest chooses; requests with the same sector stay in the order of insertion. A request is in at most one of the
//! trees that share a table (asserted). Needs: all calls under one lock. A tree keeps its own copy of the sector, so
//! that a search reads 24 bytes per step and not the request; when a request's sector changes, the owner of the tree
//! removes the request and inserts it again.
//!
//! Shape and search order are those of the kernel's `elv_rb_*`, so among requests with the same sector [`RbTree::find`]
//! returns the one that the kernel finds. Algorithm: Cormen et al., Introduction to Algorithms, 3rd ed., chapter 13,
//! with a shared sentinel node.

/// Node of one request.
#[derive(Clone, Copy)]
struct Node {
    sector: u64,
    left: u32,
    right: u32,
    parent: u32,
    red: bool,
}

/// In `parent`: not in a tree.
const UNLINKED: u32 = u32::MAX;

/// The nodes of all requests of a disk.
pub(crate) struct RbNodes {
    nodes: Box<[Node]>,
    /// The sentinel: stands for every missing child and for the parent of a root; always black.
    nil: u32,
}

/// One tree. Its nodes are in the [`RbNodes`] that every call takes.
pub(crate) struct RbTree {
    root: u32,
}

impl RbNodes {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> RbNodes {
        let nil = u32::try_from(nr_requests).expect("request numbers fit 32 bits");
        assert!(nil < UNLINKED);
        let unlinked = Node { sector: 0, left: nil, right: nil, parent: UNLINKED, red: false };
        let mut nodes = vec![unlinked; nr_requests + 1].into_boxed_slice();
        nodes[nr_requests].parent = nil;
        RbNodes { nodes, nil }
    }

    #[inline]
    fn at(&self, rq: u32) -> &Node {
        &self.nodes[rq as usize]
    }

    #[inline]
    fn at_mut(&mut self, rq: u32) -> &mut Node {
        &mut self.nodes[rq as usize]
    }

    #[inline]
    fn some(&self, rq: u32) -> Option<u32> {
        (rq != self.nil).then_some(rq)
    }

    fn leftmost(&self, mut rq: u32) -> u32 {
        while self.at(rq).left != self.nil {
            rq = self.at(rq).left;
        }
        rq
    }

    fn rightmost(&self, mut rq: u32) -> u32 {
        while self.at(rq).right != self.nil {
            rq = self.at(rq).right;
        }
        rq
    }

    /// The sector `rq` is sorted by.
    #[inline]
    pub(crate) fn sector(&self, rq: u32) -> u64 {
        debug_assert!(self.at(rq).parent != UNLINKED);
        self.at(rq).sector
    }

    /// The request after `rq` in its tree.
    pub(crate) fn latter(&self, rq: u32) -> Option<u32> {
        debug_assert!(self.at(rq).parent != UNLINKED);
        if self.at(rq).right != self.nil {
            return Some(self.leftmost(self.at(rq).right));
        }
        let (mut child, mut up) = (rq, self.at(rq).parent);
        while up != self.nil && child == self.at(up).right {
            (child, up) = (up, self.at(up).parent);
        }
        self.some(up)
    }

    /// The request before `rq` in its tree.
    pub(crate) fn former(&self, rq: u32) -> Option<u32> {
        debug_assert!(self.at(rq).parent != UNLINKED);
        if self.at(rq).left != self.nil {
            return Some(self.rightmost(self.at(rq).left));
        }
        let (mut child, mut up) = (rq, self.at(rq).parent);
        while up != self.nil && child == self.at(up).left {
            (child, up) = (up, self.at(up).parent);
        }
        self.some(up)
    }
}

impl RbTree {
    /// An empty tree over `nodes`.
    pub(crate) fn new(nodes: &RbNodes) -> RbTree {
        RbTree { root: nodes.nil }
    }

    /// Adds a request, behind those with the same sector.
    pub(crate) fn insert(&mut self, n: &mut RbNodes, rq: u32, sector: u64) {
        assert!(n.at(rq).parent == UNLINKED, "request {rq} is in a tree already");
        let (mut parent, mut at) = (n.nil, self.root);
        let mut goes_left = false;
        while at != n.nil {
            parent = at;
            goes_left = sector < n.at(at).sector;
            at = if goes_left { n.at(at).left } else { n.at(at).right };
        }
        *n.at_mut(rq) = Node { sector, left: n.nil, right: n.nil, parent, red: true };
        if parent == n.nil {
            self.root = rq;
        } else if goes_left {
            n.at_mut(parent).left = rq;
        } else {
            n.at_mut(parent).right = rq;
        }
        self.insert_fixup(n, rq);
    }

    /// Restores "no red node has a red child" upwards from a new red node.
    fn insert_fixup(&mut self, n: &mut RbNodes, mut z: u32) {
        while n.at(n.at(z).parent).red {
            let parent = n.at(z).parent;
            let grand = n.at(parent).parent;
            let parent_is_left = parent == n.at(grand).left;
            let uncle = if parent_is_left { n.at(grand).right } else { n.at(grand).left };
            if n.at(uncle).red {
                n.at_mut(parent).red = false;
                n.at_mut(uncle).red = false;
                n.at_mut(grand).red = true;
                z = grand;
                continue;
            }
            let inner = if parent_is_left { n.at(parent).right } else { n.at(parent).left };
            let top = if z == inner {
                self.rotate(n, parent, parent_is_left);
                z
            } else {
                parent
            };
            n.at_mut(top).red = false;
            n.at_mut(grand).red = true;
            self.rotate(n, grand, !parent_is_left);
            break;
        }
        let root = self.root;
        n.at_mut(root).red = false;
    }

    /// Takes a request out.
    pub(crate) fn remove(&mut self, n: &mut RbNodes, rq: u32) {
        let z = *n.at(rq);
        assert!(z.parent != UNLINKED, "request {rq} is in no tree");
        let (mut lost_red, gap) = (z.red, if z.left == n.nil { z.right } else { z.left });
        let mut gap = gap;
        if z.left == n.nil || z.right == n.nil {
            self.replace(n, rq, gap);
        } else {
            let heir = n.leftmost(z.right);
            lost_red = n.at(heir).red;
            gap = n.at(heir).right;
            if n.at(heir).parent == rq {
                // `gap` may be the sentinel: the fixup climbs from it, so its parent has to be right.
                n.at_mut(gap).parent = heir;
            } else {
                self.replace(n, heir, gap);
                n.at_mut(heir).right = z.right;
                n.at_mut(z.right).parent = heir;
            }
            self.replace(n, rq, heir);
            let h = n.at_mut(heir);
            h.left = z.left;
            h.red = z.red;
            n.at_mut(z.left).parent = heir;
        }
        if !lost_red {
            self.remove_fixup(n, gap);
        }
        n.at_mut(rq).parent = UNLINKED;
    }

    /// Restores equal black heights upwards from the place where a black node was lost.
    fn remove_fixup(&mut self, n: &mut RbNodes, mut x: u32) {
        while x != self.root && !n.at(x).red {
            let parent = n.at(x).parent;
            let is_left = x == n.at(parent).left;
            let mut sibling = child(n, parent, !is_left);
            if n.at(sibling).red {
                n.at_mut(sibling).red = false;
                n.at_mut(parent).red = true;
                self.rotate(n, parent, is_left);
                sibling = child(n, parent, !is_left);
            }
            let (near, far) = (child(n, sibling, is_left), child(n, sibling, !is_left));
            if !n.at(near).red && !n.at(far).red {
                n.at_mut(sibling).red = true;
                x = parent;
                continue;
            }
            if !n.at(far).red {
                n.at_mut(near).red = false;
                n.at_mut(sibling).red = true;
                self.rotate(n, sibling, !is_left);
                sibling = near;
            }
            n.at_mut(sibling).red = n.at(parent).red;
            n.at_mut(parent).red = false;
            let far = child(n, sibling, !is_left);
            n.at_mut(far).red = false;
            self.rotate(n, parent, is_left);
            x = self.root;
        }
        n.at_mut(x).red = false;
    }

    /// Puts the subtree `new` where `old` hangs.
    fn replace(&mut self, n: &mut RbNodes, old: u32, new: u32) {
        let parent = n.at(old).parent;
        if parent == n.nil {
            self.root = new;
        } else if n.at(parent).left == old {
            n.at_mut(parent).left = new;
        } else {
            n.at_mut(parent).right = new;
        }
        n.at_mut(new).parent = parent;
    }

    /// Turns the edge from `x` to its right (`left` = true: "rotate left") or left child.
    fn rotate(&mut self, n: &mut RbNodes, x: u32, left: bool) {
        let y = child(n, x, !left);
        let middle = child(n, y, left);
        self.replace(n, x, y);
        if left {
            n.at_mut(x).right = middle;
            n.at_mut(y).left = x;
        } else {
            n.at_mut(x).left = middle;
            n.at_mut(y).right = x;
        }
        if middle != n.nil {
            n.at_mut(middle).parent = x;
        }
        n.at_mut(x).parent = y;
    }

    /// The first request, in order, whose sector is `sector` or greater.
    #[inline]
    pub(crate) fn first_at_or_after(&self, n: &RbNodes, sector: u64) -> Option<u32> {
        let (mut at, mut found) = (self.root, n.nil);
        while at != n.nil {
            let node = n.at(at);
            if node.sector >= sector {
                found = at;
                at = node.left;
            } else {
                at = node.right;
            }
        }
        n.some(found)
    }

    /// A request that starts at `sector`: of several, the one nearest the root.
    #[inline]
    pub(crate) fn find(&self, n: &RbNodes, sector: u64) -> Option<u32> {
        let mut at = self.root;
        while at != n.nil {
            let node = n.at(at);
            if sector == node.sector {
                return Some(at);
            }
            at = if sector < node.sector { node.left } else { node.right };
        }
        None
    }
}

#[inline]
fn child(n: &RbNodes, of: u32, left: bool) -> u32 {
    if left { n.at(of).left } else { n.at(of).right }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;
    use std::collections::BTreeMap;

    /// Checks colours and links below `rq`; returns the number of black nodes on every way down.
    fn check(n: &RbNodes, rq: u32) -> u32 {
        if rq == n.nil {
            return 1;
        }
        let Node { left, right, red, .. } = *n.at(rq);
        for c in [left, right] {
            if c != n.nil {
                assert_eq!(n.at(c).parent, rq);
                assert!(!(red && n.at(c).red), "red node {rq} has red child {c}");
            }
        }
        let (l, r) = (check(n, left), check(n, right));
        assert_eq!(l, r, "black heights differ below {rq}");
        l + u32::from(!red)
    }

    fn in_order(n: &RbNodes, t: &RbTree) -> Vec<u32> {
        let mut at = t.first_at_or_after(n, 0);
        std::iter::from_fn(|| {
            let rq = at?;
            at = n.latter(rq);
            Some(rq)
        })
        .collect()
    }

    /// The model: (sector, insertion number) -> request.
    struct Model {
        sorted: BTreeMap<(u64, u64), u32>,
        key_of: Vec<Option<(u64, u64)>>,
    }

    #[test]
    fn behaves_like_a_sorted_map_and_stays_balanced() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let size = 1 + rng.below(200) as usize;
            let sectors = if seed % 3 == 0 { 20 } else { 1 << 40 };
            let mut n = RbNodes::new(size);
            let mut tree = RbTree::new(&n);
            let mut model = Model { sorted: BTreeMap::new(), key_of: vec![None; size] };
            for step in 0..3000 {
                let rq = rng.below(size as u64) as u32;
                match model.key_of[rq as usize].take() {
                    Some(key) => {
                        tree.remove(&mut n, rq);
                        model.sorted.remove(&key);
                    }
                    None => {
                        let key = (rng.below(sectors), step);
                        tree.insert(&mut n, rq, key.0);
                        model.sorted.insert(key, rq);
                        model.key_of[rq as usize] = Some(key);
                    }
                }
                let probe = rng.below(sectors);
                let expected = model.sorted.range((probe, 0)..).next().map(|(_, rq)| *rq);
                assert_eq!(tree.first_at_or_after(&n, probe), expected, "seed {seed} step {step}");
                let exact = tree.find(&n, probe).map(|rq| n.at(rq).sector);
                let has = model.sorted.range((probe, 0)..=(probe, u64::MAX)).next().map(|(k, _)| k.0);
                assert_eq!(exact, has, "seed {seed} step {step}");
                if step % 50 == 0 {
                    check(&n, tree.root);
                    assert!(!n.at(tree.root).red);
                }
                if step % 10 == 0 {
                    let order = in_order(&n, &tree);
                    assert_eq!(order, model.sorted.values().copied().collect::<Vec<_>>(), "seed {seed} step {step}");
                    for pair in order.windows(2) {
                        assert_eq!(n.former(pair[1]), Some(pair[0]));
                    }
                    assert_eq!(order.first().and_then(|rq| n.former(*rq)), None);
                }
            }
        }
    }

    #[test]
    fn ascending_sectors_do_not_degenerate() {
        let mut n = RbNodes::new(1024);
        let mut tree = RbTree::new(&n);
        for rq in 0..1024 {
            tree.insert(&mut n, rq, u64::from(rq) * 8);
        }
        // 1024 nodes: a black height above 10 would mean more than 1024 black nodes.
        assert!(check(&n, tree.root) <= 11);
    }

    #[test]
    fn trees_share_a_table_without_touching_each_other() {
        let mut n = RbNodes::new(4);
        let (mut a, mut b) = (RbTree::new(&n), RbTree::new(&n));
        a.insert(&mut n, 0, 10);
        b.insert(&mut n, 1, 10);
        a.insert(&mut n, 2, 5);
        b.remove(&mut n, 1);
        assert_eq!(in_order(&n, &a), [2, 0]);
        assert_eq!(b.first_at_or_after(&n, 0), None);
    }

    #[test]
    #[should_panic(expected = "in a tree already")]
    fn a_request_is_in_one_tree_only() {
        let mut n = RbNodes::new(1);
        let (mut a, mut b) = (RbTree::new(&n), RbTree::new(&n));
        a.insert(&mut n, 0, 1);
        b.insert(&mut n, 0, 1);
    }
}
