// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `--target` names: `null[:options]`, `ram[:options]`, `model[:options]`, `file:PATH`, `nbd://...`, `rbd:...`,
//! `iscsi://...`, `multipath:...`, `stripe:...`, `kernel:/dev/X`, `sim:FILE`, or a plain path.
//!
//! Two steps. [`TargetSpec::parse`] only reads the text: everything that can be refused without opening anything is
//! refused there. [`TargetSpec::open`] makes the driver. Options are `name=value`, separated by commas; sizes and rates
//! take k, m, g, t, p (powers of 1024), times are numbers in the unit of their name.

mod stripe;

pub use stripe::StripeSpec;
pub(crate) use stripe::stripe_map;

pub use crate::driver::options::bytes;
pub(crate) use crate::driver::target::add_new;
pub use crate::driver::target::{DriverTarget, Needs, OpenTarget, TargetWarning};

use crate::driver::file::{self, FilePart};
use crate::driver::iscsi::IscsiTarget;
use crate::driver::model::ModelOptions;
use crate::driver::multipath::target::MultipathTarget;
use crate::driver::nbd::NbdTarget;
use crate::driver::null::NullOptions;
use crate::driver::ram::RamOptions;
use crate::driver::rbd::RbdTarget;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use blk::suggest::nearest;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes [`TargetSpec`] of the kinds of targets that have a driver, in the order in which messages list them.
macro_rules! targets {
    ($($kind:ident($target:ty), see $see:literal;)*) => {
        /// A target as it was asked for.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum TargetSpec {
            $(#[doc = $see] $kind($target),)*
            /// Several of these in stripes: not one device, so [`TargetSpec::open`] does not open it. See [`StripeSpec`].
            Stripe(StripeSpec),
            /// A device of the kernel, without our block layer: [`TargetSpec::open`] does not open it. See [`crate::kernel`].
            Kernel(PathBuf),
            /// A simulated machine, described by a file: nothing of this host, so [`TargetSpec::open`] does not open it.
            Sim(PathBuf),
        }

        /// The kinds of targets that have a driver.
        pub const DRIVER_KINDS: &[&str] = &[$(<$target>::KIND),*];

        /// How targets that have a driver are written, as lines of `--help`.
        pub const DRIVER_HELP: &[&str] = &[$(<$target>::HELP),*];

        /// Whether a name without `:` is a target and no file.
        pub fn is_word(name: &str) -> bool {
            $((<$target>::is_kind(name) && <$target>::IS_WORD))||*
        }

        /// Whether a name begins with a kind of target and `:`; of those that are URLs, with its `://`.
        pub fn has_kind(name: &str) -> bool {
            name.split_once(':').is_some_and(|(kind, rest)| {
                $(if <$target>::is_kind(kind) {
                    return !<$target>::IS_URL || rest.starts_with("//");
                })*
                OTHER_KINDS.contains(&kind)
            })
        }

        impl TargetSpec {
            /// A target of a kind that has a driver; `None`: it is of no such kind.
            fn parse_driver(text: &str, kind: &str, rest: &str) -> Option<Result<TargetSpec>> {
                $(if <$target>::is_kind(kind) && (<$target>::IS_WORD || text.contains(':')) {
                    return Some(<$target as DriverTarget>::parse(text, rest).map(TargetSpec::$kind));
                })*
                None
            }

            /// The size the specification gives the disk; `None` for a file, a server or an image, which have their own.
            pub fn size_bytes(&self) -> Option<u64> {
                match self {
                    $(TargetSpec::$kind(target) => DriverTarget::size_bytes(target),)*
                    TargetSpec::Stripe(_) | TargetSpec::Kernel(_) | TargetSpec::Sim(_) => None,
                }
            }

            /// Whether both are the same data, as far as their texts tell.
            pub(crate) fn is_same_data(&self, other: &TargetSpec) -> bool {
                match (self, other) {
                    $((TargetSpec::$kind(a), TargetSpec::$kind(b)) => DriverTarget::is_same_data(a, b),)*
                    (TargetSpec::Multipath(disk), path) | (path, TargetSpec::Multipath(disk)) => {
                        disk.paths.iter().any(|p| p.spec.is_same_data(path))
                    }
                    // Of different kinds, or without a driver.
                    _ => false,
                }
            }

            /// Whether each opening makes a disk of its own, which no other sees.
            pub fn is_private(&self) -> bool {
                match self {
                    $(TargetSpec::$kind(target) => target.is_private(),)*
                    TargetSpec::Stripe(_) | TargetSpec::Kernel(_) | TargetSpec::Sim(_) => false,
                }
            }

            /// Whether what is written to it is in this process's memory.
            pub fn is_memory(&self) -> bool {
                match self {
                    $(TargetSpec::$kind(target) => target.is_memory(),)*
                    TargetSpec::Stripe(_) | TargetSpec::Kernel(_) | TargetSpec::Sim(_) => false,
                }
            }

            /// Files and block devices that its data is on, under the names they were given: those of all its paths or stripes.
            pub fn files(&self) -> Vec<&Path> {
                match self {
                    $(TargetSpec::$kind(target) => target.files(),)*
                    TargetSpec::Kernel(path) => vec![path],
                    TargetSpec::Stripe(stripe) => stripe.members.iter().flat_map(TargetSpec::files).collect(),
                    TargetSpec::Sim(_) => Vec::new(),
                }
            }

            fn open_driver(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
                match self {
                    $(TargetSpec::$kind(target) => DriverTarget::open(target, needs, regions),)*
                    TargetSpec::Stripe(_) | TargetSpec::Kernel(_) | TargetSpec::Sim(_) => Err(self.is_no_driver()),
                }
            }
        }
    };
}

// The registry of drivers: a line each.
targets! {
    File(PathBuf), see "See [`crate::driver::file`].";
    Null(NullOptions), see "See [`crate::driver::null`].";
    Ram(RamOptions), see "See [`crate::driver::ram`].";
    Model(ModelOptions), see "See [`crate::driver::model`].";
    Nbd(NbdTarget), see "See [`crate::driver::nbd`].";
    Rbd(RbdTarget), see "See [`crate::driver::rbd`].";
    Iscsi(IscsiTarget), see "See [`crate::driver::iscsi`].";
    Multipath(Box<MultipathTarget>), see "See [`crate::driver::multipath`].";
}

/// The kinds without a driver of their own.
const OTHER_KINDS: [&str; 3] = ["stripe", "kernel", "sim"];

/// All kinds of targets; what is none of them is a file.
fn kinds() -> impl Iterator<Item = &'static str> {
    DRIVER_KINDS.iter().copied().chain(OTHER_KINDS)
}

impl TargetSpec {
    /// Reads a target. Nothing is opened.
    pub fn parse(text: &str) -> Result<TargetSpec> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        if let Some(target) = TargetSpec::parse_driver(text, kind, rest) {
            return target;
        }
        match kind {
            "stripe" => StripeSpec::parse(rest).map(TargetSpec::Stripe),
            "kernel" if rest.is_empty() => {
                Err(Error::usage("target 'kernel:' needs a block device, such as kernel:/dev/nvme0n1"))
            }
            "kernel" => Ok(TargetSpec::Kernel(rest.into())),
            "sim" if rest.is_empty() => {
                Err(Error::usage("target 'sim:' needs a machine file, such as sim:scenarios/azure-p80.toml"))
            }
            "sim" => Ok(TargetSpec::Sim(rest.into())),
            "" => Err(Error::usage(format!(
                "target '{text}': must be a path or one of {}",
                kinds().collect::<Vec<_>>().join(", ")
            ))),
            // A colon is rare in a path, an unknown kind more likely, unless it comes after a slash or looks like one.
            _ if text.contains(':') && !kind.contains(['/', '.']) => {
                let hint = nearest(kind, kinds()).map(|near| format!("did you mean '{near}:'? ")).unwrap_or_default();
                Err(Error::usage(format!(
                    "there is no target '{kind}:'; {hint}For a file of that name write './{text}'"
                )))
            }
            _ => Ok(TargetSpec::File(text.into())),
        }
    }

    /// Whether a password or private key is read when it is opened. That of RBD comes from a keyring, if not from the target.
    pub fn has_secrets(&self) -> bool {
        match self {
            TargetSpec::Iscsi(target) => target.chap.is_some() || target.target_user.is_some(),
            TargetSpec::Rbd(_) => true,
            TargetSpec::Nbd(target) => target.tls.as_ref().is_some_and(|tls| tls.certificates.is_some()),
            TargetSpec::Multipath(target) => target.paths.iter().any(|path| path.spec.has_secrets()),
            TargetSpec::Stripe(stripe) => stripe.members.iter().any(TargetSpec::has_secrets),
            _ => false,
        }
    }

    /// Why there is no driver of it.
    fn is_no_driver(&self) -> Error {
        Error::usage(match self {
            TargetSpec::Kernel(path) => {
                let path = path.display();
                format!(
                    "target 'kernel:{path}' bypasses mqblk's block layer: only run, compare and tune accept it; here, use '{path}'"
                )
            }
            TargetSpec::Sim(path) => format!(
                "target 'sim:{}' is a simulated machine for a whole job file: only run, compare and tune accept it, with --target or as \
                 filename= of all jobs",
                path.display()
            ),
            _ => "target 'stripe:': is several devices: only run and compare accept it; for a served disk, set stack = \"stripe\""
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
        self.open_driver(needs, regions).map_err(|e| self.may_be_a_kind(e))
    }

    /// The name of a file that does not exist may have been meant as a kind.
    fn may_be_a_kind(&self, e: Error) -> Error {
        match self {
            TargetSpec::File(path) if e.kind() == ErrorKind::NotFound => no_such_file(e, &path.to_string_lossy()),
            _ => e,
        }
    }

    /// As [`TargetSpec::open`], for a part of its file or block device, which with `any_size` may end within a sector
    /// ([`file::FileOptions::any_size`]). Other targets are opened as a whole.
    pub(crate) fn open_part(
        &self,
        part: FilePart,
        any_size: bool,
        needs: &Needs,
        regions: Arc<Regions>,
    ) -> Result<OpenTarget> {
        match self {
            TargetSpec::File(path) if any_size || !part.is_whole() => {
                file::open_part(path, part, any_size, needs, regions).map_err(|e| self.may_be_a_kind(e))
            }
            _ => self.open(needs, regions),
        }
    }
}

/// A name that is no file's may have been meant as a kind.
fn no_such_file(e: Error, name: &str) -> Error {
    if name.contains(['/', '.']) {
        return e;
    }
    let hint = nearest(name, kinds()).map_or_else(String::new, |near| format!(" (did you mean '{near}'?)"));
    e.within(&format!("there is no target '{name}'{hint} and no such file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::driver::model::Speed;
    use blk::time::Duration;

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
        let needs =
            Needs { write: true, direct: true, min_bytes: 1 << 40, in_use: false, read_ahead_kb: None, aio: None };
        let open = |text: &str| TargetSpec::parse(text).unwrap().open(&needs, Arc::new(Regions::new())).err().unwrap();
        assert!(open("null:size=1g").to_string().contains("has 1073741824 bytes, the job needs 1099511627776"));
        assert!(open("nula").to_string().contains("did you mean 'null'"));
        assert!(open("/nonexistent/disk").to_string().contains("does not exist"));
    }
}
