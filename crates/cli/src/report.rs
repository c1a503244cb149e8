// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk report`, and `--report` of other subcommands: a page and its JSON sidecar.
//!
//! Guarantees: both files are opened for writing before anything runs, and new ones are removed again if there is no result; the sidecar
//! has the page's name with `.json`. Does not: decide what a page says (see `lab::report::pages`).

use crate::args::ReportArgs;
use crate::output::{self, OutputFile, tell};
use crate::status::{Failure, Outcome, Status};
use lab::report::pages::{of_compare, of_tune};
use lab::results::{self, Results};
use lab::tune::journal;
use report::document::{Block, Document};
use report::{page, svg};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The two files of a report, open.
pub struct ReportFiles {
    page: OutputFile,
    sidecar: OutputFile,
    name: String,
}

impl ReportFiles {
    /// Opens `path` and its sidecar; `flag` is the option that named it; `others` are files that other options use.
    pub fn open(flag: &'static str, path: &Path, others: &[Option<&Path>]) -> Result<ReportFiles, Failure> {
        let name = path.display().to_string();
        if path.extension().is_none_or(|e| e != "html") || path.file_stem().is_none() {
            return Err(Failure::new(format!(
                "{flag} {name}: must be a name that ends in .html; its data is written beside it as .json"
            )));
        }
        let sidecar = path.with_extension("json");
        if let Some(taken) = others.iter().flatten().find(|o| is_same(o, path) || is_same(o, &sidecar)) {
            return Err(Failure::new(format!(
                "{flag} {name}: would write {}, which another option already uses; choose another name",
                taken.display()
            )));
        }
        Ok(ReportFiles { page: OutputFile::open(flag, path)?, sidecar: OutputFile::open(flag, &sidecar)?, name })
    }

    /// Writes both files, and prints the name of the page.
    pub fn write(&mut self, document: &Document) -> Result<(), Failure> {
        self.sidecar.write(&document.json())?;
        self.page.write(&page::render(document))?;
        tell(&format!("report: {}", self.name));
        Ok(())
    }
}

/// Whether two names refer to the same file, which need not exist yet.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let place = |p: &Path| {
        let parent = p.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        p.canonicalize()
            .or_else(|_| Ok::<_, std::io::Error>(parent.canonicalize()?.join(p.file_name().unwrap_or_default())))
    };
    a == b || place(a).ok().zip(place(b).ok()).is_some_and(|(a, b)| a == b)
}

/// Beginning of the first line of a tuning's results.
const OF_TUNING: &[u8] = b"{\"type\":\"tune\"";
/// Largest results file of a tuning that is read.
const TUNING_BYTES_MAX: u64 = 4 << 30;

/// Makes the report of a results file.
pub fn of_results(path: &Path) -> Result<Document, Failure> {
    let name = path.display().to_string();
    let failed = |e: io::Error| {
        Failure::new(format!("results file {name}: {e}; name a file that mqblk compare or mqblk tune has written"))
    };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    if file.fill_buf().map_err(failed)?.starts_with(OF_TUNING) {
        let mut text = String::new();
        file.take(TUNING_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let past = journal::read(&text, &format!("results file {name}")).map_err(Failure::new)?;
        return of_tune::document(&past, Some(&name)).map_err(Failure::new);
    }
    let results: Results = results::read(file, &name).map_err(Failure::new)?;
    if results.cut_off {
        tell("warning: the last line of the results file is truncated, and ignored");
    }
    Ok(of_compare::document(&results, &of_compare::evaluated(&results), Some(&path.display().to_string())))
}

/// `mqblk report`.
pub fn main(args: &ReportArgs) -> Outcome {
    let document = of_results(&args.results)?;
    if args.json {
        output::print(&document.json())?;
        return Ok(Status::Done);
    }
    let output = args.output.clone().unwrap_or_else(|| args.results.with_extension("html"));
    ReportFiles::open("--output", &output, &[Some(&args.results)])?.write(&document)?;
    args.charts.as_deref().map_or(Ok(()), |dir| write_charts(&document, dir))?;
    Ok(Status::Done)
}

/// Writes each chart to a file of its own.
fn write_charts(document: &Document, dir: &Path) -> Result<(), Failure> {
    let failed = |e: io::Error| {
        let dir = dir.display();
        Failure::new(format!("--charts {dir}: cannot be written: {e}; name a directory that you may write to"))
    };
    fs::create_dir_all(dir).map_err(failed)?;
    for block in document.sections.iter().flat_map(|s| &s.blocks) {
        if let Block::Chart(chart) = block {
            fs::write(dir.join(format!("{}.svg", chart.id)), svg::standalone(chart)).map_err(failed)?;
        }
    }
    tell(&format!("charts: {}", dir.display()));
    Ok(())
}

/// `--report` of a subcommand that also writes to `others`.
pub fn asked(path: Option<&PathBuf>, others: &[Option<&Path>]) -> Result<Option<ReportFiles>, Failure> {
    path.map(|path| ReportFiles::open("--report", path, others)).transpose()
}
