// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Headless Chromium: how it lays out a page (`probe.js`), and screenshots.
//!
//! Guarantees: a new profile for each start, a time limit, and no name resolution.

use super::Dir;
use serde_json::Value;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Time limit in seconds. A start takes two on an idle machine.
const LIMIT_S: &str = "600";

/// The colour scheme that the browser requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The first starts in a third of the time of the others.
    let named = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path).flat_map(|d| named.map(|n| d.join(n))).find(|p| p.is_file());
    found.expect("needs chromium in PATH (Debian: apt-get install chromium-headless-shell; cargo xtask test does so)")
}

/// Opens `page` in a window of this size.
fn chromium(dir: &Dir, page: &Path, size: (u32, u32), scheme: Scheme, more: &[&str]) -> Output {
    let profile = Dir::new("chromium");
    let mut command = Command::new("timeout");
    command.args(["-k", "60", LIMIT_S]).arg(program());
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]);
    command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1", "--enable-logging=stderr"]);
    command.arg(format!("--user-data-dir={}", profile.as_path().display()));
    command.arg(format!("--window-size={},{}", size.0, size.1));
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(scheme == Scheme::Light)));
    command.args(more).arg(format!("file://{}", page.display())).current_dir(dir.as_path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "chromium ended with {}: {said}", output.status);
    output
}

/// Returns the page's messages on the browser's console: refused requests, errors of scripts and styles.
pub fn console(dir: &Dir, page: &str) -> Vec<String> {
    let output = chromium(dir, &dir.path(page), (1000, 800), Scheme::Light, &["--dump-dom"]);
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|l| l.contains("CONSOLE")).map(str::to_owned).collect()
}

/// Runs `probe.js` in a copy of the page whose Content-Security-Policy allows it.
pub fn probe(dir: &Dir, page: &str, width: u32, scheme: Scheme) -> Value {
    let html = fs::read_to_string(dir.path(page)).unwrap();
    let policy = html.find("<meta http-equiv=\"Content-Security-Policy\"").expect("a page has a policy");
    let end = policy + html[policy..].find('>').unwrap() + 1;
    let script = concat!("<script>", include_str!("probe.js"), "</script></body>");
    let copy = [&html[..policy], &html[end..]].concat().replace("</body>", script);
    let name = format!("probe-{width}.html");
    fs::write(dir.path(&name), copy).unwrap();
    let output = chromium(dir, &dir.path(&name), (width, 900), scheme, &["--dump-dom"]);
    let dom = String::from_utf8(output.stdout).unwrap();
    let (_, after) = dom.rsplit_once("<pre id=\"mqblk-probe\">").expect("the probe ran");
    serde_json::from_str(&percent_decoded(after.split('<').next().unwrap())).unwrap()
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap_or("").bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).unwrap()
}

/// A screenshot of a page.
pub struct Picture {
    width: usize,
    height: usize,
    /// Red, green, blue.
    pixels: Vec<[u8; 3]>,
}

/// Takes a screenshot of the whole page, `height` high. It stays in the directory as `name`.
pub fn picture(dir: &Dir, page: &str, name: &str, size: (u32, u32), scheme: Scheme) -> Picture {
    let to = dir.path(name);
    chromium(dir, &dir.path(page), size, scheme, &[&format!("--screenshot={}", to.display())]);
    let mut reader = png::Decoder::new(BufReader::new(File::open(&to).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let channels = info.color_type.samples();
    assert!(info.bit_depth == png::BitDepth::Eight && channels >= 3, "{info:?}");
    let pixels = bytes[..info.buffer_size()].chunks_exact(channels).map(|p| [p[0], p[1], p[2]]).collect();
    Picture { width: info.width as usize, height: info.height as usize, pixels }
}

impl Picture {
    /// Returns the share of the pixels in a box (left, top, width, height) whose colour differs from the picture's corner, and the number
    /// of their colours.
    pub fn ink(&self, area: [f64; 4]) -> (f64, usize) {
        let paper = self.pixels[0];
        let [left, top, wide, high] = area.map(|v| v.max(0.0) as usize);
        assert!(left + wide <= self.width && top + high <= self.height, "{area:?} is not in the picture");
        let rows = (top..top + high).map(|y| &self.pixels[y * self.width + left..y * self.width + left + wide]);
        let all: Vec<[u8; 3]> = rows.flatten().copied().collect();
        let inked = all.iter().filter(|p| **p != paper).count();
        let mut colours = all.clone();
        colours.sort_unstable();
        colours.dedup();
        (inked as f64 / all.len().max(1) as f64, colours.len())
    }

    /// Returns the brightness of the background, 0 to 255.
    pub fn paper(&self) -> u8 {
        self.pixels[0][1]
    }
}
