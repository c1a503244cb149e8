// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Broken rules of a machine file, by the key that breaks one.

/// A broken rule: the path of the key that breaks it, and the rule.
pub(super) type Broken = (Vec<String>, String);

/// Makes the path of a key from names.
pub(super) fn key<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}
