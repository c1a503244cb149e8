// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `--target` names: `null[:options]`, `ram[:options]`, `model[:options]`, `file:PATH`, `nbd://...`, `rbd:...`,
//! `iscsi://...`, `multipath:...`, `stripe:...`, `kernel:/dev/X`, `sim:FILE`, or a plain path.
//!
//! Two steps. [`TargetSpec::parse`] only reads the text: everything that can be refused without opening anything is
//! refused there. [`TargetSpec::open`] makes the driver. Options are `name=value`, separated by commas; sizes and rates
//! take k, m, g, t, p (powers of 1024), times are numbers in the unit of their name.

mod stripe;

pub use stripe::StripeSpec;

use crate::driver::file::{File, FileOptions, FileWarning};
use crate::driver::host_driver::HostDriver;
use crate::driver::iscsi::{self, Iscsi, IscsiTarget};
use crate::driver::model::{Model, ModelOptions, ModelOver};
use crate::driver::multipath;
use crate::driver::multipath::target::MultipathTarget;
use crate::driver::nbd::{self, Nbd, NbdTarget, OneConnection};
use crate::driver::null::{Null, NullOptions};
use crate::driver::ram::{Ram, RamOptions};
use crate::driver::rbd::{self, Rbd, RbdTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use blk::driver::Driver;
use blk::id::SECTOR_SHIFT;
use blk::suggest::{did_you_mean, nearest};
use blk::time::Duration;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A target as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// See [`crate::driver::null`].
    Null(NullOptions),
    /// See [`crate::driver::ram`].
    Ram(RamOptions),
    /// See [`crate::driver::model`].
    Model(ModelOptions),
    /// See [`crate::driver::file`].
    File(PathBuf),
    /// See [`crate::driver::nbd`].
    Nbd(NbdTarget),
    /// See [`crate::driver::rbd`].
    Rbd(RbdTarget),
    /// See [`crate::driver::iscsi`].
    Iscsi(IscsiTarget),
    /// See [`crate::driver::multipath`].
    Multipath(Box<MultipathTarget>),
    /// Several of these in stripes: not one device, so [`TargetSpec::open`] does not open it. See [`StripeSpec`].
    Stripe(StripeSpec),
    /// A device of the kernel, without our block layer: [`TargetSpec::open`] does not open it. See [`crate::kernel`].
    Kernel(PathBuf),
    /// A simulated machine, described by a file: nothing of this host, so [`TargetSpec::open`] does not open it.
    Sim(PathBuf),
}

/// The kinds of targets; what is none of them is a file.
const KINDS: [&str; 11] =
    ["null", "ram", "model", "file", "nbd", "rbd", "iscsi", "multipath", "stripe", "kernel", "sim"];

/// Whether a name begins with a kind of target and `:`; of NBD and iSCSI, with its `://`.
pub fn has_kind(name: &str) -> bool {
    name.split_once(':').is_some_and(|(kind, rest)| {
        let is_url = nbd::is_scheme(kind) || iscsi::is_scheme(kind);
        if is_url { rest.starts_with("//") } else { KINDS.contains(&kind) }
    })
}

/// Something that is not as asked; the run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetWarning {
    /// Of a file.
    File(FileWarning),
    /// Of an NBD server.
    Nbd(OneConnection),
    /// Of targets that make one disk together.
    Stripe(String),
    /// Of paths of a multipath disk that are not there.
    Multipath(String),
    /// Of a device of the kernel.
    Kernel(String),
}

impl From<FileWarning> for TargetWarning {
    fn from(warning: FileWarning) -> Self {
        TargetWarning::File(warning)
    }
}

impl fmt::Display for TargetWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetWarning::File(warning) => warning.fmt(f),
            TargetWarning::Nbd(warning) => warning.fmt(f),
            TargetWarning::Stripe(warning) | TargetWarning::Multipath(warning) | TargetWarning::Kernel(warning) => {
                warning.fmt(f)
            }
        }
    }
}

/// One option of a kind: its name, the values it takes (for people), and how it is set.
struct OptionDef<T> {
    name: &'static str,
    range: &'static str,
    set: fn(&mut T, &str) -> Option<()>,
}

const SIZE_RANGE: &str = "4096..=8e, such as 16g";
const BLOCKSIZE_RANGE: &str = "512, 1024, 2048 or 4096";

const NULL_OPTIONS: &[OptionDef<NullOptions>] = &[
    OptionDef { name: "size", range: SIZE_RANGE, set: |o, v| set(&mut o.size_bytes, disk_size(v)) },
    OptionDef { name: "blocksize", range: BLOCKSIZE_RANGE, set: |o, v| set(&mut o.blocksize, blocksize(v)) },
    OptionDef {
        name: "completion_nsec",
        range: "0..=60000000000",
        set: |o, v| set(&mut o.completion, within(v, 0, 60_000_000_000).map(Duration::from_ns)),
    },
];

const RAM_OPTIONS: &[OptionDef<RamOptions>] = &[
    OptionDef { name: "size", range: SIZE_RANGE, set: |o, v| set(&mut o.size_bytes, disk_size(v)) },
    OptionDef { name: "blocksize", range: BLOCKSIZE_RANGE, set: |o, v| set(&mut o.blocksize, blocksize(v)) },
];

const US_RANGE: &str = "0..=60000000 microseconds";

const MODEL_OPTIONS: &[OptionDef<ModelOptions>] = &[
    OptionDef { name: "size", range: SIZE_RANGE, set: |o, v| set(&mut o.size_bytes, disk_size(v)) },
    OptionDef {
        name: "over",
        range: "null or ram",
        set: |o, v| {
            let over = match v {
                "null" => Some(ModelOver::Null),
                "ram" => Some(ModelOver::Ram),
                _ => None,
            };
            set(&mut o.over, over)
        },
    },
    OptionDef {
        name: "lat_us",
        range: US_RANGE,
        set: |o, v| {
            o.lat_write = micros(v)?;
            set(&mut o.lat_read, micros(v))
        },
    },
    OptionDef { name: "lat_read_us", range: US_RANGE, set: |o, v| set(&mut o.lat_read, micros(v)) },
    OptionDef { name: "lat_write_us", range: US_RANGE, set: |o, v| set(&mut o.lat_write, micros(v)) },
    OptionDef {
        name: "jitter_pct",
        range: "0..=100",
        set: |o, v| set(&mut o.speed.jitter_pct, within(v, 0, 100).map(|n| n as u32)),
    },
    OptionDef { name: "seed", range: "a whole number", set: |o, v| set(&mut o.speed.seed, v.parse().ok()) },
    OptionDef {
        name: "iops",
        range: "1..=1000000000",
        set: |o, v| set(&mut o.speed.iops, within(v, 1, 1_000_000_000)),
    },
    OptionDef {
        name: "bw",
        range: "4096..=1p bytes per second, such as 750m",
        set: |o, v| set(&mut o.speed.bytes_per_sec, bytes(v).filter(|n| (4096..=1 << 50).contains(n))),
    },
    OptionDef {
        name: "burst_ms",
        range: "0..=60000",
        set: |o, v| set(&mut o.speed.burst, within(v, 0, 60_000).map(Duration::from_ms)),
    },
    OptionDef {
        name: "parallel",
        range: "1..=65536",
        set: |o, v| set(&mut o.speed.parallel, within(v, 1, 65536).map(|n| n as u32)),
    },
];

fn set<T>(field: &mut T, value: Option<T>) -> Option<()> {
    *field = value?;
    Some(())
}

fn within(v: &str, min: u64, max: u64) -> Option<u64> {
    u64::from_str(v).ok().filter(|n| (min..=max).contains(n))
}

fn micros(v: &str) -> Option<Duration> {
    within(v, 0, 60_000_000).map(Duration::from_us)
}

fn blocksize(v: &str) -> Option<u32> {
    bytes(v).filter(|n| [512, 1024, 2048, 4096].contains(n)).map(|n| n as u32)
}

fn disk_size(v: &str) -> Option<u64> {
    bytes(v).filter(|n| (4096..=8 << 60).contains(n))
}

/// Bytes with an optional unit: k, m, g, t, p, e, each times 1024, also as kb or kib.
pub fn bytes(v: &str) -> Option<u64> {
    let digits = v.len() - v.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = v.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Reads `name=value,...` into the defaults of a kind.
fn options<T: Default>(kind: &str, text: &str, defs: &[OptionDef<T>]) -> Result<T> {
    let mut options = T::default();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let Some(def) = defs.iter().find(|d| d.name == name) else {
            let hint = did_you_mean(name, defs.iter().map(|d| d.name));
            let all: Vec<_> = defs.iter().map(|d| d.name).collect();
            let all = all.join(", ");
            return Err(Error::usage(format!("target '{kind}' has no option '{name}'; {hint}Options: {all}")));
        };
        if (def.set)(&mut options, value).is_none() {
            return Err(Error::usage(format!("target '{kind}': {name}={value}: must be {}", def.range)));
        }
    }
    Ok(options)
}

/// What the user of a target will do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Writes, discards or write zeroes will be asked for.
    pub write: bool,
    /// Past the page cache, for files (`direct=1`).
    pub direct: bool,
    /// At least this many bytes.
    pub min_bytes: u64,
    /// With `write`: also a block device that is mounted or part of another one (`allow_mounted_write=1`).
    pub in_use: bool,
    /// How far a buffered file is read ahead at most, KiB (`read_ahead_kb`); `None` = as the system does by itself.
    pub read_ahead_kb: Option<u32>,
}

/// A driver ready to be started, and what the user should know of it.
pub struct OpenTarget {
    /// The driver.
    pub driver: Arc<dyn HostDriver>,
    /// What is not as asked.
    pub warnings: Vec<TargetWarning>,
}

impl TargetSpec {
    /// Reads a target. Nothing is opened.
    pub fn parse(text: &str) -> Result<TargetSpec> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "null" => options(kind, rest, NULL_OPTIONS).map(TargetSpec::Null),
            "ram" => options(kind, rest, RAM_OPTIONS).map(TargetSpec::Ram),
            "model" => options(kind, rest, MODEL_OPTIONS).map(TargetSpec::Model),
            "stripe" => StripeSpec::parse(rest).map(TargetSpec::Stripe),
            "file" if rest.is_empty() => {
                Err(Error::usage("target 'file:' needs a path, such as file:/var/tmp/disk.img"))
            }
            "file" => Ok(TargetSpec::File(rest.into())),
            "kernel" if rest.is_empty() => {
                Err(Error::usage("target 'kernel:' needs a block device, such as kernel:/dev/nvme0n1"))
            }
            "kernel" => Ok(TargetSpec::Kernel(rest.into())),
            "sim" if rest.is_empty() => {
                Err(Error::usage("target 'sim:' needs a machine file, such as sim:scenarios/azure-p80.toml"))
            }
            "sim" => Ok(TargetSpec::Sim(rest.into())),
            kind if nbd::is_scheme(kind) && text.contains(':') => nbd::parse(text).map(TargetSpec::Nbd),
            "rbd" if text.contains(':') => rbd::parse(text).map(TargetSpec::Rbd),
            kind if iscsi::is_scheme(kind) && text.contains(':') => iscsi::parse(text).map(TargetSpec::Iscsi),
            "multipath" if text.contains(':') => {
                multipath::target::parse(rest).map(|target| TargetSpec::Multipath(Box::new(target)))
            }
            "" => Err(Error::usage(format!("target '{text}': must be a path or one of {}", KINDS.join(", ")))),
            // A colon is rare in a path, an unknown kind more likely, unless it comes after a slash or looks like one.
            _ if text.contains(':') && !kind.contains(['/', '.']) => {
                let hint = nearest(kind, KINDS.into_iter())
                    .map(|near| format!("did you mean '{near}:'? "))
                    .unwrap_or_default();
                Err(Error::usage(format!(
                    "there is no target '{kind}:'; {hint}For a file of that name write './{text}'"
                )))
            }
            _ => Ok(TargetSpec::File(text.into())),
        }
    }

    /// The size the specification gives the disk; `None` for a file, a server or an image, which have their own.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            TargetSpec::Null(o) => Some(o.size_bytes),
            TargetSpec::Ram(o) => Some(o.size_bytes),
            TargetSpec::Model(o) => Some(o.size_bytes),
            TargetSpec::File(_)
            | TargetSpec::Nbd(_)
            | TargetSpec::Rbd(_)
            | TargetSpec::Iscsi(_)
            | TargetSpec::Stripe(_)
            | TargetSpec::Kernel(_)
            | TargetSpec::Sim(_) => None,
            TargetSpec::Multipath(target) => target.paths.first().and_then(|path| path.spec.size_bytes()),
        }
    }

    /// Files and block devices that its data is on, under the names they were given: those of all its paths or stripes.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            TargetSpec::File(path) | TargetSpec::Kernel(path) => vec![path],
            TargetSpec::Multipath(target) => target.paths.iter().flat_map(|path| path.spec.files()).collect(),
            TargetSpec::Stripe(stripe) => stripe.members.iter().flat_map(TargetSpec::files).collect(),
            _ => Vec::new(),
        }
    }

    /// Why there is no driver of it.
    fn is_no_driver(&self) -> Error {
        Error::usage(match self {
            TargetSpec::Kernel(path) => {
                let path = path.display();
                format!(
                    "target 'kernel:{path}' is the kernel's, without our block layer: for run, compare and tune; through ours it is '{path}'"
                )
            }
            TargetSpec::Sim(path) => format!(
                "target 'sim:{}' is a simulated machine, and runs a whole job file: for run, compare and tune, with --target or under all \
                 jobs",
                path.display()
            ),
            _ => "target 'stripe:': is several devices and not one: for run and compare; a served disk has stack = \"stripe\""
                .to_owned(),
        })
    }

    /// Makes the driver. Data comes from and goes to `regions`.
    pub fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        if let Some(size) = self.size_bytes().filter(|size| *size < needs.min_bytes) {
            let need = needs.min_bytes;
            return Err(Error::usage(format!(
                "the target has {size} bytes, the job needs {need}: give the target size={need} or the job a smaller size"
            )));
        }
        let plain = |driver: Arc<dyn HostDriver>| OpenTarget { driver, warnings: Vec::new() };
        Ok(match self {
            TargetSpec::Null(o) => plain(Arc::new(Null::new(*o))),
            TargetSpec::Ram(o) => plain(Arc::new(Ram::new(*o, regions)?)),
            TargetSpec::Model(o) => plain(Arc::new(Model::new(*o, regions)?)),
            TargetSpec::File(path) => {
                let Needs { write, direct, min_bytes, in_use, read_ahead_kb } = *needs;
                let options = FileOptions { write, direct, min_bytes, in_use, read_ahead_kb };
                let (file, warnings) = File::open(path, &options, regions).map_err(|e| {
                    let name = path.to_string_lossy();
                    let hint = nearest(&name, KINDS.into_iter())
                        .map_or_else(String::new, |near| format!(" (did you mean '{near}'?)"));
                    match e.kind() {
                        ErrorKind::NotFound if !name.contains(['/', '.']) => {
                            e.within(&format!("there is no target '{name}'{hint} and no such file"))
                        }
                        _ => e,
                    }
                })?;
                OpenTarget { driver: Arc::new(file), warnings: warnings.into_iter().map(Into::into).collect() }
            }
            TargetSpec::Stripe(_) | TargetSpec::Kernel(_) | TargetSpec::Sim(_) => return Err(self.is_no_driver()),
            TargetSpec::Nbd(target) => {
                let (nbd, warning) = Nbd::open(target, needs.write, regions)?;
                let (size, need) = (nbd.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
                if size < need {
                    let text = format!(
                        "the NBD server's export '{}' has {size} bytes, the job needs {need}: give the job a smaller size",
                        target.export
                    );
                    return Err(Error::new(ErrorKind::NoSpace, text));
                }
                OpenTarget { driver: Arc::new(nbd), warnings: warning.map(TargetWarning::Nbd).into_iter().collect() }
            }
            TargetSpec::Rbd(target) => {
                let rbd = Rbd::open(target, needs.write, regions)?;
                let (size, need) = (rbd.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
                if size < need {
                    let text = format!(
                        "RBD image {target} has {size} bytes, the job needs {need}: give the job a smaller size, or the image more with \
                         rbd resize"
                    );
                    return Err(Error::new(ErrorKind::NoSpace, text));
                }
                plain(Arc::new(rbd))
            }
            TargetSpec::Iscsi(target) => {
                let iscsi = Iscsi::open(target, needs.write, regions)?;
                let (size, need) = (iscsi.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
                if size < need {
                    let text = format!("{target} has {size} bytes, the job needs {need}: give the job a smaller size");
                    return Err(Error::new(ErrorKind::NoSpace, text));
                }
                plain(Arc::new(iscsi))
            }
            TargetSpec::Multipath(target) => target.open(needs, &regions)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::driver::model::Speed;

    fn refused(text: &str) -> String {
        TargetSpec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn kinds_and_options_are_read() {
        assert_eq!(TargetSpec::parse("null").unwrap(), TargetSpec::Null(NullOptions::default()));
        assert_eq!(
            TargetSpec::parse("null:size=16g,completion_nsec=10000,blocksize=4k").unwrap(),
            TargetSpec::Null(NullOptions { size_bytes: 16 << 30, blocksize: 4096, completion: Duration::from_us(10) })
        );
        assert_eq!(TargetSpec::parse("ram:size=64MiB").unwrap().size_bytes(), Some(64 << 20));
        let model = TargetSpec::parse("model:iops=18000,bw=750m,lat_us=2000,parallel=64,size=16t,over=null").unwrap();
        let lat = Duration::from_ms(2);
        let expected = ModelOptions {
            speed: Speed { iops: 18_000, bytes_per_sec: 750 << 20, parallel: 64, ..Speed::default() },
            lat_read: lat,
            lat_write: lat,
            size_bytes: 16 << 40,
            ..ModelOptions::default()
        };
        assert_eq!(model, TargetSpec::Model(expected));
    }

    #[test]
    fn everything_else_is_a_path() {
        for (text, path) in [
            ("file:/var/a", "/var/a"),
            ("file:a:b", "a:b"),
            ("/dev/disk/by-path/pci-0000:00:1f.2", "/dev/disk/by-path/pci-0000:00:1f.2"),
            ("./null:1", "./null:1"),
            ("disk.img", "disk.img"),
        ] {
            assert_eq!(TargetSpec::parse(text).unwrap(), TargetSpec::File(path.into()), "{text}");
        }
    }

    #[test]
    fn mistakes_are_refused_with_the_nearest_name_or_the_range() {
        assert!(refused("nul:size=1g").contains("did you mean 'null:'"));
        assert!(refused("null:sise=1g").contains("did you mean 'size'"));
        assert!(refused("null:blocksize=513").contains("blocksize=513: must be 512, 1024"));
        assert!(refused("null:size=1x").contains("size=1x: must be 4096..="));
        assert!(refused("ram:size=99999999999e").contains("must be"));
        assert!(refused("model:parallel=0").contains("parallel=0: must be 1..=65536"));
        assert!(refused("model:over=file").contains("null or ram"));
        assert!(refused("model:iops").contains("iops=: must be"));
        assert!(refused("file:").contains("needs a path"));
        assert!(refused("").contains("must be a path"));
    }

    #[test]
    fn a_target_that_is_too_small_or_missing_is_said_so() {
        let needs = Needs { write: true, direct: true, min_bytes: 1 << 40, in_use: false, read_ahead_kb: None };
        let open = |text: &str| TargetSpec::parse(text).unwrap().open(&needs, Arc::new(Regions::new())).err().unwrap();
        assert!(open("null:size=1g").to_string().contains("has 1073741824 bytes, the job needs 1099511627776"));
        assert!(open("nula").to_string().contains("did you mean 'null'"));
        assert!(open("/nonexistent/disk").to_string().contains("does not exist"));
    }

    #[test]
    fn every_option_has_a_range_and_refuses_nonsense() {
        fn check<T: Default>(defs: &[OptionDef<T>]) {
            for d in defs {
                assert!((d.set)(&mut T::default(), "nonsense").is_none() && !d.range.is_empty(), "{}", d.name);
            }
        }
        check(NULL_OPTIONS);
        check(RAM_OPTIONS);
        check(MODEL_OPTIONS);
    }
}
