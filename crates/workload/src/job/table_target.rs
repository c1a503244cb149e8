// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: the job's name, its files and devices, their creation. See `options` for what a row promises.

use super::draft::FileOption;
use super::option::Parser::{Bool, Int, Size, Text, Words};
use super::option::{BOOL, FLOATS, INT, OptionInfo, TEXT, no, quiet, warn, words, yes};
use super::setters;
use super::spec::FILES_MAX;
use super::values::{Extent, Fallocate};

const ZONED: &str =
    "mqblk does not drive zoned devices as such; remove the line (zonemode=strided works on any device)";
const MERGE: &str =
    "merge the traces with blkparse -d, or replay each in a job of its own; read_iolog=NAME merges NAME.blktrace.CPU";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("description", Text { syntax: "TEXT", set: |d, v, _| { d.job.description = Some(v.to_owned()); Ok(()) } }, "", "Text printed with the results"),
    yes("name", Text { syntax: "TEXT", set: |d, v, _| { d.job.name = v.to_owned(); Ok(()) } }, "", "Name of the job; overrides the section name"),
    yes("wait_for", Text { syntax: "JOB", set: |d, v, _| { d.job.wait_for = Some(v.to_owned()); Ok(()) } }, "", "Start when the named job, which must be above, has ended"),
    yes("filename", Text { syntax: "PATH|TARGET[:PATH|TARGET...]", set: |d, v, _| { d.files.push(FileOption::Names(v.to_owned())); Ok(()) } }, "", "Files, devices or targets, shared by the job's instances; a ':' in a name is '\\:'"),
    yes("directory", Text { syntax: "DIR[:DIR...]", set: |d, v, _| { d.job.directory = setters::split_paths(v)?; Ok(()) } }, "", "Directory of the files; several are distributed over the instances"),
    yes("filename_format", Text { syntax: "TEXT", set: |d, v, _| { d.job.filename_format = v.to_owned(); Ok(()) } }, "$jobname.$jobnum.$filenum", "Names of files when there is no filename"),
    yes("size", Size(|d, v| d.job.size = Some(v).filter(|v| *v != Extent::Bytes(0))), "", "Region each instance works in; default: all after offset"),
    yes("io_size", Size(|d, v| d.job.io_size = Some(v).filter(|v| *v != Extent::Bytes(0))), "", "Bytes to move; default: size").alias(&["io_limit"]),
    yes("filesize", Text { syntax: "BYTES[-BYTES]", set: setters::filesize }, "", "Size of each file, or the range of random sizes; default: offset + its share of size"),
    yes("nrfiles", Int { min: 0, max: FILES_MAX as u64, set: |d, v| d.files.push(FileOption::Count(v as u32)) }, "1", "Files per instance if none is named; size is divided over them").alias(&["nr_files"]),
    yes("openfiles", Int { min: 0, max: u32::MAX as u64, set: |d, v| d.job.openfiles = v as u32 }, "", "Files that I/O goes to at a time; default: all"),
    yes("file_service_type", Text { syntax: "roundrobin[:N]|random[:N]|sequential|zipf[:T]|pareto[:H]|normal[:D]", set: setters::file_service }, "roundrobin", "Which file is next; after N I/Os, default 1"),
    yes("opendir", Text { syntax: "DIR", set: |d, v, _| { d.files.push(FileOption::Below(v.to_owned())); Ok(()) } }, "", "Add all files below a directory"),
    yes("offset", Size(|d, v| d.job.offset = v), "0", "Where the region starts").alias(&["fileoffset"]),
    yes("offset_increment", Size(|d, v| d.job.offset_increment = v), "0", "Instance n starts at offset + n times this"),
    yes("offset_align", Int { min: 0, max: u64::MAX, set: |d, v| d.job.offset_align_bytes = v }, "0", "A percentage offset is rounded up to a multiple of this"),
    yes("direct", Bool(|d, v| d.job.direct = v), "0", "O_DIRECT: bypass the page cache"),
    yes("buffered", Bool(|d, v| d.job.direct = !v), "1", "Through the page cache; the opposite of direct"),
    yes("invalidate", Bool(|d, v| d.job.invalidate = v), "1", "Drop a buffered file's cached pages first"),
    yes("overwrite", Bool(|d, v| d.job.overwrite = v), "0", "Lay a file out fully before it is written"),
    yes("fallocate", Words { words: &["none", "native", "posix", "keep", "truncate", "0", "1"], set: |d, v| d.job.fallocate = match v { "none" | "0" => Fallocate::None, "posix" | "1" => Fallocate::Posix, "keep" => Fallocate::Keep, "truncate" => Fallocate::Truncate, _ => Fallocate::Native } }, "native", "How the space of a new file is reserved"),
    yes("create_fsync", Bool(|d, v| d.job.create_fsync = v), "1", "Flush a file after creating it"),
    yes("create_only", Bool(|d, v| d.job.create_only = v), "0", "Create files and do nothing else"),
    yes("pre_read", Bool(|d, v| d.job.pre_read = v), "0", "Read buffered files into the page cache first"),
    yes("unlink", Bool(|d, v| d.job.unlink = v), "0", "Remove the files after the run"),
    yes("allow_file_create", Bool(|d, v| d.job.allow_file_create = v), "1", "May a missing file be created?"),
    yes("allow_mounted_write", Bool(|d, v| d.job.allow_mounted_write = v), "0", "May a mounted device be written?"),

    quiet("unique_filename", BOOL, "1", "Prefix of names in client/server mode"),
    quiet("create_serialize", BOOL, "1", "Create files one after the other"),
    warn("create_on_open", BOOL, "0", "Create a file when it is opened for I/O", "files are created before the run"),
    warn("fadvise_hint", words(&["0", "1", "random", "sequential"]), "1", "Advice to the page cache", "mqblk gives the page cache no advice; with direct=1 it makes no difference").off(&["0", "1"]),
    warn("lockfile", words(&["none", "exclusive", "readwrite"]), "none", "Lock a file for each I/O", "mqblk takes no file locks"),
    no("unlink_each_loop", BOOL, "0", "Remove files after each loop", "files stay between loops; remove the line"),
    no("file_append", BOOL, "0", "Start at the end of the file", "give offset= instead"),
    no("fill_device", BOOL, "0", "Write until the device is full", "give size=100% instead").alias(&["fill_fs"]),
    warn("ioscheduler", TEXT, "", "I/O scheduler of the device", "the kernel's scheduler stays as it is; --set scheduler=NAME sets mqblk's own"),

    no("zonecapacity", INT, "0", "Usable bytes per zone", ZONED),
    no("read_beyond_wp", BOOL, "0", "Read beyond a write pointer", ZONED),
    no("max_open_zones", INT, "0", "Open zones at a time", ZONED),
    no("job_max_open_zones", INT, "0", "Open zones per job", ZONED),
    no("ignore_zone_limits", BOOL, "0", "Ignore the device's zone limits", ZONED),
    no("zone_reset_threshold", FLOATS, "", "When zones are reset", ZONED),
    no("zone_reset_frequency", FLOATS, "", "How often zones are reset", ZONED),

    no("merge_blktrace_file", TEXT, "", "Where merged traces go", MERGE),
    quiet("merge_blktrace_scalars", FLOATS, "", "Scale of merged traces"),
    quiet("merge_blktrace_iters", FLOATS, "", "Repeats of merged traces"),
];
