// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks, groups and paths in the layout of `multipath -ll`.
//!
//! Guarantees: scripts can parse the lines and columns as they do multipath's. A field of a path is as wide as the widest of
//! that disk. Host, channel, id and LUN are a kernel's numbers, so they are `#:#:#:#`, as multipath prints them when there are
//! none; an unknown vendor and product are `##,##`. A disk without a WWID beside its name has no parentheses. A path's name is one word:
//! a blank in it is `\x20`, as udev writes it. Source: multipath-tools, libmultipath/print.c (`_snprint_multipath_topology`,
//! `snprint_multipath_vpr`).

use serde_json::Value;

/// Returns the text of a field of a daemon's answer.
fn field<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

/// All disks of an answer.
pub fn text(all: &Value) -> String {
    list(all, "maps").iter().map(disk).collect()
}

fn disk(map: &Value) -> String {
    let (name, wwid) = (field(map, "name"), field(map, "uuid"));
    let known_by = if wwid.is_empty() || wwid == name { String::new() } else { format!(" ({wwid})") };
    let made_by = match (field(map, "vend"), field(map, "prod")) {
        ("", _) | (_, "") => "##,##".to_owned(),
        (vendor, product) => format!("{vendor},{product}"),
    };
    let mut out = format!("{name}{known_by} {} {made_by}\n", field(map, "sysfs"));
    out += &format!(
        "size={} features='{}' hwhandler='{}' wp={}\n",
        size(map["bytes"].as_u64().unwrap_or(0)),
        field(map, "features"),
        field(map, "hwhandler"),
        field(map, "write_prot"),
    );
    let groups = list(map, "path_groups");
    let paths = || groups.iter().flat_map(|g| list(g, "paths"));
    let width = |key: &str| paths().map(|p| column(p, key).chars().count()).max().unwrap_or(0);
    let widths = ["dev", "dev_t", "dm_st", "chk_st", "dev_st"].map(|key| (key, width(key)));
    for (i, group) in groups.iter().enumerate() {
        let (branch, trunk) = if i + 1 < groups.len() { ('|', '|') } else { ('`', ' ') };
        let (policy, prio, state) = (field(group, "selector"), &group["pri"], field(group, "dm_st"));
        out += &format!("{branch}-+- policy='{policy}' prio={prio} status={state}\n");
        let members = list(group, "paths");
        for (k, path) in members.iter().enumerate() {
            let twig = if k + 1 < members.len() { '|' } else { '`' };
            let columns = widths.map(|(key, width)| format!("{:width$}", column(path, key)));
            let line = format!("{trunk} {twig}- #:#:#:# {}", columns.join(" "));
            out += line.trim_end();
            out.push('\n');
        }
    }
    out
}

/// Returns a path's field as it is printed.
fn column(path: &Value, key: &str) -> String {
    let text = field(path, key);
    if key != "dev" {
        return text.to_owned();
    }
    let one = |c: char| if c.is_whitespace() { format!("\\x{:02x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(one).collect()
}

/// As multipath rounds it: `9.8G`, `10G`.
fn size(bytes: u64) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let unit = UNITS[unit];
    if size < 10.0 { format!("{size:.1}{unit}") } else { format!("{size:.0}{unit}") }
}
