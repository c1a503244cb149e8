// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When `mqblk serve` gives up what, and how `mqblk ctl list` shows it.
//!
//! Guarantees: before any other thread starts, programs that are started gain no powers, and with `--user` none has a capability. With
//! `--sandbox on` no program can be started, unless users other than root mount by one, and threads of clients deny themselves more, except
//! for those of the control socket. While something with a password or private key is served, there is no core dump. Does not do: look for
//! secrets in images or in clients' data.

use super::args::{SandboxChoice, ServeArgs};
use crate::status::Failure;
use host::confinement::{self, Confinement};
use host::privileges::uid;
use host::sandbox;
use host::serve::plan::{ExportKind, ServePlan};
use serde_json::{Value, json};

/// Confines this thread, and with it all that start later. Returns warnings.
///
/// # Errors
/// The kernel refuses.
pub fn begin(args: &ServeArgs, plan: &ServePlan) -> Result<Vec<String>, Failure> {
    // Users other than root mount by fusermount3, which is set-uid.
    let needs_helper = uid() != 0 && plan.exports.iter().any(|e| matches!(e.kind, ExportKind::Fuse(_)));
    if !needs_helper {
        confinement::no_new_privs()?;
    }
    let mut warnings = Vec::new();
    if args.user.is_some() && !confinement::empty_bounding_set()? {
        warnings.push(
            "the bounding set of capabilities stays as it is, because this process lacks CAP_SETPCAP; no_new_privs keeps \
             programs from gaining any"
                .to_owned(),
        );
    }
    protect_secrets(args, plan)?;
    if args.sandbox == SandboxChoice::On
        && let Err(e) = sandbox::begin(needs_helper)
    {
        warnings.push(format!("{e}; the daemon runs as with --sandbox off"));
    }
    Ok(warnings)
}

/// Prevents core dumps if the plan has secrets, unless the user wants them. To be called before the plan is served, and after a change of
/// the user, which resets it. Secrets of removed disks may still be in memory, so core dumps stay off.
///
/// # Errors
/// The kernel refuses.
pub fn protect_secrets(args: &ServeArgs, plan: &ServePlan) -> Result<(), Failure> {
    if args.core_dumps {
        confinement::set_dumpable(true)?;
    } else if has_secrets(plan) {
        confinement::set_dumpable(false)?;
    }
    Ok(())
}

fn has_secrets(plan: &ServePlan) -> bool {
    plan.disks.iter().flat_map(|disk| &disk.targets).any(|target| target.spec.has_secrets())
        || plan.exports.iter().any(|e| matches!(&e.kind, ExportKind::Nbd(nbd) if nbd.tls.is_some()))
}

/// Returns the state as JSON; null if the kernel does not report it.
pub fn value() -> Value {
    let mask = |capabilities: u64| format!("{capabilities:016x}");
    Confinement::in_effect().map_or(Value::Null, |is| {
        json!({
            "no_new_privs": is.no_new_privs,
            "dumpable": is.dumpable,
            "capabilities": mask(is.capabilities),
            "bounding_set": mask(is.bounding_set),
            "inherited": mask(is.inherited),
            "filtered_threads": is.filtered_threads.name(),
            "paths_denied": sandbox::denies_paths(),
        })
    })
}
