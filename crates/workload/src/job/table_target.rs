// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: the job's name, its files and devices, their creation. See `options` for what a row promises.

use super::option::Parser::{Bool, Int, Size, Text};
use super::option::{BOOL, FLOATS, INT, OptionInfo, TEXT, no, quiet, warn, words, yes};
use super::setters;
use super::values::Extent;

const ONE_FILE: &str = "an instance of a job works on one file; write one job section per file, or use numjobs";
const ZONED: &str =
    "mqblk has no zoned mode; remove the zone options (random_distribution=zoned:... skews a plain device)";
const TRACE: &str = "mqblk runs jobs, not I/O traces; describe the load as a job";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("description", Text { syntax: "TEXT", set: |d, v, _| { d.job.description = Some(v.to_owned()); Ok(()) } }, "", "Text printed with the results"),
    yes("name", Text { syntax: "TEXT", set: |d, v, _| { d.job.name = v.to_owned(); Ok(()) } }, "", "Name of the job; overrides the section name"),
    yes("wait_for", Text { syntax: "JOB", set: |d, v, _| { d.job.wait_for = Some(v.to_owned()); Ok(()) } }, "", "Start when the named job, which must be above, has ended"),
    yes("filename", Text { syntax: "PATH|TARGET", set: |d, v, _| { d.job.filename = Some(v.to_owned()); Ok(()) } }, "", "File, device or target, shared by the job's instances"),
    yes("directory", Text { syntax: "DIR[:DIR...]", set: |d, v, _| { d.job.directory = setters::split_paths(v)?; Ok(()) } }, "", "Directory of the files; several are distributed over the instances"),
    yes("filename_format", Text { syntax: "TEXT", set: |d, v, _| { d.job.filename_format = v.to_owned(); Ok(()) } }, "$jobname.$jobnum.$filenum", "Names of files when there is no filename"),
    yes("size", Size(|d, v| d.job.size = Some(v).filter(|v| *v != Extent::Bytes(0))), "", "Region each instance works in; default: all after offset"),
    yes("io_size", Size(|d, v| d.job.io_size = Some(v).filter(|v| *v != Extent::Bytes(0))), "", "Bytes to move; default: size").alias(&["io_limit"]),
    yes("filesize", Text { syntax: "BYTES", set: setters::filesize }, "", "Size a file is created with; default: offset + size"),
    yes("offset", Size(|d, v| d.job.offset = v), "0", "Where the region starts").alias(&["fileoffset"]),
    yes("offset_increment", Size(|d, v| d.job.offset_increment = v), "0", "Instance n starts at offset + n times this"),
    yes("offset_align", Int { min: 0, max: u64::MAX, set: |d, v| d.job.offset_align_bytes = v }, "0", "A percentage offset is rounded up to a multiple of this"),
    yes("direct", Bool(|d, v| d.job.direct = v), "0", "O_DIRECT: bypass the page cache"),
    yes("buffered", Bool(|d, v| d.job.direct = !v), "1", "Through the page cache; the opposite of direct"),
    yes("invalidate", Bool(|d, v| d.job.invalidate = v), "1", "Drop a buffered file's cached pages first"),
    yes("overwrite", Bool(|d, v| d.job.overwrite = v), "0", "Lay a file out fully before it is written"),
    yes("allow_file_create", Bool(|d, v| d.job.allow_file_create = v), "1", "May a missing file be created?"),
    yes("allow_mounted_write", Bool(|d, v| d.job.allow_mounted_write = v), "0", "May a mounted device be written?"),

    quiet("unique_filename", BOOL, "1", "Prefix of names in client/server mode"),
    quiet("create_serialize", BOOL, "1", "Create files one after the other"),
    quiet("create_fsync", BOOL, "1", "Flush a file after creating it"),
    quiet("file_service_type", TEXT, "roundrobin", "Which file is next"),
    quiet("openfiles", INT, "", "Files open at a time"),
    warn("create_on_open", BOOL, "0", "Create a file when it is opened for I/O", "files are created before the run"),
    warn("fallocate", words(&["none", "native", "posix", "keep", "truncate", "0", "1"]), "native", "How space is allocated", "mqblk allocates a new file's space in its own way before the run").off(&["native", "posix", "keep", "1"]),
    warn("fadvise_hint", words(&["0", "1", "random", "sequential"]), "1", "Advice to the page cache", "mqblk gives the page cache no advice; with direct=1 it makes no difference").off(&["0", "1"]),
    warn("unlink", BOOL, "0", "Remove files at the end", "mqblk removes no files; remove them by hand"),
    warn("lockfile", words(&["none", "exclusive", "readwrite"]), "none", "Lock a file for each I/O", "mqblk takes no file locks"),
    no("unlink_each_loop", BOOL, "0", "Remove files after each loop", "files stay between loops; remove the line"),
    no("nrfiles", INT, "1", "Files per instance", ONE_FILE).alias(&["nr_files"]).off(&["0", "1"]),
    no("opendir", TEXT, "", "Use all files below a directory", ONE_FILE),
    no("file_append", BOOL, "0", "Start at the end of the file", "give offset= instead"),
    no("fill_device", BOOL, "0", "Write until the device is full", "give size=100% instead").alias(&["fill_fs"]),
    no("pre_read", BOOL, "0", "Read files into the page cache first", "add a read job before this one, and stonewall"),
    no("create_only", BOOL, "0", "Create files and do nothing else", "create them by a write job with number_ios=1 and overwrite=1"),
    no("ioscheduler", TEXT, "", "I/O scheduler of the device", "use --set scheduler=NAME, which sets mqblk's own"),

    no("zonemode", words(&["none", "strided", "zbd"]), "none", "How zones are used", ZONED),
    no("zonesize", INT, "0", "Bytes per zone", ZONED),
    no("zonecapacity", INT, "0", "Usable bytes per zone", ZONED),
    no("zonerange", INT, "0", "Size of a zone", ZONED),
    no("zoneskip", INT, "0", "Space between zones", ZONED),
    no("read_beyond_wp", BOOL, "0", "Read beyond a write pointer", ZONED),
    no("max_open_zones", INT, "0", "Open zones at a time", ZONED),
    no("job_max_open_zones", INT, "0", "Open zones per job", ZONED),
    no("ignore_zone_limits", BOOL, "0", "Ignore the device's zone limits", ZONED),
    no("zone_reset_threshold", FLOATS, "", "When zones are reset", ZONED),
    no("zone_reset_frequency", FLOATS, "", "How often zones are reset", ZONED),

    no("write_iolog", TEXT, "", "Write a trace of the I/O", TRACE),
    no("read_iolog", TEXT, "", "Replay a trace", TRACE),
    quiet("read_iolog_chunked", BOOL, "0", "Read a trace in pieces"),
    quiet("replay_no_stall", BOOL, "0", "Replay without pauses"),
    quiet("replay_redirect", TEXT, "", "Replay onto this device"),
    quiet("replay_scale", INT, "1", "Scale offsets of a trace"),
    quiet("replay_align", INT, "", "Align offsets of a trace"),
    quiet("replay_time_scale", INT, "100", "Scale times of a trace"),
    quiet("replay_skip", TEXT, "", "Directions to skip in a trace"),
    no("merge_blktrace_file", TEXT, "", "Where merged traces go", TRACE),
    quiet("merge_blktrace_scalars", FLOATS, "", "Scale of merged traces"),
    quiet("merge_blktrace_iters", FLOATS, "", "Repeats of merged traces"),
    no("exec_prerun", TEXT, "", "Command before the job", "run the command yourself before mqblk"),
    no("exec_postrun", TEXT, "", "Command after the job", "run the command yourself after mqblk"),
];
