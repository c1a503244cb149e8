// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the option table with fio itself: every name, alias and default that `fio` prints is known here.
//!
//! fio 3.33 is needed (Debian package `fio`). The tests fail without it, because fio's own lists cannot be copied.

use std::collections::BTreeSet;
use std::process::Command;

use workload::job::{Job, JobFile, OptionInfo, ParseContext, Support, find_option, nearest_option, options};

fn fio(arguments: &[&str]) -> String {
    let output = Command::new("fio").args(arguments).output();
    let output = output.expect("fio 3.33 is needed to compare with: apt-get install fio");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Names before ` : ` of an option list.
fn names(list: &str) -> Vec<String> {
    let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
    list.lines().filter_map(name).filter(|n| !n.is_empty() && !n.contains(' ')).collect()
}

#[test]
fn the_program_is_the_release_the_table_was_made_from() {
    assert_eq!(fio(&["--version"]).trim(), "fio-3.33", "review the table against this release, then change this line");
}

#[test]
fn every_option_of_fio_is_in_the_table() {
    let known = names(&fio(&["--cmdhelp=all"]));
    assert!(known.len() > 200, "fio lists its options");
    let missing: Vec<_> = known.iter().filter(|n| find_option(n).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_engine_option_of_fio_is_in_the_table() {
    let engines = fio(&["--enghelp"]);
    let mut missing = BTreeSet::new();
    let mut seen = 0;
    for engine in engines.lines().skip(1).map(str::trim).filter(|l| !l.is_empty()) {
        for name in names(&fio(&[&format!("--enghelp={engine}")])) {
            seen += 1;
            if find_option(&name).is_none() {
                missing.insert(format!("{engine}: {name}"));
            }
        }
    }
    assert!(seen > 40, "fio lists the options of its engines");
    assert!(missing.is_empty(), "{missing:?}");
}

/// A field of `fio --cmdhelp=NAME`.
fn field(help: &str, name: &str) -> Option<String> {
    let line = help.lines().find(|l| l.trim_start().starts_with(name))?;
    line.split_once(':').map(|(_, v)| v.trim().to_owned())
}

#[test]
fn aliases_and_defaults_are_fios() {
    let known: BTreeSet<String> = names(&fio(&["--cmdhelp=all"])).into_iter().collect();
    let mut wrong = Vec::new();
    // Each option needs one start of fio, so only options with something to compare are checked.
    let relevant = |o: &&OptionInfo| o.support == Support::Supported || !o.aliases.is_empty();
    for option in options().filter(|o| known.contains(o.name)).filter(relevant) {
        let help = fio(&[&format!("--cmdhelp={}", option.name)]);
        let alias = field(&help, "alias:");
        if !alias.iter().all(|a| option.aliases.contains(&a.as_str())) {
            wrong.push(format!("{}: fio's alias is {alias:?}", option.name));
        }
        let default = field(&help, "default:").filter(|d| d != "no default");
        // fio prints another seed than it uses. The value that it uses is in its manual page.
        let same = option.name == "randseed" || default.as_deref().is_none_or(|d| d == option.default);
        if option.support == Support::Supported && !same {
            wrong.push(format!("{}: fio's default is {default:?}, ours '{}'", option.name, option.default));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn parse(line: &str) -> Job {
    let text = format!("[a]\n{line}\n");
    let file = JobFile::parse_str(&text, &ParseContext::bare("t.fio"), &[]);
    file.unwrap_or_else(|e| panic!("{e}")).jobs.remove(0)
}

/// The default in the table is the value of a job without the option.
#[test]
fn typing_a_default_changes_nothing() {
    let plain = parse("");
    for option in options().filter(|o| !o.default.is_empty() && !matches!(o.support, Support::Refused(_))) {
        let typed = parse(&format!("{}={}", option.name, option.default));
        assert_eq!(Job { options: Vec::new(), ..typed }, plain, "{}", option.name);
    }
    let fresh = Job { name: "a".to_owned(), line: 1, ..Job::new("a") };
    assert_eq!(plain, fresh, "Job::new has fio's defaults");
}

/// The default of a rejected option must be accepted, because users write defaults explicitly.
#[test]
fn defaults_and_off_values_are_never_refused() {
    let plain = parse("");
    let context = ParseContext::bare("t.fio");
    for option in options() {
        let typed = option.off.iter().copied().chain((!option.default.is_empty()).then_some(option.default));
        for value in typed {
            let text = format!("[a]\n{}={value}\n", option.name);
            let file = JobFile::parse_str(&text, &context, &[]).unwrap_or_else(|e| panic!("{e}"));
            let typed = Job { options: Vec::new(), ..file.jobs[0].clone() };
            assert_eq!(typed, plain, "{text}");
            assert!(file.warnings.is_empty(), "{:?}", file.warnings);
        }
    }
}

#[test]
fn rows_are_complete_and_unique() {
    let mut seen = BTreeSet::new();
    for OptionInfo { name, aliases, help, support, .. } in options() {
        for n in std::iter::once(name).chain(aliases.iter()) {
            assert!(seen.insert(*n), "{n} twice");
            assert_eq!(nearest_option(n), Some(*n), "a known name is nearest to itself");
        }
        assert!(!help.is_empty() && !help.ends_with('.'), "{name}: help is one phrase");
        if let Support::Ignored(advice) | Support::Refused(advice) = support {
            assert!(advice.len() > 10, "{name}: say what to do");
        }
    }
    assert!(options().all(|o| !o.syntax().is_empty()));
}

/// Point 6 of the product's definition: these options work as in fio.
#[test]
fn promised_options_are_supported() {
    let promised = "name filename directory size filesize offset rw rwmixread bs bsrange bssplit blockalign iodepth \
        iodepth_low iodepth_batch_submit iodepth_batch_complete_min iodepth_batch_complete_max numjobs runtime time_based \
        ramp_time loops number_ios direct buffered sync fsync fdatasync end_fsync overwrite rate rate_iops rate_process \
        thinktime thinktime_blocks random_distribution percentage_random norandommap randseed randrepeat allrandrepeat verify do_verify \
        verify_fatal verify_backlog buffer_pattern zero_buffers refill_buffers group_reporting new_group stonewall \
        startdelay wait_for cpus_allowed prio prioclass hipri ioengine clat_percentiles percentile_list";
    for name in promised.split_whitespace() {
        let option = find_option(name).unwrap_or_else(|| panic!("{name} is unknown"));
        assert_eq!(option.support, Support::Supported, "{name}");
    }
    assert_eq!(find_option("thread").map(|o| o.support), Some(Support::Accepted));
}
