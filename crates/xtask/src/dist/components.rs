// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the libraries that are linked into the programs, in a machine-readable form (CycloneDX 1.5), and with their licences for people.
//!
//! Guarantees: a library is listed if its code, or code that its macros make, is in a program. Dependencies of tests and of build scripts
//! are not listed.
//! Source: <https://cyclonedx.org/docs/1.5/json/>; package addresses as in <https://github.com/package-url/purl-spec>.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::project::{Project, cargo};
use crate::tool;

/// The packages of the programs that are shipped.
const PROGRAMS: [&str; 2] = ["mqblk", "mqblk-fio-engine"];

/// Libraries and what they depend on.
pub struct Components {
    /// By Cargo's identifier.
    packages: BTreeMap<String, Package>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for members of this workspace.
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `dev` or `build`; `None` for an ordinary dependency.
    kind: Option<String>,
}

/// Finds the libraries with `cargo metadata`.
///
/// # Errors
/// When Cargo cannot be run, or its output cannot be read.
pub fn find(project: &Project) -> Result<Components, String> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo();
    command.current_dir(&project.root).args(["metadata", "--locked", "--format-version=1"]);
    let text = tool::output(command.args(["--filter-platform", &platform]))?;
    let metadata = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(reachable(metadata))
}

/// Returns the packages that [`PROGRAMS`] reach over ordinary dependencies.
fn reachable(metadata: Metadata) -> Components {
    let mut nodes: BTreeMap<String, Vec<Edge>> = metadata.resolve.nodes.into_iter().map(|n| (n.id, n.deps)).collect();
    let roots = metadata.packages.iter().filter(|p| PROGRAMS.contains(&p.name.as_str()) && p.source.is_none());
    let mut left: Vec<String> = roots.map(|p| p.id.clone()).collect();
    let mut edges = BTreeMap::new();
    while let Some(id) = left.pop() {
        let Some(deps) = nodes.remove(&id) else { continue };
        let ordinary = deps.into_iter().filter(|edge| edge.dep_kinds.iter().any(|k| k.kind.is_none()));
        let to: BTreeSet<String> = ordinary.map(|edge| edge.pkg).collect();
        left.extend(to.iter().cloned());
        edges.insert(id, to);
    }
    let packages = metadata.packages.into_iter().filter(|p| edges.contains_key(&p.id));
    Components { packages: packages.map(|p| (p.id.clone(), p)).collect(), edges }
}

impl Package {
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

impl Components {
    /// Returns the CycloneDX list, with `time` (RFC 3339) as its date.
    pub fn bom(&self, version: &str, time: &str) -> Value {
        let of = |id: &String| self.packages[id].purl();
        let component = |package: &Package| {
            let licences = package.license.iter().map(|l| json!({ "expression": l.replace('/', " OR ") }));
            json!({
                "type": "library", "bom-ref": package.purl(), "name": package.name, "version": package.version,
                "purl": package.purl(), "licenses": licences.collect::<Vec<_>>(),
            })
        };
        let depends = |(id, to): (&String, &BTreeSet<String>)| json!({ "ref": of(id), "dependsOn": to.iter().map(of).collect::<Vec<_>>() });
        let own = self.packages.values().filter(|p| PROGRAMS.contains(&p.name.as_str())).map(Package::purl);
        let mut dependencies: Vec<Value> = self.edges.iter().map(depends).collect();
        dependencies.push(json!({ "ref": "mqblk", "dependsOn": own.collect::<Vec<_>>() }));
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": time,
                "component": {
                    "type": "application", "bom-ref": "mqblk", "name": "mqblk", "version": version,
                    "licenses": [{ "expression": "Apache-2.0 OR MIT" }],
                },
            },
            "components": self.packages.values().map(component).collect::<Vec<_>>(),
            "dependencies": dependencies,
        })
    }

    /// Returns name, version, licence and licence texts of each library that is not ours.
    ///
    /// # Errors
    /// A file cannot be read, or a library has no licence.
    pub fn notices(&self) -> Result<String, String> {
        let mut text = String::from(
            "Libraries in mqblk and libmqblk_fio.so, each with its licence.\n\
             Rust's standard library is in them, too: MIT or Apache-2.0, https://github.com/rust-lang/rust.\n",
        );
        for package in self.packages.values().filter(|p| p.source.is_some()) {
            let Package { name, version, .. } = package;
            let licence = package.license.as_deref().ok_or_else(|| format!("{name} {version} names no licence"))?;
            text += &format!("\n{}\n{name} {version}: {licence}\n", "=".repeat(80));
            let directory = package.manifest_path.parent().unwrap_or(Path::new("."));
            let files = licence_files(directory)?;
            if files.is_empty() {
                text += "\nIts package has no licence text: see https://spdx.org/licenses/ for that of its licence.\n";
            }
            for file in files {
                let body = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
                text += &format!("\n{}\n", body.trim());
            }
        }
        Ok(text)
    }
}

/// Files of a library whose names say that they are licences, sorted.
fn licence_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file()
            && ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"].iter().any(|word| name.starts_with(word))
    };
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_licence).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_programs_is_listed_and_nothing_else() {
        let components = find(&Project::load().unwrap()).unwrap();
        let bom = components.bom("1.2.3", "2026-01-01T00:00:00Z");
        let names: BTreeSet<&str> =
            bom["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        // A direct dependency, one that is reached only over others, and our own packages.
        assert!(
            ["rustls", "ring", "mqblk-blk", "mqblk-fio-engine"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        // Only tests and build scripts need these.
        assert!(["proptest", "png", "cc", "xtask"].iter().all(|name| !names.contains(name)), "{names:?}");
        let dependencies = bom["dependencies"].as_array().unwrap();
        let refs: BTreeSet<&str> = dependencies.iter().map(|d| d["ref"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), bom["components"].as_array().unwrap().len() + 1);
        for to in dependencies.iter().flat_map(|d| d["dependsOn"].as_array().unwrap()) {
            assert!(refs.contains(to.as_str().unwrap()), "{to}");
        }
        let notices = components.notices().unwrap();
        assert!(notices.contains("\nrustls 0.23"), "a library is without its notice");
        assert!(notices.contains("Permission is hereby granted"));
    }
}
