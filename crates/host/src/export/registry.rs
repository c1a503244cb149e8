// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of export types.
//!
//! Guarantees: every consumer (the configuration's reader, checks, the daemon, printed plans and commands) matches on these rows. A new
//! type is handled everywhere, or the build fails. Does not: support a second type whose exports share a server; only NBD's `begin` may
//! return `Ok(None)`.

use super::fuse::spec::FusePlan;
use super::nbd::spec::NbdPlan;
use super::ublk::spec::UblkPlan;
use super::vhost::spec::VhostUserPlan;
use crate::error::Result;
use crate::handed::At;
use crate::net::certificates::NbdTls;
use crate::serve::export_spec::{ExportKeys, ExportSetup, ExportSpec, ExportValue, Hint, HintContext, Report};
use crate::serve::running::RunningExport;
use std::path::Path;

/// Generates [`ExportKind`] and its functions from one row per type, in the order in which messages list the types.
macro_rules! exports {
    ($($(#[$doc:meta])* $kind:ident($plan:ty);)*) => {
        /// The protocol of an export.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "there is one for each export")]
        pub enum ExportKind {
            $($(#[$doc])* $kind($plan),)*
        }

        /// The types of exports, as typed in a configuration.
        pub const EXPORT_TYPES: &[&str] = &[$(<$plan>::TYPE),*];

        /// Whether this type of export, as typed in a configuration, serves connections, which come and go.
        pub fn serves_connections(export_type: &str) -> bool {
            [$((<$plan>::TYPE, <$plan>::SERVES_CONNECTIONS)),*].contains(&(export_type, true))
        }

        impl ExportKind {
            /// Returns the suffix of the default name of an export, for the type at `index` of [`EXPORT_TYPES`].
            ///
            /// # Panics
            /// `index` is out of range.
            pub fn short_name(index: usize) -> &'static str {
                [$(<$plan>::SHORT),*][index]
            }

            /// Reads the keys of the type at `index` of [`EXPORT_TYPES`]; `name` is the export's, `disk` its disk's.
            ///
            /// # Panics
            /// `index` is out of range.
            pub fn read(index: usize, keys: &mut dyn ExportKeys, name: &str, disk: &str) -> ExportKind {
                let all: &[fn(&mut dyn ExportKeys, &str, &str) -> ExportKind] =
                    &[$(|keys, name, disk| ExportKind::$kind(<$plan>::read(keys, name, disk))),*];
                all[index](keys, name, disk)
            }

            /// Returns the type as typed in a configuration.
            pub fn name(&self) -> &'static str {
                match self { $(ExportKind::$kind(_) => <$plan>::TYPE,)* }
            }

            /// Whether only root can stop the export.
            pub fn needs_root(&self) -> bool {
                match self { $(ExportKind::$kind(_) => <$plan>::NEEDS_ROOT,)* }
            }

            /// Whether the export serves disks that end within a sector with their exact size.
            pub(crate) fn serves_any_size(&self) -> bool {
                match self { $(ExportKind::$kind(_) => <$plan>::SERVES_ANY_SIZE,)* }
            }

            /// Whether clients of the export see a device with block sizes.
            pub fn has_blocks(&self) -> bool {
                match self { $(ExportKind::$kind(_) => <$plan>::HAS_BLOCKS,)* }
            }

            /// Returns the number of queues that a mapping distributes; `None` for exports whose connections are distributed round robin
            /// as they arrive.
            pub fn num_queues(&self) -> Option<u16> {
                match self { $(ExportKind::$kind(export) => export.num_queues(),)* }
            }

            /// Returns the Unix socket that the export listens on.
            pub fn unix_socket(&self) -> Option<&Path> {
                match self { $(ExportKind::$kind(export) => export.unix_socket(),)* }
            }

            /// Whether the export listens at `at`.
            pub fn is_at(&self, at: &At) -> bool {
                match self { $(ExportKind::$kind(export) => export.is_at(at),)* }
            }

            /// Makes the export listen at `at` instead. Returns false if it cannot.
            pub fn listen_at(&mut self, at: &At) -> bool {
                match self { $(ExportKind::$kind(export) => export.listen_at(at),)* }
            }

            /// Returns the TLS settings of this export; `None`: the type has no TLS.
            pub fn tls(&mut self) -> Option<&mut Option<NbdTls>> {
                match self { $(ExportKind::$kind(export) => export.tls(),)* }
            }

            /// Whether both are exports of one server.
            pub fn shares_server(&self, other: &ExportKind) -> bool {
                match (self, other) {
                    $((ExportKind::$kind(a), ExportKind::$kind(b)) => a.shares_server(b),)*
                    _ => false,
                }
            }

            /// Returns where clients find the export, as text for a person.
            pub fn summary(&self) -> String {
                match self { $(ExportKind::$kind(export) => export.summary(),)* }
            }

            /// Returns the export's values by key, for programs.
            pub fn values(&self) -> Vec<(&'static str, ExportValue)> {
                match self { $(ExportKind::$kind(export) => export.values(),)* }
            }

            /// Returns commands that clients can paste, with absolute paths.
            pub fn hints(&self, of: &HintContext<'_>) -> Vec<Hint> {
                match self { $(ExportKind::$kind(export) => export.hints(of),)* }
            }

            pub(crate) fn check(&self, report: &mut Report<'_>) {
                match self { $(ExportKind::$kind(export) => export.check(report),)* }
            }

            /// Returns why both exports cannot be served at the same time, for a reason of their type.
            pub(crate) fn clash(&self, other: &ExportKind, name: &str) -> Option<(&'static str, String)> {
                match (self, other) {
                    $((ExportKind::$kind(a), ExportKind::$kind(b)) => a.clash(b, name),)*
                    _ => None,
                }
            }

            pub(crate) fn preflight(&self, report: &mut Report<'_>) {
                match self { $(ExportKind::$kind(export) => export.preflight(report),)* }
            }

            pub(crate) fn begin(&self, setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>> {
                match self { $(ExportKind::$kind(export) => export.begin(setup),)* }
            }
        }
    };
}

// The registry of exports, one row per type.
exports! {
    /// A virtio-blk device for a VM (QEMU, cloud-hypervisor, libblkio).
    VhostUserBlk(VhostUserPlan);
    /// A network block device.
    Nbd(NbdPlan);
    /// A mounted file that is the disk.
    Fuse(FusePlan);
    /// A block device of this host's kernel.
    Ublk(UblkPlan);
}
