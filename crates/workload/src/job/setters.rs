// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Setters of options whose value is more than one number or word. See `option_table` for the table that names them.

use super::draft::{Draft, merge, merge_some};
use super::error::Reject;
use super::lists;
use super::spec::BLOCK_BYTES_MAX;
use super::units::{self, SEC_NS, Units};
use super::values::{IoEngine, PerDir, VerifyKind};
use blk::suggest::did_you_mean;

/// Engines that fio has (3.33, any build) and mqblk does not.
const OTHER_ENGINES: [&str; 48] = [
    "mmap",
    "splice",
    "netsplice",
    "sg",
    "net",
    "cpuio",
    "rdma",
    "e4defrag",
    "falloc",
    "ftruncate",
    "filecreate",
    "filestat",
    "filedelete",
    "exec",
    "gfapi",
    "gfapi_async",
    "mtd",
    "pmemblk",
    "dev-dax",
    "external",
    "libpmem",
    "nbd",
    "rados",
    "rbd",
    "io_uring_cmd",
    "http",
    "dfs",
    "ime_psync",
    "ime_psyncv",
    "ime_aio",
    "libcufile",
    "libhdfs",
    "libiscsi",
    "libzbc",
    "librpma_apm_client",
    "librpma_apm_server",
    "librpma_gpspm_client",
    "librpma_gpspm_server",
    "nfs",
    "xnvme",
    "cpp_null",
    "solarisaio",
    "windowsaio",
    "guasi",
    "binject",
    "fusion-aw-sync",
    "syslet-rw",
    "libblkio",
];

const ENGINES: [IoEngine; 9] = [
    IoEngine::Libaio,
    IoEngine::IoUring,
    IoEngine::PosixAio,
    IoEngine::Sync,
    IoEngine::Psync,
    IoEngine::Vsync,
    IoEngine::Pvsync,
    IoEngine::Pvsync2,
    IoEngine::Null,
];

const ENGINE_REMEDY: &str =
    "use libaio, io_uring or posixaio (many in flight), psync, sync, vsync, pvsync or pvsync2 (one at a time), or null";

/// `ioengine=`: an engine that mqblk maps to a way of submitting; others are rejected by name.
pub(super) fn set_ioengine(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    if let Some(engine) = ENGINES.into_iter().find(|e| e.name() == text) {
        draft.job.ioengine = engine;
        return Ok(());
    }
    let base = text.split([':', ',']).next().unwrap_or(text);
    if OTHER_ENGINES.contains(&base) {
        let rule = "mqblk does not have this engine, because it drives its own targets";
        return Err(Reject::unsupported(rule, ENGINE_REMEDY));
    }
    let known = ENGINES.iter().map(|e| e.name()).chain(OTHER_ENGINES);
    let hint = did_you_mean(text, known);
    Err(Reject::new("is no I/O engine", &format!("{hint}{ENGINE_REMEDY}")))
}

/// `verify=`.
pub(super) fn set_verify(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    let known = VerifyKind::ALL.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
    draft.job.verify = match (known, text) {
        (Some(kind), _) => Some(kind),
        (None, "0") => None,
        (None, "crc32c-intel") => Some(VerifyKind::Crc32c),
        _ => {
            let hint = did_you_mean(text, VerifyKind::ALL.iter().map(|(_, name)| *name));
            return Err(Reject::new("is no check", &format!("{hint}mqblk cmdhelp verify lists them; 0 is none")));
        }
    };
    Ok(())
}

/// `rw=PATTERN[:N]`: N adds to sequential offsets, or counts I/Os per random offset.
pub(super) fn set_rw(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let (rw, modifier) = lists::rw(text)?;
    let modifier = match modifier {
        None => None,
        Some(text) => {
            let value = units::int(text, units)?;
            let lowest = if rw.random { 0 } else { i128::from(i64::MIN) };
            let highest = if rw.random { i128::from(u32::MAX) } else { i128::from(i64::MAX) };
            let value = i64::try_from(value).ok().filter(|v| (lowest..=highest).contains(&i128::from(*v)));
            Some(value.ok_or_else(|| Reject::new(&format!("has a modifier outside {lowest}..={highest}"), ""))?)
        }
    };
    draft.job.rw = rw;
    draft.rw_modifier = modifier;
    Ok(())
}

/// `bsrange=`.
pub(super) fn set_bsrange(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let ranges = units::per_dir(text, &[',', '/'], |part| units::range(part, units, 1, BLOCK_BYTES_MAX))?;
    merge_some(&mut draft.bsrange, ranges);
    Ok(())
}

/// `bssplit=`.
pub(super) fn set_bssplit(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let split = units::per_dir(text, &[','], |part| lists::bssplit(part, units, BLOCK_BYTES_MAX))?;
    merge_some(&mut draft.bssplit, split);
    Ok(())
}

/// `filesize=`: one size, or a range from which each file draws its own.
pub(super) fn filesize(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    if text.trim_end().ends_with('%') {
        return Err(Reject::new("must be bytes", "use size= for a percentage"));
    }
    let (low, high) = if text.contains(['-', ':']) {
        units::range(text, units, 1, u64::MAX)?
    } else {
        let size = units::int_in(text, units, 1, u64::MAX)?;
        (size, size)
    };
    draft.job.filesize_bytes = (low == high).then_some(low);
    draft.job.filesize_range = (low < high).then_some((low, high));
    Ok(())
}

/// `file_service_type=`.
pub(super) fn file_service(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    (draft.job.file_service, draft.job.file_service_ios) = lists::file_service(text)?;
    Ok(())
}

/// `startdelay=`, one time or a range.
pub(super) fn set_startdelay(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    (draft.job.startdelay_min_ns, draft.job.startdelay_max_ns) = units::time_range_ns(text, SEC_NS)?;
    Ok(())
}

/// `rate=` and `rate_iops=`: 0 removes a limit.
pub(super) fn set_rate(into: &mut PerDir<Option<u64>>, from: PerDir<Option<u64>>) {
    let limit = |value: Option<u64>| value.map(|v| Some(v).filter(|v| *v > 0));
    merge(into, PerDir { read: limit(from.read), write: limit(from.write), trim: limit(from.trim) });
}

/// `percentage_random=`; the table bounds the values.
pub(super) fn set_percent(into: &mut PerDir<u32>, from: PerDir<Option<u64>>) {
    let pct = |value: Option<u64>| value.map(|v| v as u32);
    merge(into, PerDir { read: pct(from.read), write: pct(from.write), trim: pct(from.trim) });
}

/// `cpumask=`.
pub(super) fn set_cpumask(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    draft.job.cpus_allowed = Some(lists::cpu_mask(units::int_in(text, units, 0, u64::MAX)?)?);
    Ok(())
}

/// `redo_filename=`.
pub(super) fn set_redo_filename(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    draft.oltp.redo_filename = Some(text.to_owned());
    Ok(())
}

/// `redo_block_size=`: a size that a device may have as its logical block.
pub(super) fn set_redo_block_size(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let bytes = units::int_in(text, units, 512, 4096)?;
    if !bytes.is_power_of_two() {
        return Err(Reject::new("must be 512, 1024, 2048 or 4096", ""));
    }
    draft.oltp.redo_block_bytes = bytes as u32;
    Ok(())
}

/// `directory=`: split at `:`, with `\:` for a colon in a name.
pub(super) fn split_paths(text: &str) -> Result<Vec<String>, Reject> {
    let mut paths = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&':') => paths.last_mut().expect("starts with one").extend(chars.next()),
            ':' => paths.push(String::new()),
            _ => paths.last_mut().expect("starts with one").push(c),
        }
    }
    if paths.iter().any(String::is_empty) {
        return Err(Reject::new("has an empty directory name", "write DIR or DIR:DIR; a ':' in a name is '\\:'"));
    }
    Ok(paths)
}

/// `mem=`: checks only the form, because mqblk has its own buffers.
pub(super) fn check_mem(_: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    match text.split(':').next().unwrap_or(text) {
        "malloc" | "shm" | "shmhuge" | "mmap" | "mmapshared" | "mmaphuge" => Ok(()),
        "cudamalloc" => Err(Reject::unsupported("is memory of a GPU", "remove the line; mqblk has main memory only")),
        _ => Err(Reject::new("is no kind of memory", "use malloc, shm, shmhuge, mmap, mmapshared or mmaphuge")),
    }
}
