// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of logs (`write_bw_log`, `write_iolog` and their like), and the thread that writes them while jobs run.
//!
//! Guarantees: job threads do no file I/O. They hand chunks of records to the writer thread, and wait only if it is [`BACKLOG`] chunks
//! behind, which bounds the memory of a run. A file is made when its thread has something to write, at the latest when that thread ends;
//! a job that never starts makes none. What cannot be written is reported at the end, and stops no job (as fio). Does not do: the lines
//! ([`workload::logs`]).

use crate::clock;
use crate::error::{Error, Result};
use crate::secrets::without_secrets;
use crate::target::has_kind;
use blk::time::Instant;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use workload::job::{Job, LogKind};
use workload::logs::{LogChunk, LogFormat};
use workload::schedule::Instance;

/// Chunks that may wait for the writer thread; each has some hundred KiB.
const BACKLOG: usize = 64;

/// One log.
struct LogFile {
    kind: LogKind,
    path: String,
    /// `None`: not open yet.
    file: Option<File>,
    failed: bool,
    appends: bool,
}

/// The logs of one job thread.
struct ThreadLogs {
    format: LogFormat,
    files: Vec<LogFile>,
    /// The clock whose time is added.
    epoch_clock: Option<i32>,
    /// The time to add, milliseconds, once known.
    base_ms: Option<u64>,
}

/// The log files of a run.
pub struct LogFiles {
    threads: Vec<ThreadLogs>,
    failures: Vec<String>,
    text: String,
}

impl LogFiles {
    /// Of these instances of jobs. `None`: no job writes a log.
    pub fn of(jobs: &[Job], instances: &[Instance]) -> Option<LogFiles> {
        let of_thread = |i: &Instance| {
            let job = &jobs[i.job];
            let file =
                |(kind, path)| LogFile { kind, path, file: None, failed: false, appends: job.logs.appends(kind) };
            let names = if job.logs.has(LogKind::Iolog) { job.file_names(i.instance, &has_kind) } else { Vec::new() };
            let names = names.iter().map(|name| without_secrets(name)).collect();
            ThreadLogs {
                format: LogFormat::new(job).with_files(names),
                files: job.log_files(i.number).into_iter().map(file).collect(),
                epoch_clock: job.logs.epoch_clock(),
                base_ms: None,
            }
        };
        let threads: Vec<ThreadLogs> = instances.iter().map(of_thread).collect();
        let any = threads.iter().any(|t| !t.files.is_empty());
        any.then(|| LogFiles { threads, failures: Vec::new(), text: String::new() })
    }

    /// Writes what a thread has logged. An empty chunk makes its files.
    pub fn write(&mut self, thread: usize, chunk: &LogChunk) {
        let logs = &mut self.threads[thread];
        let base_ms = *logs.base_ms.get_or_insert_with(|| logs.epoch_clock.map_or(0, |id| epoch_ms(id, chunk.from_ns)));
        for log in logs.files.iter_mut().filter(|log| !log.failed) {
            self.text.clear();
            logs.format.write(log.kind, chunk, base_ms, &mut self.text);
            if let Err(e) = log.append(&self.text) {
                log.failed = true;
                self.failures
                    .push(format!("log '{}' is not written: {e}; name a file in a directory that exists", log.path));
            }
        }
    }

    /// Returns what could not be written.
    pub fn failures(self) -> Vec<String> {
        self.failures
    }
}

impl LogFile {
    fn append(&mut self, text: &str) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                options.create(true).append(self.appends).write(true).truncate(!self.appends);
                none.insert(options.open(&self.path)?)
            }
        };
        file.write_all(text.as_bytes())
    }
}

/// Time of a clock at `at_ns` of ours, milliseconds.
fn epoch_ms(clock_id: i32, at_ns: u64) -> u64 {
    let ago = clock::now().since(Instant::from_ns(at_ns)).as_ns();
    clock::read_ns(clock_id).unwrap_or(0).saturating_sub(ago) / 1_000_000
}

/// Takes the chunks of one job thread.
pub(super) struct LogSink {
    thread: usize,
    chunks: SyncSender<(usize, LogChunk)>,
}

impl LogSink {
    pub(super) fn take(&self, chunk: LogChunk) {
        // The receiver is gone only if the writer thread has panicked, which `LogWriter::finish` reports.
        let _ = self.chunks.send((self.thread, chunk));
    }
}

/// The writer thread.
pub(super) struct LogWriter {
    chunks: SyncSender<(usize, LogChunk)>,
    thread: JoinHandle<LogFiles>,
}

impl LogWriter {
    pub(super) fn start(mut files: LogFiles) -> Result<LogWriter> {
        let (chunks, arriving) = mpsc::sync_channel::<(usize, LogChunk)>(BACKLOG);
        let work = move || {
            arriving.iter().for_each(|(thread, chunk)| files.write(thread, &chunk));
            files
        };
        let thread = std::thread::Builder::new().name("logs".to_owned()).spawn(work);
        let thread = thread.map_err(|e| Error::os(e, "cannot start the thread that writes logs; lower numjobs"))?;
        Ok(LogWriter { chunks, thread })
    }

    pub(super) fn sink(&self, thread: usize) -> LogSink {
        LogSink { thread, chunks: self.chunks.clone() }
    }

    /// Waits until everything is written; all sinks are gone. Returns what could not be written.
    pub(super) fn finish(self) -> Vec<String> {
        drop(self.chunks);
        match self.thread.join() {
            Ok(files) => files.failures(),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
