// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns the command line into a checked plan: of a disk, a configuration or a libvirt domain, as overridden by flags.
//!
//! Guarantees: the plan is consistent, and this machine could serve it at the time of the check. Nothing was changed. Does not do: serve.

use super::args::{ServeArgs, TlsChoice};
use super::config::{self, Config};
use super::defaults::Defaults;
use super::exposure;
use super::libvirt;
use super::metrics;
use crate::status::Failure;
use ::config::reader::printable;
use host::driver::aio;
use host::handed::{At, Socket};
use host::net::certificates::NbdTls;
use host::secrets::without_secrets;
use host::serve::check::{CheckedPlan, FreshNames, HostFacts, PlanErrors};
use host::serve::geometry::Geometry;
use host::serve::mapping::Mapping;
use host::serve::plan::{
    DEFAULT_IOTHREAD_NAME, DiskPlan, ExportKind, ExportPlan, IoThreadPlan, NBD_CONNECTIONS, NbdListen, NbdPlan,
    QUEUE_SIZE, ServePlan, VhostUserPlan,
};
use host::serve::preflight::{preflight, preflight_start};
use host::target::TargetSpec;
use std::io::Read;
use std::path::Path;

/// Largest configuration or domain that is read: a mistyped name may be a disk image.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// A plan that can be served, and warnings for the user.
pub struct Request {
    /// The plan.
    pub plan: CheckedPlan,
    /// Warnings, such as differences from the file.
    pub warnings: Vec<String>,
}

/// The input of a plan, to locate an error in it.
enum Origin<'a> {
    CommandLine,
    Config(Box<Config<'a>>),
    Domain(&'a str),
}

impl Origin<'_> {
    fn locate(&self, errors: &PlanErrors) -> Failure {
        let lines = |before: &str| {
            let all: Vec<String> = errors.0.iter().map(|e| printable(&format!("{before}{e}"))).collect();
            all.join("\n")
        };
        match self {
            Origin::Config(config) => Failure::new(config.locate(errors)),
            Origin::CommandLine => Failure::new(lines("")),
            Origin::Domain(name) => Failure::new(lines(&format!("{name}: "))),
        }
    }
}

impl Request {
    /// Reads and checks the whole request.
    ///
    /// # Errors
    /// One message for each error.
    pub fn resolve(args: &ServeArgs) -> Result<Request, Failure> {
        let checked = |plan: CheckedPlan| match args.dry_run {
            true => preflight(&plan).map(|()| (plan, Vec::new())),
            false => preflight_start(plan),
        };
        let ((plan, left_out), mut warnings) = Request::read(args, checked)?;
        warnings.extend(left_out.iter().map(|e| format!("{} is left out: {}", e.of, e.text)));
        warnings.extend(secret_argument(args));
        warnings.extend(exposure::of_exports(plan.plan()));
        warnings.extend(exposure::of_metrics(metrics::at(args.metrics.as_ref()).as_ref()));
        let idle = (0..plan.disks().len()).filter(|disk| plan.exports().all(|e| e.disk != *disk));
        warnings.extend(
            idle.map(|disk| format!("disk '{}' has no export: no client can reach it", plan.disks()[disk].name)),
        );
        // A daemon says so when it opens its disks.
        let is_open = |disk: &DiskPlan| disk.aio.is_none() && disk.paths().next().is_some();
        if args.dry_run && plan.disks().iter().any(is_open) {
            warnings.extend(aio::refused());
        }
        Ok(Request { plan, warnings })
    }

    /// Reads the request and calls `then` with the checked plan. Errors of `then` are reported with their lines. Returns the result of
    /// `then`, and warnings.
    ///
    /// # Errors
    /// As [`Request::resolve`].
    pub fn read<T>(
        args: &ServeArgs,
        then: impl FnOnce(CheckedPlan) -> Result<T, PlanErrors>,
    ) -> Result<(T, Vec<String>), Failure> {
        host::run::check_settings(&args.settings)?;
        let host = HostFacts::read();
        let defaults = Defaults::new(args, &host);
        let mut warnings = Vec::new();
        let name;
        let (mut plan, origin) = match source(args)? {
            Source::Disk(path) => (disk(path, &defaults)?, Origin::CommandLine),
            Source::Config(path) => {
                name = path.to_string_lossy().into_owned();
                let text = read(path, "configuration", "name a TOML file")?;
                let mut config = config::read(&name, &text, &defaults).map_err(Failure::new)?;
                (std::mem::take(&mut config.plan), Origin::Config(Box::new(config)))
            }
            Source::Domain(path) => {
                name = path.to_string_lossy().into_owned();
                let text = read(path, "libvirt domain", "save one with 'virsh dumpxml NAME'")?;
                let domain = libvirt::read(&text, &defaults).map_err(|e| Failure::new(format!("{name}: {e}")))?;
                warnings = domain.warnings;
                (domain.plan, Origin::Domain(&name))
            }
        };
        flags_over(&mut plan, args)?;
        handed_over(&mut plan, args)?;
        let done = plan.check(&host).and_then(then).map_err(|e| origin.locate(&e))?;
        Ok((done, warnings))
    }
}

/// Returns a warning if the command line has a secret: /proc/PID/cmdline shows it to every user of this machine.
fn secret_argument(args: &ServeArgs) -> Option<String> {
    let text = args.what.as_ref()?.to_string_lossy();
    (without_secrets(&text) != text).then(|| {
        "every local user can read the password or key on this command line (ps): put the target into a configuration, \
         the password into LIBISCSI_CHAP_PASSWORD, the key into a keyring"
            .to_owned()
    })
}

enum Source<'a> {
    Disk(&'a Path),
    Config(&'a Path),
    Domain(&'a Path),
}

/// Determines the kind of the positional argument from its name alone, without opening a disk.
fn source(args: &ServeArgs) -> Result<Source<'_>, Failure> {
    match (&args.libvirt, &args.what) {
        (Some(domain), _) => Ok(Source::Domain(domain)),
        (None, Some(path)) => {
            // A URI may end in anything.
            let has_kind = path.to_str().is_some_and(host::target::has_kind);
            let is = |wanted: &str| !has_kind && path.extension().is_some_and(|e| e.eq_ignore_ascii_case(wanted));
            Ok(match () {
                () if is("toml") => Source::Config(path),
                () if is("xml") => Source::Domain(path),
                () => Source::Disk(path),
            })
        }
        (None, None) => Err(Failure::new("nothing to serve: name a disk, a CONFIG.toml or --libvirt DOMAIN.xml")),
    }
}

/// Makes the plan of one disk over NBD and vhost-user-blk, on sockets named after the disk.
pub fn disk(path: &Path, defaults: &Defaults) -> Result<ServePlan, Failure> {
    let text = path.to_string_lossy();
    let target = match path.as_os_str().to_str() {
        Some(text) => TargetSpec::parse(text)?,
        None => TargetSpec::File(path.into()),
    };
    let name = FreshNames::default().take(&config::default_name(&text));
    let disk = DiskPlan::new(name.clone(), target, text);
    let export = |short: &str, kind: ExportKind| ExportPlan {
        name: format!("{name}.{short}"),
        disk: name.clone(),
        read_only: false,
        geometry: Geometry::default(),
        mapping: Mapping::default(),
        kind,
    };
    let socket = |short: &str| defaults.socket(&format!("{name}.{short}.sock"));
    let vhost = VhostUserPlan {
        socket: socket("vhost"),
        socket_mode: None,
        num_queues: defaults.num_queues,
        queue_size: QUEUE_SIZE,
        allow_file_memory: false,
    };
    let nbd = NbdPlan {
        listen: NbdListen::Unix(socket("nbd")),
        socket_mode: None,
        name: name.clone(),
        tls: None,
        max_connections: NBD_CONNECTIONS,
    };
    let exports = vec![export("vhost", ExportKind::VhostUserBlk(vhost)), export("nbd", ExportKind::Nbd(nbd))];
    Ok(ServePlan { iothreads: Vec::new(), disks: vec![disk], exports })
}

/// Applies the flags that override the input.
fn flags_over(plan: &mut ServePlan, args: &ServeArgs) -> Result<(), Failure> {
    disk_flags_over(plan, args);
    if let Some(n) = args.iothreads {
        if let Some(first) = plan.iothreads.first() {
            let text =
                format!("--iothreads={n}: the file names its IOThreads ('{}', ...); leave the flag out", first.name);
            return Err(Failure::new(text));
        }
        plan.iothreads = (0..n).map(|i| IoThreadPlan::new(format!("{DEFAULT_IOTHREAD_NAME}{i}"))).collect();
    }
    tls_over(plan, args)
}

/// Applies the flags that a daemon was started with to disks and exports that are added later.
pub fn flags_over_added(plan: &mut ServePlan, args: &ServeArgs) {
    disk_flags_over(plan, args);
    // An addition without an NBD export has nothing to encrypt.
    let _ = tls_over(plan, args);
}

fn disk_flags_over(plan: &mut ServePlan, args: &ServeArgs) {
    for disk in &mut plan.disks {
        disk.settings.retain(|(key, _)| args.settings.iter().all(|(over, _)| over != key));
        disk.settings.extend(args.settings.iter().cloned());
        disk.read_only |= args.read_only;
    }
}

/// Sets TLS for the NBD exports whose TLS the file does not set.
fn tls_over(plan: &mut ServePlan, args: &ServeArgs) -> Result<(), Failure> {
    let Some(directory) = &args.tls_certificates else { return Ok(()) };
    let required = match args.tls {
        Some(TlsChoice::Off) => return Ok(()),
        Some(TlsChoice::On) => false,
        Some(TlsChoice::Require) | None => true,
    };
    let mut any = false;
    for export in &mut plan.exports {
        let Some(tls) = export.kind.tls() else { continue };
        any = true;
        tls.get_or_insert_with(|| NbdTls::in_directory(directory, args.tls_verify_peer, required));
    }
    if any {
        return Ok(());
    }
    let text = format!("--tls-certificates={}: there is no NBD export; leave the flag out", directory.display());
    Err(Failure::new(text))
}

/// Makes each export listen at the handed-over socket of its name, if there is one. A socket without a name goes to the first NBD server
/// that has none, because a client may wait at it already.
fn handed_over(plan: &mut ServePlan, args: &ServeArgs) -> Result<(), Failure> {
    let is_own = |at: &At| {
        args.control.as_deref().is_some_and(|path| host::handed::is_at(at, path))
            || args.metrics.as_ref().is_some_and(|metrics| metrics.is_at(at))
    };
    let (unnamed, named): (Vec<_>, Vec<_>) =
        host::handed::all().iter().partition(|s| NO_NAMES.contains(&s.name.as_str()));
    for socket in named {
        if let Some(index) = plan.exports.iter().position(|e| e.name == socket.name) {
            listen_at(plan, index, &socket.at)?;
        }
    }
    for Socket { at, .. } in unnamed {
        if plan.exports.iter().any(|e| e.kind.is_at(at)) || is_own(at) {
            continue;
        }
        let index = without_socket(plan).ok_or_else(|| {
            Failure::new(format!(
                "the socket at {at} was handed over without a name, and no NBD export is left for it; give the socket the name of an \
                 export (FileDescriptorName=, systemd-socket-activate --fdname)"
            ))
        })?;
        listen_at(plan, index, at)?;
    }
    Ok(())
}

/// Makes an export listen at a handed-over socket. Other exports of the same NBD server listen there, too.
fn listen_at(plan: &mut ServePlan, index: usize, at: &At) -> Result<(), Failure> {
    let before = plan.exports[index].kind.clone();
    if !plan.exports[index].kind.listen_at(at) {
        let (name, kind) = (&plan.exports[index].name, before.name());
        let text = format!("the socket at {at}, handed over for export '{name}': a {kind} export cannot listen there");
        return Err(Failure::new(text));
    }
    for export in plan.exports.iter_mut().filter(|e| e.kind.shares_server(&before)) {
        export.kind.listen_at(at);
    }
    Ok(())
}

/// Names of handed-over sockets that say nothing. Source: sd_listen_fds_with_names(3), and programs that set no names.
const NO_NAMES: [&str; 2] = ["", "unknown"];

/// Returns the first NBD export that listens at no handed-over socket.
fn without_socket(plan: &ServePlan) -> Option<usize> {
    let is_handed = |kind: &ExportKind| host::handed::all().iter().any(|s| kind.is_at(&s.at));
    plan.exports.iter().position(|e| matches!(e.kind, ExportKind::Nbd(_)) && !is_handed(&e.kind))
}

/// Returns warnings about handed-over sockets that are not used; sockets named in `ours` are not for exports.
pub fn unused_sockets(plan: &CheckedPlan, control: Option<&Path>, ours: &[&str]) -> Vec<String> {
    let serves = |at: &At| plan.exports().any(|e| e.plan.kind.is_at(at));
    let unused = host::handed::all().iter().filter(|s| {
        let is_control = ours.contains(&s.name.as_str()) || control.is_some_and(|c| host::handed::is_at(&s.at, c));
        !is_control && !serves(&s.at)
    });
    let rule = "no export uses it; give an export this name or this address";
    unused.map(|s| format!("socket '{}' at {} was handed over: {rule}", s.name, s.at)).collect()
}

/// Reads the text of a file; `what` and `remedy` are for messages.
fn read(path: &Path, what: &str, remedy: &str) -> Result<String, Failure> {
    let refused = |text: &str| Failure::new(format!("{what} '{}': {text}; {remedy}", path.display()));
    // A pipe may be named on purpose (process substitution), so the kind of file is not checked.
    let file = std::fs::File::open(path).map_err(|e| refused(&e.to_string()))?;
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| refused(&e.to_string()))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(refused(&format!("is larger than {TEXT_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| refused("is not text (UTF-8)"))
}
