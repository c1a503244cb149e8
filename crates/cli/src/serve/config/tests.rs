// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The example has every key and default, and every error is reported with its line.

use super::*;
use host::driver::multipath::MultipathOptions;
use host::serve::check::{CheckedPlan, HostFacts};
use host::serve::plan::STRIPE_CHUNK;

const EXAMPLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/serve.toml"));

fn defaults() -> Defaults {
    Defaults { num_queues: 2, socket_dir: None }
}

fn plan(text: &str) -> CheckedPlan {
    let config = read("c.toml", text, &defaults()).map_err(|e| format!("{e}\n{text}")).unwrap();
    config.plan.check(&HostFacts { cpus: vec![0, 1] }).unwrap()
}

/// Returns all errors of a configuration, in its syntax or in its plan.
fn said(text: &str) -> String {
    match read("c.toml", text, &defaults()) {
        Err(e) => e,
        Ok(config) => match config.plan.clone().check(&HostFacts { cpus: vec![0, 1] }) {
            Err(e) => config.locate(&e),
            Ok(_) => String::new(),
        },
    }
}

/// Returns the errors of a disk and an export; `more` are lines of the export, from line 6 on.
fn with(more: &str) -> String {
    said(&format!("[[disk]]\ntarget = \"null\"\nname = \"a\"\n[[export]]\ntype = \"vhost-user-blk\"\n{more}"))
}

#[test]
fn the_example_is_what_it_says() {
    let plan = plan(EXAMPLE);
    let exports: Vec<_> = plan.exports().collect();
    assert_eq!(
        exports.iter().map(|e| e.plan.name.as_str()).collect::<Vec<_>>(),
        ["data.vhost", "data.nbd", "scratch.nbd"]
    );
    assert_eq!(exports[0].iothreads, [0, 1, 1, 0]);
    assert_eq!(plan.iothreads()[0].cpus, [0]);
    assert_eq!(plan.nbd_servers()[0].exports, [1, 2], "one server");
    assert!(exports[2].read_only && !exports[1].read_only);
    let disk = &plan.disks()[0];
    let settings: Vec<_> = disk.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(settings, ["iosched.read_expire=250", "nr_requests=128", "scheduler=mq-deadline"]);
}

/// Commented-out lines of the example are keys with their defaults: uncommented, they give the same plan.
#[test]
fn the_example_knows_every_key_and_default() {
    fn keys(line: &str) -> Option<&str> {
        line.strip_prefix("# ").filter(|l| l.contains(" = ") && !l.contains("# e.g."))
    }
    let taken = |line: &&str| keys(line).is_some_and(|l| l.starts_with(|c: char| c.is_ascii_lowercase()));
    // Stop before the FUSE and ublk exports at the end, which are commented out as a whole.
    let end = EXAMPLE.find("# One file that is the disk").unwrap();
    let full: Vec<&str> = EXAMPLE[..end].lines().map(|l| if taken(&l) { keys(l).unwrap() } else { l }).collect();
    assert!(EXAMPLE[..end].lines().filter(taken).count() >= 14);
    let full = plan(&full.join("\n"));
    let short = plan(EXAMPLE);
    assert_eq!((full.iothreads(), full.disks()), (short.iothreads(), short.disks()));
    for (full, short) in full.exports().zip(short.exports()) {
        let mut full = full.plan.clone();
        if let ExportKind::VhostUserBlk(v) = &mut full.kind {
            // The default depends on the umask.
            assert_eq!(v.socket_mode.take(), Some(0o600));
        }
        assert_eq!(&full, short.plan);
    }
    let rest: String = EXAMPLE[end..]
        .lines()
        .filter_map(|l| l.strip_prefix("# "))
        .filter(|l| l.contains(" = ") || l.starts_with("[["))
        .map(|l| format!("{l}\n"))
        .collect();
    let rest = plan_of(&rest);
    assert_eq!(rest.exports().map(|e| e.plan.kind.name()).collect::<Vec<_>>(), ["fuse", "ublk"]);
    let wide = &rest.disks()[1];
    assert_eq!((wide.name.as_str(), wide.targets.len()), ("wide", 2));
    assert_eq!(wide.stripe.unwrap().chunk_bytes, STRIPE_CHUNK, "the default is the default");
    let TargetSpec::Multipath(both) = &rest.disks()[2].targets[0].spec else { panic!("a disk of two paths") };
    assert_eq!(both.paths.iter().map(|p| p.prio).collect::<Vec<_>>(), [50, 10]);
    let defaults = MultipathOptions::default();
    assert_eq!(both.options.longest_interval(), defaults.longest_interval());
    assert_eq!(MultipathOptions { max_polling_interval: None, ..both.options.clone() }, defaults);
}

fn plan_of(more: &str) -> CheckedPlan {
    plan(&format!("[[disk]]\nname = \"scratch\"\ntarget = \"null\"\n{more}"))
}

/// Returns the errors of a stripe; `more` are its lines from line 5 on.
fn striped(more: &str) -> String {
    said(&format!("[[export]]\ntype = \"nbd\"\n[[disk]]\nstack = \"stripe\"\n{more}"))
}

#[test]
fn a_stripe_is_a_disk_of_several_targets() {
    assert_eq!(striped("targets = [\"a.img\", \"ram:size=1m\"]"), "");
    let plan = plan(
        "[[export]]\ntype = \"nbd\"\n[[disk]]\nstack = \"stripe\"\ntargets = [\"a.img\", \"null\"]\nchunk = \"1m\"\n",
    );
    let disk = &plan.disks()[0];
    assert_eq!((disk.name.as_str(), disk.stripe.unwrap().chunk_bytes), ("stripe", 1 << 20));
    assert_eq!(disk.targets.iter().map(|t| t.text.as_str()).collect::<Vec<_>>(), ["a.img", "null"]);
    let two = "targets = [\"a.img\", \"b.img\"]\n";
    for (more, says) in [
        ("targets = [\"a.img\"]".to_owned(), "c.toml:5: targets: 1 given; a stripe must have 2..=256 (disk 'stripe')"),
        ("targets = \"a.img\"".to_owned(), "c.toml:5: targets=\"a.img\": must be a list of texts, such as targets = ["),
        ("targets = []".to_owned(), "c.toml:5: targets=[...]: must be a list of texts"),
        ("targets = [\"a.img\", 7]".to_owned(), "c.toml:5: targets=[...]: must be a list of texts"),
        ("targets = [\"a.img\", \"nul:\"]".to_owned(), "c.toml:5: target=nul:: there is no target 'nul:'"),
        ("targets = [\"a.img\", \"./a.img\"]".to_owned(), "c.toml:5: targets: './a.img' is listed twice;"),
        (
            "targets = [\"nbd://h/a\", \"nbd://h/a?timeout=9\"]".to_owned(),
            "c.toml:5: targets: 'nbd://h/a?timeout=9' is listed twice; each must be different",
        ),
        (format!("{two}chunk = \"48k\""), "c.toml:6: chunk=49152: must be a power of two, 512..=1073741824 bytes"),
        (format!("{two}chunk = \"2g\""), "c.toml:6: chunk=2147483648: must be a power of two"),
        (format!("{two}chunk = \"lots\""), "c.toml:6: chunk=lots: must be bytes, such as chunk = \"64k\""),
        (format!("{two}chunk = 65536"), "c.toml:6: chunk=65536: must be a text in quotation marks"),
        (format!("{two}chunks = \"4k\""), "c.toml:6: chunks: is no key of [[disk]]; did you mean 'chunk'?"),
        (format!("{two}target = \"c.img\""), "c.toml:6: target: a disk has a target, or targets"),
        (
            "chunk = \"1m\"\ntargets = [\"null\", \"ram:size=64k\"]".to_owned(),
            "c.toml:6: targets: 'ram:size=64k' has 65536 bytes: must be at least one chunk (1m); make it larger",
        ),
        (String::new(), "c.toml:3: stack = \"stripe\" has no targets; add targets"),
    ] {
        let e = striped(&more);
        assert!(e.starts_with(says) && !e.contains('\n'), "{more}: {e}");
    }
    let other = |line: &str| said(&format!("[[export]]\ntype = \"nbd\"\n[[disk]]\ntarget = \"null\"\n{line}\n"));
    assert_eq!(other("chunk = \"4k\""), "c.toml:5: chunk: has no effect without stack = \"stripe\" (disk 'null')");
    assert!(
        other("stack = \"strip\"")
            .starts_with("c.toml:5: stack=\"strip\": must be one of \"stripe\", \"multipath\"; did you mean")
    );
    let e = said("[[export]]\ntype = \"nbd\"\n[[disk]]\ntargets = [\"a\", \"b\"]\n");
    assert_eq!(e, "c.toml:4: targets: has no effect without stack = \"stripe\" (disk 'stripe')");
    // An image belongs to one disk, whether as its target or in a stripe.
    let e = said(&format!(
        "[[disk]]\nstack = \"stripe\"\n{two}[[disk]]\ntarget = \"./b.img\"\n[[export]]\ntype = \"nbd\"\ndisk = \"stripe\"\n"
    ));
    assert!(e.starts_with("c.toml:5: target=./b.img: disk 'stripe' has this image, too"), "{e}");
}

#[test]
fn little_is_needed() {
    let plan = plan(
        "[[disk]]\ntarget = \"/var/x/db.img\"\n[[export]]\ntype = \"nbd\"\n[[export]]\ntype = \"nbd\"\nlisten = \"[::1]:10809\"\n",
    );
    assert_eq!(plan.disks()[0].name, "db.img");
    let all: Vec<_> = plan.exports().map(|e| e.plan.clone()).collect();
    let ExportKind::Nbd(nbd) = &all[0].kind else { panic!("{all:?}") };
    assert_eq!((nbd.name.as_str(), nbd.listen.to_string()), ("db.img", "db.img.nbd.sock".to_owned()));
    assert_eq!(all[1].name, "db.img.nbd-2");
}

#[test]
fn sockets_go_where_the_flag_says() {
    let defaults = Defaults { num_queues: 1, socket_dir: Some("/run/x".into()) };
    let text = "[[disk]]\ntarget=\"null\"\n[[export]]\ntype=\"nbd\"\n[[export]]\ntype=\"nbd\"\nsocket=\"/abs\"\n[[export]]\ntype=\"nbd\"\nsocket=\"s\"\n";
    let config = read("c.toml", text, &defaults).map_err(|e| panic!("{e}")).ok().unwrap();
    let paths: Vec<_> = config.plan.exports.iter().map(|e| e.kind.unix_socket().unwrap().to_str().unwrap()).collect();
    assert_eq!(paths, ["/run/x/null.nbd.sock", "/abs", "/run/x/s"]);
}

#[test]
fn unknown_keys_have_a_line_and_the_nearest_name() {
    assert_eq!(
        with("num_queue = 4"),
        "c.toml:6: num_queue: is no key of an [[export]] of type \"vhost-user-blk\"; did you mean 'num_queues'? Keys: allow_file_memory, \
         disk, iothreads, logical_block_size, name, num_queues, physical_block_size, queue_size, read_only, socket, socket_mode, type (export \
         'a.vhost')"
    );
    assert!(
        with("logical_block_size = 3000").starts_with("c.toml:6: logical_block_size=3000: must be 512, 1024, 2048 or")
    );
    assert!(with("listen = \"x\"").starts_with("c.toml:6: listen: is no key of an [[export]] of type"));
    let e = said("[[disks]]\ntarget = \"null\"\n");
    assert_eq!(
        e,
        "c.toml:1: disks: is no part of a configuration; did you mean 'disk'? Parts: [[iothread]], [[disk]], [[export]]"
    );
    let e = said("[[disk]]\ntarget = \"null\"\n\n[disk.queue]\nnr_hw_queue = 1\n[[export]]\ntype = \"nbd\"\n");
    assert!(e.starts_with("c.toml:5: nr_hw_queue: no such setting; did you mean 'nr_hw_queues'?"), "{e}");
    let queue = |more: &str| {
        said(&format!(
            "[[export]]\ntype = \"nbd\"\n[[disk]]\ntarget = \"null\"\n[disk.queue]\nscheduler = \"kyber\"\n{more}"
        ))
    };
    let e = queue("iosched.read_expir = 1\n");
    assert!(e.starts_with("c.toml:7: ") && e.contains("read_expir"), "{e}");
    let e = queue("[disk.queue.iosched]\n\nread_lat_nsec = 1.5\n");
    assert_eq!(e, "c.toml:9: iosched.read_lat_nsec=1.5: must be a number, a text, true or false (disk 'null')");
    assert!(queue("iosched = 1\n").starts_with("c.toml:7: iosched: no such setting"));
    let e = said("[[iothread]]\nname = \"a\"\npoll_max = 1\n");
    assert!(e.starts_with("c.toml:3: poll_max: is no key of [[iothread]]; did you mean 'poll_max_ns'?"), "{e}");
}

#[test]
fn wrong_types_and_ranges_say_the_right_ones() {
    for (line, says) in [
        ("num_queues = 0", "num_queues=0: must be a whole number, 1..=256 (export 'a.vhost')"),
        ("num_queues = -1", "num_queues=-1: must be a whole number, 1..=256 (export 'a.vhost')"),
        ("num_queues = \"4\"", "num_queues=\"4\": must be a whole number, 1..=256 (export 'a.vhost')"),
        ("num_queues = 1.5", "num_queues=1.5: must be a whole number, 1..=256 (export 'a.vhost')"),
        (
            "num_queues = 99999999999999999999999",
            "num_queues=99999999999999999999999: must be a whole number, 1..=256 (export 'a.vhost')",
        ),
        ("queue_size = 100", "queue_size=100: must be a power of two in 2..=1024 (export 'a.vhost')"),
        ("read_only = 1", "read_only=1: must be true or false (export 'a.vhost')"),
        (
            "socket_mode = 660",
            "socket_mode=660: must be octal, \"0000\"..=\"0777\", such as \"0660\" (export 'a.vhost')",
        ),
        (
            "socket_mode = \"0999\"",
            "socket_mode=\"0999\": must be octal, \"0000\"..=\"0777\", such as \"0660\" (export 'a.vhost')",
        ),
        (
            "disk = \"b\"",
            "disk=b: there is no such disk; did you mean 'a'? add a [[disk]] of that name (export 'b.vhost')",
        ),
    ] {
        let said = with(line);
        // `disk =` changes the default name, but the error still has the line of the key.
        assert_eq!(said, format!("c.toml:6: {says}"));
    }
    let e = "c.toml:6: name=7: must be a text in quotation marks, such as name = \"data.vhost\"";
    assert_eq!(with("name = 7"), e, "the export is not known");
    assert_eq!(with("socket_mode = \"0660\""), "");
    assert_eq!(with("socket_mode = 0o660"), "");
    let e = said("[[disk]]\ntarget = \"null\"\nwrite_cache = \"write trough\"\n[[export]]\ntype = \"nbd\"\n");
    assert_eq!(
        e,
        "c.toml:3: write_cache=\"write trough\": must be one of \"write back\", \"write through\"; did you mean 'write \
         through'? (disk 'null')"
    );
    let e = said("[[disk]]\ntarget = \"nul:size=1g\"\n[[export]]\ntype = \"nbds\"\n");
    assert!(e.contains("c.toml:2: target=nul:size=1g: there is no target 'nul:'; did you mean 'null:'?"), "{e}");
    assert!(e.contains("\nc.toml:4: type=\"nbds\": must be one of \"vhost-user-blk\", \"nbd\", \"fuse\", \"ublk\"; did you mean 'nbd'?"), "{e}");
}

#[test]
fn mappings_have_one_of_two_forms_and_follow_the_rules() {
    let base = |mapping: &str| {
        said(&format!(
            "[[iothread]]\nname = \"x\"\n[[iothread]]\nname = \"y\"\n[[disk]]\ntarget = \"null\"\n[[export]]\n\
             type = \"vhost-user-blk\"\nnum_queues = 2\niothreads = {mapping}\n"
        ))
    };
    for good in ["[\"y\"]", "[\"x\", \"y\"]", "[{ iothread = \"x\", vqs = [0, 1] }]", "[{ iothread = \"y\" }]"] {
        assert_eq!(base(good), "", "{good}");
    }
    for bad in [
        "\"x\"",
        "[]",
        "[1]",
        "[{ iothread = \"x\", vq = [0] }]",
        "[{ vqs = [0] }]",
        "[{ iothread = \"x\", vqs = [70000] }]",
    ] {
        let e = base(bad);
        assert!(e.starts_with("c.toml:10: iothreads=") && e.contains("must be [\"io0\", \"io1\"] or"), "{bad}: {e}");
    }
    assert_eq!(
        base("[{ iothread = \"x\", vqs = [0] }, { iothread = \"y\", vqs = [0] }]"),
        "c.toml:10: iothreads: virtqueue 0 is assigned twice, the second time to IOThread 'y': list each once (export 'null.vhost')"
    );
    assert!(base("[\"x\", \"z\"]").contains("c.toml:10: iothreads: there is no IOThread 'z'; did you mean 'x'?"));
}

#[test]
fn cpus_are_lists() {
    let of = |cpus: &str| {
        said(&format!(
            "[[iothread]]\nname = \"x\"\ncpus = {cpus}\n[[disk]]\ntarget = \"null\"\n[[export]]\ntype = \"nbd\"\n"
        ))
    };
    for good in ["\"0-1\"", "1", "[0, 1]"] {
        assert_eq!(of(good), "", "{good}");
    }
    assert_eq!(of("\"0-3\""), "c.toml:3: cpus=0-3: this daemon may not use CPU 2-3; it may use 0-1 (IOThread 'x')");
    assert!(of("\"1-\"").starts_with("c.toml:3: cpus='1-': is no list of CPUs"));
    assert!(of("true").starts_with("c.toml:3: cpus=true: must be a list of CPUs"));
}

#[test]
fn tls_needs_its_files_and_they_need_tls() {
    let of = |more: &str| said(&format!("[[disk]]\ntarget = \"null\"\n[[export]]\ntype = \"nbd\"\n{more}"));
    assert_eq!(of("tls = \"require\"\ntls_cert = \"c\"\ntls_key = \"k\"\n"), "");
    assert_eq!(
        of("tls = \"on\"\ntls_cert = \"c\"\n"),
        "c.toml:5: tls: needs tls_key = \"FILE\" (PEM), too; or tls_certificates = \"DIR\" (export 'null.nbd')"
    );
    assert!(of("tls_cert = \"c\"\n").starts_with("c.toml:5: tls_cert: has no effect without TLS"));
    assert_eq!(of("tls = \"on\"\ntls_certificates = \"d\"\ntls_verify_peer = true\n"), "");
    assert!(of("tls_verify_peer = true\n").starts_with("c.toml:5: tls_verify_peer: has no effect without TLS"));
    assert!(
        of("tls = \"on\"\ntls_certificates = \"d\"\ntls_key = \"k\"\n")
            .starts_with("c.toml:7: tls_key: comes from tls_cert")
    );
    let files = "tls = \"on\"\ntls_cert = \"c\"\ntls_key = \"k\"\n";
    assert!(of(&format!("{files}tls_verify_peer = true\n")).starts_with("c.toml:8: tls_verify_peer: goes with"));
    assert!(of(&format!("{files}tls_client_crl = \"l\"\n")).starts_with("c.toml:8: tls_client_crl: has no effect"));
    let verified = "tls = \"require\"\ntls_certificates = \"d\"\ntls_verify_peer = true\n";
    assert_eq!(of(&format!("{verified}tls_client_names = [\"vm1.example\", \"10.0.0.1\"]\n")), "");
    assert!(
        of(&format!("{verified}tls_client_names = [\"vm1\", \"a b\"]\n"))
            .starts_with("c.toml:8: tls_client_names: 'a b': must be a DNS name or an IP address")
    );
    let names = "tls_client_names = [\"vm1.example\"]\n";
    for (before, line) in [
        (String::new(), 5),
        (verified.replace("require", "on"), 8),
        (verified.replace("true", "false"), 8),
        (files.replace("on", "require"), 8),
    ] {
        let why = of(&format!("{before}{names}"));
        assert!(why.starts_with(&format!("c.toml:{line}: tls_client_names: needs tls = \"require\"")), "{why}");
    }
    assert!(of("listen = \"localhost\"\n").starts_with("c.toml:5: listen=localhost: must be an address and a port"));
    assert!(of("listen = \"[::]:1\"\nsocket = \"s\"\n").contains("c.toml:6: socket: an export has a socket or listen"));
}

#[test]
fn all_mistakes_are_told_at_once_in_the_files_order() {
    let e = said("[[disk]]\ntarget = 1\nserial = true\n[[export]]\ntype = \"fuse\"\nbogus = 1\n[[disk]]\n");
    let lines: Vec<&str> = e.lines().map(|l| l.split_inclusive(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["2:", "3:", "4:", "4:", "6:", "7:"], "{e}");
}

#[test]
fn what_is_no_toml_is_said_so_with_its_line() {
    assert!(said("a = 1\nb = = 2\n").starts_with("c.toml:2: is not TOML here: "));
    assert!(said("[[disk]]\nname = \"a\"\nname = \"b\"\n").starts_with("c.toml:3: is not TOML here: duplicate key"));
    assert_eq!(said(""), "c.toml: no disk is configured; add a [[disk]]");
    assert!(said("disk = 1\n").starts_with("c.toml:1: disk: must be written [[disk]]"));
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(said(&deep).starts_with("c.toml:1: is not TOML here"), "no overflow of the stack");
    let bad = said("\"\\u001b[31m\" = 1\n[[disk]]\ntarget = \"null\"\nname = \"\\u001b\"\n");
    assert!(!bad.contains('\u{1b}'), "{bad:?}");
}

/// A file that is truncated anywhere, or lacks a line, is accepted or rejected; it never causes a panic.
fn pieces_never_panic(step: usize) {
    let cuts = (0..EXAMPLE.len()).step_by(step).map(|at| EXAMPLE[..at].to_owned());
    let lines: Vec<&str> = EXAMPLE.lines().collect();
    let without = (0..lines.len()).map(|out| [&lines[..out], &lines[out + 1..]].concat().join("\n"));
    let uncommented = EXAMPLE.replace("\n# ", "\n");
    let more = (0..uncommented.len()).step_by(7 * step).map(|at| uncommented[at..].to_owned());
    for text in cuts.chain(without).chain(more) {
        let refused = said(&text);
        assert!(refused.lines().all(|line| line.starts_with("c.toml:")), "{refused}\n{text}");
    }
}

#[test]
fn pieces_of_the_example_never_panic() {
    pieces_never_panic(11);
}

mod deep {
    /// Cut at each byte.
    #[test]
    fn pieces_of_the_example_never_panic() {
        super::pieces_never_panic(1);
    }
}

/// Every export type is documented in the example, in the help, in the README and in the guide.
#[test]
fn every_export_type_is_in_example_help_and_readme() {
    const README: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve.md"));
    let command = <crate::Cli as clap::CommandFactory>::command();
    let help = command.find_subcommand("serve").unwrap().get_about().unwrap().to_string().to_lowercase();
    for word in EXPORT_TYPES {
        assert!(EXAMPLE.contains(&format!("type = \"{word}\"")), "examples/serve.toml has no export of type {word}");
        assert!(help.contains(word), "mqblk serve --help does not name {word}: {help}");
        assert!(README.to_lowercase().contains(word), "README.md does not name {word}");
        assert!(GUIDE.to_lowercase().contains(word), "docs/serve.md does not name {word}");
    }
}
