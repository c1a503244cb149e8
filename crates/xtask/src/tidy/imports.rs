// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds which files of a crate use names that another file of the crate defines.
//!
//! Guarantees: an import counts for the file that defines the name, not for files that re-export it with `pub use`. Not counted are a
//! `mod` line alone, a re-export that its own file does not use, and code under `cfg(test)`. Reads `use` trees and paths in code
//! (`crate::a::f()`, `super::X`, `child::f()`). Does not see method calls on values, names that macros make, and names that a glob import
//! brings in from outside the module that it names.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Tree;
use super::source::{Source, is_name, leading_name, words};

/// For each file of a crate, the files that it imports from.
pub type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The path of a module or a name in it, from the crate's root.
type Path = Vec<String>;

/// How many re-exports may lie between an import and its definition.
const MOST_STEPS: usize = 16;

/// One name that a `use` brings into a module.
struct Binding {
    path: Path,
    re_export: bool,
}

/// A crate's modules, and the imports of each.
struct Names<'a> {
    tree: &'a Tree,
    sources: &'a BTreeMap<&'a str, &'a Source>,
    bound: BTreeMap<Path, BTreeMap<String, Binding>>,
    globs: BTreeMap<Path, Vec<Path>>,
}

/// Returns the imports between the files of the crate with these modules.
pub fn imports<'a>(tree: &'a Tree, sources: &'a BTreeMap<&'a str, &'a Source>) -> Imports<'a> {
    let mut names = Names { tree, sources, bound: BTreeMap::new(), globs: BTreeMap::new() };
    let mut used: Vec<(Path, &str, Path)> = Vec::new();
    for (module, file) in shipped(tree, sources) {
        for item in use_items(&sources[file].code).filter(|item| !sources[file].in_test(item.at)) {
            names.bind(module, file, &item, &mut used);
        }
    }
    for (module, file) in shipped(tree, sources) {
        let source = sources[file];
        let in_use: Vec<UseItem> = use_items(&source.code).collect();
        let counts = |at: &usize| !source.in_test(*at) && !in_use.iter().any(|item| item.tree.contains(at));
        let paths = paths_in(&source.code).into_iter().filter(|(at, _)| counts(at));
        used.extend(paths.map(|(_, path)| (module.clone(), file, path)));
    }
    let mut imports: Imports<'a> = tree.values().map(|file| (file.as_str(), BTreeSet::new())).collect();
    for (module, file, path) in &used {
        let Some(target) = names.absolute(module, path).and_then(|path| names.definer(&path, MOST_STEPS)) else {
            continue;
        };
        let file = *imports.keys().find(|known| *known == file).expect("every file of the tree is a key");
        if target != file {
            imports.get_mut(file).expect("just found").insert(target);
        }
    }
    imports
}

fn shipped<'a>(
    tree: &'a Tree,
    sources: &'a BTreeMap<&'a str, &'a Source>,
) -> impl Iterator<Item = (&'a Path, &'a str)> {
    tree.iter().map(|(module, file)| (module, file.as_str())).filter(|(_, file)| sources.contains_key(file))
}

impl<'a> Names<'a> {
    /// Records the names that a `use` brings in, and the paths that it uses itself.
    fn bind(&mut self, module: &Path, file: &'a str, item: &UseItem, used: &mut Vec<(Path, &'a str, Path)>) {
        let code = &self.sources[file].code;
        for (mut path, alias) in flatten(&code[item.tree.clone()]) {
            if path.last().is_some_and(|last| last == "*") {
                path.pop();
                self.globs.entry(module.clone()).or_default().push(path);
                continue;
            }
            let elsewhere = || words(code, &alias).any(|at| !item.tree.contains(&at));
            if !item.re_export || elsewhere() {
                used.push((module.clone(), file, path.clone()));
            }
            let binding = Binding { path, re_export: item.re_export };
            self.bound.entry(module.clone()).or_default().insert(alias, binding);
        }
    }

    /// Returns `path`, as written in `module`, as a path from the crate's root; `None` if it leads to another crate.
    fn absolute(&self, module: &Path, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Path::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            name => {
                let child: Path = module.iter().cloned().chain([name.to_owned()]).collect();
                if self.tree.contains_key(&child) {
                    child
                } else {
                    let bound = self.bound.get(module)?.get(name)?;
                    let here = bound.path.first().is_some_and(|first| first == name);
                    if here {
                        return None;
                    }
                    self.absolute(module, &bound.path)?
                }
            }
        };
        for name in rest {
            match name.as_str() {
                "self" => {}
                "super" => drop(base.pop()?),
                _ => base.push(name.clone()),
            }
        }
        Some(base)
    }

    /// Returns the file that defines the target of `path`, a path from the crate's root; `None` for a module by itself.
    fn definer(&self, path: &Path, steps: usize) -> Option<&'a str> {
        let depth = (0..=path.len()).rev().find(|n| self.tree.contains_key(&path[..*n]))?;
        let (module, rest) = (path[..depth].to_vec(), &path[depth..]);
        let name = rest.first()?;
        let onwards = steps.checked_sub(1)?;
        if let Some(binding) = self.bound.get(&module).and_then(|names| names.get(name)).filter(|b| b.re_export) {
            let target = self.absolute(&module, &binding.path)?;
            return self.definer(&target.into_iter().chain(rest[1..].iter().cloned()).collect(), onwards);
        }
        for glob in self.globs.get(&module).into_iter().flatten() {
            let Some(source) = self.absolute(&module, glob) else { continue };
            if let Some(file) = self.tree.get(&source).filter(|file| self.defines(file, name)) {
                return Some(file);
            }
        }
        self.tree.get(&module).map(String::as_str)
    }

    fn defines(&self, file: &str, name: &str) -> bool {
        const ITEMS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];
        let code = self.sources.get(file).map_or("", |source| source.code.as_str());
        words(code, name).any(|at| ITEMS.iter().any(|item| code[..at].trim_end().ends_with(item)))
    }
}

/// A `use` item: where it begins and which bytes are its tree.
struct UseItem {
    at: usize,
    tree: std::ops::Range<usize>,
    re_export: bool,
}

fn use_items(code: &str) -> impl Iterator<Item = UseItem> {
    words(code, "use").filter_map(|at| {
        let before = code[..at].trim_end();
        // `impl Trait + use<'a>` is no import.
        let starts = before.is_empty() || before.ends_with(['{', '}', ';', ']', ')']) || before.ends_with("pub");
        let end = at + code[at..].find(';')?;
        starts.then(|| UseItem {
            at,
            tree: at + 3..end,
            re_export: before.ends_with("pub") || ends_with_visibility(before),
        })
    })
}

/// Whether `before` ends with `pub(...)`.
fn ends_with_visibility(before: &str) -> bool {
    before.ends_with(')') && before.rfind('(').is_some_and(|open| before[..open].ends_with("pub"))
}

/// Returns the paths of a use tree, each with the name that it binds.
fn flatten(tree: &str) -> Vec<(Path, String)> {
    let mut found = Vec::new();
    flatten_below(&Path::new(), tree.trim(), &mut found);
    found
}

fn flatten_below(prefix: &Path, tree: &str, found: &mut Vec<(Path, String)>) {
    if let Some(open) = tree.find('{') {
        let inner = tree[open + 1..].trim_end().strip_suffix('}').unwrap_or(&tree[open + 1..]);
        let prefix = joined(prefix, tree[..open].trim_end().trim_end_matches("::"));
        split_at_commas(inner).filter(|part| !part.is_empty()).for_each(|part| flatten_below(&prefix, part, found));
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let mut path = joined(prefix, path);
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    if let Some(alias) = alias.map(str::to_owned).or_else(|| path.last().cloned()) {
        found.push((path, alias));
    }
}

fn joined(prefix: &Path, path: &str) -> Path {
    let names = path.split("::").map(str::trim).filter(|name| !name.is_empty());
    prefix.iter().cloned().chain(names.map(str::to_owned)).collect()
}

/// Splits a use tree at the commas that are outside of inner braces.
fn split_at_commas(tree: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i32;
    tree.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    })
    .map(str::trim)
}

/// Returns the paths of two or more names in `code`, without generic arguments, each with its start.
fn paths_in(code: &str) -> Vec<(usize, Path)> {
    let mut found = Vec::new();
    let mut done = 0;
    for (at, _) in code.match_indices("::") {
        if at < done {
            continue;
        }
        let start = code[..at].bytes().rposition(|b| !is_name(b)).map_or(0, |i| i + 1);
        let mut path = vec![code[start..at].to_owned()];
        let mut end = at;
        while let Some(rest) = code[end..].strip_prefix("::") {
            let name = leading_name(rest);
            if name.is_empty() || !rest.starts_with(name) {
                break;
            }
            path.push(name.to_owned());
            end += 2 + name.len();
        }
        done = end;
        if start < at && path.len() > 1 && !code[..start].ends_with("::") {
            found.push((start, path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the imports of a crate as `from > to`. The crate is given as files with their module and text.
    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let path = |module: &str| -> Path { module.split("::").filter(|m| !m.is_empty()).map(str::to_owned).collect() };
        let tree: Tree = files.iter().map(|(module, _)| (path(module), format!("{module}.rs"))).collect();
        let sources: Vec<Source> =
            files.iter().map(|(module, text)| Source::new(&format!("{module}.rs"), text, false)).collect();
        let sources: BTreeMap<&str, &Source> = sources.iter().map(|s| (s.path.as_str(), s)).collect();
        let found = imports(&tree, &sources);
        found.iter().flat_map(|(from, to)| to.iter().map(move |to| format!("{from} > {to}"))).collect()
    }

    #[test]
    fn a_use_and_a_path_count_for_the_defining_file() {
        let found = of(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::{self, X}; use std::fmt;"),
            ("b", "pub mod c; pub struct X; fn f() { c::g(); super::a::h() }"),
            ("b::c", "pub fn g() {}"),
        ]);
        assert_eq!(found, ["a.rs > b.rs", "b.rs > a.rs", "b.rs > b::c.rs"]);
    }

    #[test]
    fn re_exports_are_followed_and_count_only_where_used() {
        let found = of(&[
            ("", "mod a; mod b; mod d; pub use b::c::X;"),
            ("a", "use crate::X; use crate::b::Y;"),
            ("b", "pub mod c; pub use c::X; pub use c::*;"),
            ("b::c", "pub struct X; pub enum Y {}"),
            ("d", "pub(crate) use crate::a::Z; fn f(_: Z) {}"),
        ]);
        assert_eq!(found, ["a.rs > b::c.rs", "d.rs > a.rs"]);
    }

    #[test]
    fn modules_declarations_and_tests_count_for_nothing() {
        let found = of(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b; #[cfg(test)] mod tests { use crate::b::X; }"),
            ("b", "pub struct X; // crate::a::Y\nfn f() -> impl Iterator + use<> { crate::b::X }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
