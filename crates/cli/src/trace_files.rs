// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens the traces that jobs replay (`read_iolog`).

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use workload::replay::TraceFile;

/// Opens traces for one command.
pub struct Traces {
    /// Standard input has a reader.
    stdin_is_read: Cell<bool>,
}

impl Traces {
    /// `stdin_is_read`: the job file comes from standard input.
    pub fn new(stdin_is_read: bool) -> Traces {
        Traces { stdin_is_read: Cell::new(stdin_is_read) }
    }

    /// Opens what a name of `read_iolog` stands for: `-` is standard input. As with blkparse, a name without a file stands for the files
    /// `NAME.blktrace.CPU`.
    pub fn open(&self, name: &str) -> Result<Vec<TraceFile>, String> {
        if name == "-" {
            if self.stdin_is_read.replace(true) {
                return Err("standard input is read already, and only once".to_owned());
            }
            return Ok(vec![TraceFile { name: "standard input".to_owned(), from: buffered(io::stdin()) }]);
        }
        let of_cpu = |cpu: u32| format!("{name}.blktrace.{cpu}");
        if Path::new(name).exists() || !Path::new(&of_cpu(0)).exists() {
            return Ok(vec![open(name)?]);
        }
        (0..).map(of_cpu).take_while(|file| Path::new(file).exists()).map(|file| open(&file)).collect()
    }
}

fn open(name: &str) -> Result<TraceFile, String> {
    let failed = |e: io::Error| format!("'{name}': {e}");
    let from = match fs::metadata(name).map_err(failed)?.file_type() {
        kind if kind.is_socket() => buffered(UnixStream::connect(name).map_err(failed)?),
        kind if kind.is_dir() => return Err(format!("'{name}' is a directory")),
        _ => buffered(File::open(name).map_err(failed)?),
    };
    Ok(TraceFile { name: name.to_owned(), from })
}

fn buffered(from: impl Read + 'static) -> Box<dyn BufRead> {
    Box::new(BufReader::with_capacity(1 << 16, from))
}
