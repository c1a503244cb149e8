// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that packaged programs are optimised.
//!
//! Guarantees: for each package that the `release` profile builds at another level than 3, the `dist` profile sets level 3. It would
//! inherit the other level.

use std::collections::BTreeMap;

use super::finding::Finding;

/// Level of everything in packages.
const LEVEL: &str = "3";

/// Returns the findings in the workspace's manifest.
pub fn check(manifest: &str) -> Vec<Finding> {
    let dist: BTreeMap<&str, &str> = levels(manifest, "dist").map(|(_, key, level)| (key, level)).collect();
    let found = |line, text: String| Finding::new("Cargo.toml", line, text);
    let heads = manifest.lines().enumerate().filter(|(_, line)| line.starts_with("[profile.release.package."));
    let heads =
        heads.map(|(index, _)| found(index + 1, "set levels in the table [profile.release.package]".to_owned()));
    let levels = levels(manifest, "release").filter(|(_, key, level)| *level != LEVEL && dist.get(key) != Some(&LEVEL));
    let message = |key| format!("`{key}` of profile.release.package must be {LEVEL} in profile.dist.package");
    heads.chain(levels.map(|(line, key, _)| found(line, message(key)))).collect()
}

/// Returns lines, keys and values of the table `[profile.NAME.package]`.
fn levels<'m>(manifest: &'m str, name: &str) -> impl Iterator<Item = (usize, &'m str, &'m str)> {
    let head = format!("[profile.{name}.package]");
    let lines = manifest.lines().enumerate().skip_while(move |(_, line)| *line != head).skip(1);
    lines.take_while(|(_, line)| !line.starts_with('[')).filter(|(_, line)| !line.starts_with('#')).filter_map(
        |(index, line)| {
            let (key, value) = line.split_once('=')?;
            Some((index + 1, key.trim(), value.trim()))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_level_that_dist_would_inherit_is_found() {
        let release = "[profile.release.package]\n# x = y\na.opt-level = 0\nb.opt-level = 1\nc.opt-level = 3\n\n";
        let of = |dist: &str| -> Vec<String> {
            check(&format!("{release}{dist}")).iter().map(ToString::to_string).collect()
        };
        let message = |line, key| {
            format!("Cargo.toml:{line}: `{key}` of profile.release.package must be 3 in profile.dist.package")
        };
        let [a, b] = [message(3, "a.opt-level"), message(4, "b.opt-level")];
        assert_eq!(of(""), [a.clone(), b]);
        assert_eq!(of("[profile.dist.package]\na.opt-level = 2\nb.opt-level = 3\n"), [a]);
        assert!(of("[profile.dist.package]\na.opt-level = 3\nb.opt-level = 3\n").is_empty());
        assert_eq!(check("[profile.release.package.a]\nopt-level = 0\n").len(), 1);
    }
}
