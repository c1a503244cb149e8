// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths of a disk, which may change while it is used.
//!
//! Guarantees: a path is in the list until it is closed. A path that is being removed is listed apart from the others until its requests
//! have completed. The lock is held for a few instructions, or while a closure of the caller looks at paths; that closure must not use
//! the list.

use parking_lot::RwLock;
use std::sync::Arc;

/// See the module's text.
pub(super) struct PathList<T> {
    lists: RwLock<Lists<T>>,
}

struct Lists<T> {
    present: Vec<Arc<T>>,
    leaving: Vec<Arc<T>>,
}

impl<T> PathList<T> {
    pub(super) fn new(paths: Vec<T>) -> PathList<T> {
        let present = paths.into_iter().map(Arc::new).collect();
        PathList { lists: RwLock::new(Lists { present, leaving: Vec::new() }) }
    }

    /// Returns the paths that are not being removed.
    pub(super) fn present(&self) -> Vec<Arc<T>> {
        self.lists.read().present.clone()
    }

    /// Returns the paths that are being removed.
    pub(super) fn leaving(&self) -> Vec<Arc<T>> {
        self.lists.read().leaving.clone()
    }

    /// Calls `look` for each path, also for those that are being removed.
    pub(super) fn each(&self, mut look: impl FnMut(&T)) {
        let lists = self.lists.read();
        lists.present.iter().chain(&lists.leaving).for_each(|path| look(path));
    }

    pub(super) fn add(&self, path: Arc<T>) {
        self.lists.write().present.push(path);
    }

    /// Lists a path as one that is being removed.
    pub(super) fn leave(&self, path: &T) {
        let mut lists = self.lists.write();
        if let Some(at) = lists.present.iter().position(|p| std::ptr::eq(&**p, path)) {
            let path = lists.present.remove(at);
            lists.leaving.push(path);
        }
    }

    /// Drops a path that was being removed.
    pub(super) fn forget(&self, path: &T) {
        self.lists.write().leaving.retain(|p| !std::ptr::eq(&**p, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_listed_until_it_is_forgotten() {
        let list = PathList::new(vec![1, 2]);
        let all = || {
            let mut all = Vec::new();
            list.each(|n| all.push(*n));
            all
        };
        list.add(Arc::new(3));
        let two = list.present().remove(1);
        list.leave(&two);
        assert_eq!((list.present(), list.leaving()), (vec![Arc::new(1), Arc::new(3)], vec![Arc::new(2)]));
        list.leave(&two);
        assert_eq!(all(), [1, 3, 2]);
        list.forget(&two);
        assert_eq!(all(), [1, 3]);
    }
}
