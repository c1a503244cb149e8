// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files as administrators write them, files with mistakes, and any bytes.

use super::*;
use crate::driver::multipath::{
    Failback, HardwareHandler, MultipathOptions, NoPathRetry, PathChecker, PathGroupingPolicy, Prioritizer,
};
use blk::multipath::Selector;
use blk::time::Duration;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const FILE: &str = "\
# a file with everything
defaults {
\tuser_friendly_names yes
\tpolling_interval 10
\tpath_selector \"queue-length 0\" ! as the manual has it
\tno_path_retry fail
\tfind_multipaths yes
}
blacklist {
\tdevnode \"!^(sd[a-z]|dasd[a-z])\"
\twwid \".*\"
\tprotocol \"scsi:ata\"
\tdevice {
\t\tvendor \"IBM\"
\t\tproduct \"S/390.*\"
\t}
}
blacklist_exceptions {
\tproperty \"(SCSI_IDENT_|ID_WWN)\"
}
devices {
\tdevice {
\t\tvendor \"^LIO-ORG$\"
\t\tproduct \".*\"
\t\tpath_grouping_policy multibus
\t\tno_path_retry 12
\t\trr_min_io_rq 1
\t}
\tdevice {
\t\tvendor LIO
\t\tproduct \"^disk[0-9]{2}$\"
\t\trevision \"^4\\.\"
\t\tpath_grouping_policy group_by_prio
\t\tpath_checker directio
\t\thardware_handler \"1 alua\"
\t\tfailback 30
\t}
}
overrides {
\tfast_io_fail_tmo 7
\tprotocol {
\t\ttype \"scsi:iscsi\"
\t\tfast_io_fail_tmo off
\t}
}
multipaths {
\tmultipath {
\t\twwid 360000000000000000e00000000010001
\t\talias redo
\t\tpath_selector \"round-robin 0\"
\t}
\tmultipath {
\t\twwid 360000000000000000e00000000010001
\t\tno_path_retry queue
\t\tfailback immediate
\t}
}
";

fn parse(text: &str) -> Config {
    Config::parse("multipath.conf", text).unwrap_or_else(|e| panic!("{e}"))
}

fn problems(text: &str) -> Vec<String> {
    let e = Config::parse("m.conf", text).expect_err(text);
    e.problems.iter().map(Problem::to_string).collect()
}

fn disk(wwid: &str, vendor: &str, product: &str, revision: &str) -> Identity {
    let [wwid, vendor, product, revision] = [wwid, vendor, product, revision].map(str::to_owned);
    Identity { wwid, vendor, product, revision, protocol: String::new() }
}

#[test]
fn what_holds_for_a_disk_is_said_with_its_line() {
    let config = parse(FILE);
    let holds = |disk: &Identity, name: &str| {
        let found = config.resolve(disk).get(name).cloned().unwrap_or_else(|| panic!("{name} has no value"));
        (found.value, found.origin, found.line)
    };
    let is = |value: &str, origin, line| (value.to_owned(), origin, line);
    // A disk that no `device` or `multipath` section matches.
    let other = disk("1", "IBM", "2107900", "1");
    assert_eq!(holds(&other, "polling_interval"), is("10", Origin::Defaults, Some(4)));
    assert_eq!(holds(&other, "path_selector"), is("queue-length 0", Origin::Defaults, Some(5)));
    assert_eq!(holds(&other, "path_grouping_policy"), is("group_by_prio", Origin::Hardware, None));
    assert_eq!(holds(&other, "fast_io_fail_tmo"), is("7", Origin::Overrides, Some(40)));
    // Both `device` sections match: for each option the last one wins.
    let both = disk("1", "LIO-ORG", "disk17", "4.0");
    assert_eq!(holds(&both, "path_grouping_policy"), is("group_by_prio", Origin::Device, Some(33)));
    assert_eq!(holds(&both, "no_path_retry"), is("12", Origin::Device, Some(26)));
    let first = disk("1", "LIO-ORG", "disk17", "5.0");
    assert_eq!(holds(&first, "path_grouping_policy"), is("multibus", Origin::Device, Some(25)));
    assert_eq!(holds(&first, "failback"), is("immediate", Origin::Hardware, None));
    assert_eq!(holds(&other, "checker_timeout"), is("15", Origin::BuiltIn, None));
    // A `multipath` section takes precedence over all others; of several, the last.
    let named = disk("360000000000000000e00000000010001", "LIO-ORG", "disk17", "4.0");
    assert_eq!(holds(&named, "path_selector"), is("round-robin 0", Origin::Multipath, Some(50)));
    assert_eq!(holds(&named, "failback"), is("immediate", Origin::Multipath, Some(55)));
    assert_eq!(holds(&named, "path_checker"), is("directio", Origin::Device, Some(34)));
    assert_eq!(config.resolve(&named).alias(), Some("redo"));
    // A `protocol` section takes precedence over the rest of `overrides`.
    let iscsi = Identity { protocol: "scsi:iscsi".into(), ..both };
    assert_eq!(holds(&iscsi, "fast_io_fail_tmo"), is("off", Origin::Protocol, Some(43)));
    assert_eq!(
        config.resolve(&Identity { protocol: "scsi:iscsi".into(), ..named }).options(),
        MultipathOptions {
            path_selector: Selector::RoundRobin,
            path_grouping_policy: PathGroupingPolicy::GroupByPrio,
            failback: Failback::Immediate,
            no_path_retry: NoPathRetry::Queue,
            path_checker: PathChecker::Directio,
            polling_interval: Duration::from_secs(10),
            max_polling_interval: None,
            checker_timeout: Duration::from_secs(15),
            fast_io_fail_tmo: None,
            // From the hardware table.
            prio: Prioritizer::Alua,
            hardware_handler: HardwareHandler::Alua,
            ..MultipathOptions::default()
        }
    );
}

#[test]
fn alua_is_taken_with_its_arguments() {
    let text = "defaults {\nprio alua\nprio_args exclusive_pref_bit\nfeatures \"4 pg_init_retries 50 pg_init_delay_msecs 10\"\n}\n\
                devices {\ndevice {\nvendor A\nproduct .*\nhardware_handler \"1 alua\"\n}\n}";
    let disk = disk("1", "A", "B", "1");
    assert_eq!(
        parse(text).resolve(&disk).options(),
        MultipathOptions {
            prio: Prioritizer::Alua,
            exclusive_pref_bit: true,
            hardware_handler: HardwareHandler::Alua,
            pg_init_retries: 50,
            pg_init_delay: Some(Duration::from_ms(10)),
            ..MultipathOptions::default()
        }
    );
    let options = parse("defaults {\nprio emc\n}").resolve(&disk).options();
    assert_eq!(options, MultipathOptions::default(), "one that is not here leaves priorities to the paths");
}

/// Regression: an argument of another section was taken, as if the option had a meaning of its own.
#[test]
fn prio_args_belong_to_the_prio_of_the_same_place() {
    let disk = disk("1", "IBM", "2145", "");
    let is_exclusive = |text: &str| parse(text).resolve(&disk).options().exclusive_pref_bit;
    let args = "prio_args exclusive_pref_bit\n";
    let device = |options: &str| format!("devices {{\ndevice {{\nvendor IBM\nproduct 2145\n{options}}}\n}}\n");
    assert!(is_exclusive(&device(&format!("prio alua\n{args}"))));
    assert!(is_exclusive(&device(args)), "the hardware table has prio alua for it");
    assert!(is_exclusive(&format!("overrides {{\nprio alua\n{args}}}")));
    assert!(!is_exclusive(&format!("overrides {{\n{args}}}\n{}", device("prio alua\n"))));
    assert!(!is_exclusive(&format!("defaults {{\nprio alua\n{args}}}")), "the prio is that of the hardware table");
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(parse("").resolve(&Identity::default()).options(), MultipathOptions::default());
    assert_eq!(parse("\r\n  # x\n!\n").defaults, []);
}

#[test]
fn queue_if_no_path_is_no_path_retry_queue_unless_that_is_given() {
    let retry = |text: &str| parse(text).resolve(&Identity::default()).options().no_path_retry;
    let features = "features \"1 queue_if_no_path\"\n";
    assert_eq!(retry(&format!("defaults {{\n{features}}}")), NoPathRetry::Queue);
    assert_eq!(retry(&format!("defaults {{\n{features}no_path_retry 3\n}}")), NoPathRetry::Retries(3));
    assert_eq!(retry(&format!("defaults {{\nno_path_retry fail\n}}\noverrides {{\n{features}}}")), NoPathRetry::Fail);
    assert_eq!(retry("defaults {\nfeatures \"2 pg_init_retries 50\"\n}"), NoPathRetry::Fail);
}

/// Lines of `defaults`, an option, its value in effect, and the warning.
const ODD_VALUES: &[(&str, &str, &str, &str)] = &[
    (
        "polling_interval 10\nmax_polling_interval 4",
        "polling_interval",
        "4",
        "m.conf:2: polling_interval 10: is above max_polling_interval (line 3), so 4 is used, as in multipath-tools",
    ),
    (
        "max_polling_interval 4\npolling_interval 10",
        "polling_interval",
        "4",
        "m.conf:3: polling_interval 10: is above max_polling_interval (line 2), so 4 is used, as in multipath-tools",
    ),
    ("polling_interval 4\nmax_polling_interval 4", "polling_interval", "4", ""),
    ("polling_interval 10\nmax_polling_interval 60", "polling_interval", "10", ""),
    ("max_polling_interval 9", "polling_interval", "2", ""),
    ("max_polling_interval 3", "polling_interval", "1", ""),
    (
        "failback 0",
        "failback",
        "manual",
        "m.conf:2: failback '0': sets nothing, as in multipath-tools; write immediate to switch at once",
    ),
    (
        "failback immediate\nfailback 00",
        "failback",
        "manual",
        "m.conf:3: failback '0': sets nothing, as in multipath-tools; write immediate to switch at once",
    ),
    ("failback 0\nfailback 30", "failback", "30", "m.conf:2: failback '0': sets nothing"),
    (
        "path_selector round-robin",
        "path_selector",
        "round-robin 0",
        "m.conf:2: path_selector 'round-robin 0': is used; without the number of arguments, multipath-tools makes no map",
    ),
    ("path_selector \"queue-length 0\"", "path_selector", "queue-length 0", ""),
];

#[test]
fn odd_values_are_read_as_multipath_reads_them() {
    for (lines, option, value, warning) in ODD_VALUES.iter().copied() {
        let config = Config::parse("m.conf", &format!("defaults {{\n{lines}\n}}")).expect(lines);
        let found = config.resolve(&Identity::default()).get(option).map(|f| f.value.clone());
        assert_eq!(found.as_deref(), Some(value), "{lines}");
        let told = config.warnings.first().map(Problem::to_string).unwrap_or_default();
        assert!(told.starts_with(warning) && told.is_empty() == warning.is_empty(), "{lines}\n{told}");
    }
    // A failback that is not set leaves the value of another section.
    let text = "defaults {\nfailback 30\n}\noverrides {\nfailback 0\n}";
    let found = parse(text).resolve(&Identity::default()).options().failback;
    assert_eq!(found, Failback::After(Duration::from_secs(30)));
}

/// One of each kind of mistake, and its message: file, line, word, rule, remedy.
const MISTAKES: &[(&str, &str)] = &[
    (
        "defaults {\n\tpath_selecter \"round-robin 0\"\n}",
        "m.conf:2: 'path_selecter' is no option of 'defaults': did you mean 'path_selector'?",
    ),
    (
        "defaults {\npath_selector service-time 0\n}",
        "m.conf:2: path_selector: unexpected '0' after the value; put a value of several words in quotes",
    ),
    ("defaults {\npath_selector \"fastest 0\"\n}", "m.conf:2: path_selector 'fastest 0': must be round-robin"),
    ("defaults {\npolling_interval 0\n}", "m.conf:2: polling_interval '0': must be a number, 1..=86400"),
    (
        "defaults {\npath_grouping_policy mutlibus\n}",
        "m.conf:2: path_grouping_policy 'mutlibus': did you mean 'multibus'? must be one of failover",
    ),
    ("defaults {\nno_path_retry -3\n}", "m.conf:2: no_path_retry '-3': must be fail, queue or"),
    ("defaults {\nfailback later\n}", "m.conf:2: failback 'later': must be manual, immediate"),
    ("defaults {\nuser_friendly_names maybe\n}", "m.conf:2: user_friendly_names 'maybe': must be yes or no"),
    ("defaults {\nfast_io_fail_tmo never\n}", "m.conf:2: fast_io_fail_tmo 'never': must be seconds, 0..=86400, or off"),
    (
        "defaults {\nfeatures \"2 queue_if_no_path\"\n}",
        "m.conf:2: features '2 queue_if_no_path': must be a count and that many words",
    ),
    (
        "defaults {\nfeatures \"2 queue_mode bio\"\n}",
        "m.conf:2: features '2 queue_mode bio': 'bio': queue_mode: must be mq",
    ),
    (
        "defaults {\nfeatures \"2 pg_init_retries 51\"\n}",
        "m.conf:2: features '2 pg_init_retries 51': '51': pg_init_retries: must be a number, 1..=50",
    ),
    ("defaults {\nprio\n}", "m.conf:2: 'prio' has no value: put one behind it"),
    ("defaults {\nprio \"alua\n}", "m.conf:2: '\"alua' has no closing quote"),
    (
        "defaults {\nalias x\n}",
        "m.conf:2: 'alias' is no option of 'defaults': it belongs in a 'multipath' of 'multipaths'",
    ),
    ("polling_interval 5", "m.conf:1: 'polling_interval' is outside of any section: it belongs in 'defaults'"),
    (
        "default {\nprio alua\n}",
        "m.conf:1: 'default' is no section of the file: did you mean 'defaults'? must be defaults, blacklist",
    ),
    ("device {\nvendor x\n}", "m.conf:1: 'device' is no section of the file: belongs into 'devices'"),
    ("devices {\nvendor x\n}", "m.conf:2: 'vendor' is directly in 'devices': put it into a 'device {' section of it"),
    ("defaults\n{\n}", "m.conf:1: 'defaults' is a section: put a '{' behind its name, on the same line"),
    ("defaults {", "m.conf:1: 'defaults' begins here and is not closed"),
    ("}", "m.conf:1: '}' closes nothing"),
    ("defaults {\n} x", "m.conf:2: 'x' follows '}'"),
    ("devices {\ndevice { vendor x }\n}", "m.conf:2: 'vendor' follows '{': put it on a line of its own"),
    ("devices {\n\n device {\nvendor x\n}\n}", "m.conf:3: a 'device' of 'devices' has no 'product'"),
    (
        "devices {\ndevice {\nvendor \"*\"\nproduct x\n}\n}",
        "m.conf:3: vendor '*': has nothing before '*', '+', '?' or '{' to repeat; '.*' stands for anything",
    ),
    ("multipaths {\nmultipath {\nalias x\n}\n}", "m.conf:2: a 'multipath' of 'multipaths' has no 'wwid'"),
    (
        "multipaths {\nmultipath {\nwwid x\npath_checker tur\n}\n}",
        "m.conf:4: 'path_checker' is no option of a 'multipath' of 'multipaths': it belongs in 'defaults'",
    ),
    ("blacklist {\nwwwid x\n}", "m.conf:2: 'wwwid' is no option of 'blacklist': did you mean 'wwid'?"),
    ("blacklist {\ndevnode \"!^sd[\"\n}", "m.conf:2: devnode '!^sd[': has a '[' without its ']'"),
    ("blacklist {\ndevice {\nwwid x\n}\n}", "m.conf:3: 'wwid' is no option of a 'device' of a blacklist"),
    ("overrides {\nprotocol {\nfast_io_fail_tmo 3\n}\n}", "m.conf:2: a 'protocol' of 'overrides' has no 'type'"),
    ("\"defaults\" {\n}", "m.conf:1: 'defaults' at the beginning of a line is in quotes"),
    ("defaults {\nprio {\n}\n}", "m.conf:2: 'prio' is no section of 'defaults': only options are allowed here"),
    ("defaults {\nprio \u{1b}[31m\n}", "m.conf:2: prio '\\u{1b}[31m': must be one of"),
];

#[test]
fn mistakes_are_told_with_their_line() {
    for (text, said) in MISTAKES.iter().copied() {
        let told = problems(text);
        assert!(told[0].starts_with(said), "{text:?}\nexpected: {said}\ntold: {told:#?}");
    }
    // Once each, in order, and not for ever.
    let many = problems("defaults {\nprioo 1\n}\nfoo {\ny 1\nz {\n}\n}\ndefaults {\nprio 5 5\nfailback x\n");
    let lines: Vec<_> = many.iter().map(|p| p.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["2", "4", "9", "10", "11"], "{many:#?}");
    let e = Config::parse("m.conf", &"x y\n".repeat(1000)).unwrap_err();
    assert_eq!((e.problems.len(), e.more), (MOST_PROBLEMS, 1000 - MOST_PROBLEMS));
    assert!(e.to_string().ends_with("\nand 950 more"));
}

#[test]
fn what_has_no_effect_is_a_warning_with_its_line() {
    let warnings: Vec<_> = parse(FILE).warnings.iter().map(Problem::to_string).collect();
    assert_eq!(
        warnings,
        [
            "multipath.conf:7: find_multipaths: has no effect here: paths are configured, not discovered",
            "multipath.conf:10: devnode: has no effect here: paths have no kernel names and no udev properties",
            "multipath.conf:19: property: has no effect here: paths have no kernel names and no udev properties",
        ]
    );
    let one = |text: &str| parse(text).warnings.first().map(|p| p.text.clone()).unwrap_or_default();
    assert_eq!(
        one("defaults {\nprio const\nprio none\n}"),
        "prio: is also in line 2 of the same section: this one is used"
    );
    assert_eq!(
        one("defaults {\nprio emc\n}"),
        "prio 'emc': path priorities are set as prio=50+10; without it, all are 1"
    );
    assert_eq!(one("defaults {\nprio alua\nprio_args exclusive_pref_bit\n}"), "");
    assert!(one("defaults {\nprio sysfs\n}").starts_with("prio 'sysfs': alua is used"));
    assert!(one("defaults {\nprio_args \"hbtl 1 2\"\n}").contains("it is ignored"));
    assert!(
        one("devices {\ndevice {\nvendor A\nproduct B\nhardware_handler \"1 emc\"\n}\n}")
            .contains("no handler is used")
    );
    assert!(one("defaults {\npath_checker rdac\n}").starts_with("path_checker 'rdac': tur is used"));
    assert_eq!(
        one("defaults {\nquantum_entanglement yes\n}"),
        "quantum_entanglement: has no effect here: mqblk knows no such option"
    );
    assert_eq!(one("defaults {\npath_grouping_policy group_by_tpg\ndetect_prio no\n}"), "");
    for section in ["defaults {", "overrides {", "devices {\ndevice {\nvendor A\nproduct B"] {
        let end = if section.starts_with("devices") { "}\n}" } else { "}" };
        assert_eq!(one(&format!("{section}\nrecheck_wwid yes\n{end}")), "", "it is what mqblk does");
    }
    assert!(one("defaults {\nrr_weight priorities\n}").contains("the selector chooses a path for each request"));
}

/// Makes a directory with these files for a test. `DIR` in a text stands for it.
fn directory(test: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("multipath-conf-{test}-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("conf.d")).unwrap();
    for (name, text) in files {
        std::fs::write(directory.join(name), text.replace("DIR", directory.to_str().unwrap())).unwrap();
    }
    directory
}

#[test]
fn drop_in_files_override_in_alphabetical_order() {
    let device = |retry: u32| format!("devices {{\ndevice {{\nvendor A\nproduct B\nno_path_retry {retry}\n}}\n}}\n");
    let main = "defaults {\nconfig_dir \"DIR/conf.d\"\nfailback 30\npolling_interval 10\n}\n";
    let first = "defaults {\nfailback 10\nmax_polling_interval 4\n}\n";
    let second = "defaults {\nfailback 20\nconfig_dir \"/etc\"\n}\nblacklist {\nwwid \"^3\"\n}\n";
    let (main, first) = (format!("{main}{}", device(4)), format!("{first}{}", device(5)));
    let files = [
        ("main.conf", main.as_str()),
        ("conf.d/20-b.conf", second),
        ("conf.d/10-a.conf", first.as_str()),
        ("conf.d/README", "no configuration"),
        ("conf.d/30-c.conf.bak", "no configuration"),
    ];
    let directory = directory("order", &files);
    let config = Config::open(&directory.join("main.conf")).unwrap_or_else(|e| panic!("{e}"));
    let disk = disk("3600", "A", "B", "");
    let place = |file: &str, line: u32| format!("{}:{line}", directory.join(file).display());
    let resolved = config.resolve(&disk);
    for (option, value, at) in [
        ("failback", "20", place("conf.d/20-b.conf", 2)),
        ("no_path_retry", "5", place("conf.d/10-a.conf", 9)),
        ("polling_interval", "4", place("main.conf", 4)),
    ] {
        let found = resolved.get(option).unwrap();
        assert_eq!((&found.value[..], found.place()), (value, Some(at)), "{option}");
    }
    let by = config.blacklisted(&disk).unwrap().to_string();
    assert!(by.starts_with(&format!("{}: wwid '3600'", place("conf.d/20-b.conf", 6))), "{by}");
    let warnings: Vec<_> = config.warnings.iter().map(Problem::to_string).collect();
    let (main, first, second) = (place("main.conf", 4), place("conf.d/10-a.conf", 3), place("conf.d/20-b.conf", 3));
    let expected = [
        format!("{second}: config_dir: has no effect here: only the main file names a directory"),
        format!(
            "{main}: polling_interval 10: is above max_polling_interval ({first}), so 4 is used, as in multipath-tools"
        ),
    ];
    assert_eq!(warnings, expected, "overriding is no mistake");
    assert!(!config.to_string().contains("config_dir"), "the printed text has what the directory says");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn mistakes_of_drop_in_files_name_their_file() {
    let files = [
        ("main.conf", "defaults {\nconfig_dir \"DIR/conf.d\"\n}\n"),
        ("none.conf", "defaults {\nconfig_dir \"\"\n}\n"),
        ("plain.conf", "defaults {\nfailback 30\n}\n"),
        ("relative.conf", "defaults {\nconfig_dir conf.d\n}\n"),
        ("missing.conf", "defaults {\n\nconfig_dir \"DIR/missing\"\n}\n"),
        ("conf.d/a.conf", "\npolling_interval 5\n"),
        ("conf.d/b.conf", "defaults {\nfailback later\n"),
    ];
    let directory = directory("mistakes", &files);
    let open = |file: &str| Config::open(&directory.join(file));
    let told = |file: &str| open(file).unwrap_err().replace(directory.to_str().unwrap(), "DIR");
    let both = told("main.conf");
    let lines: Vec<_> = both.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("DIR/conf.d/a.conf:2: 'polling_interval' is outside"), "{both}");
    assert!(lines[1].starts_with("DIR/conf.d/b.conf:1: 'defaults' begins here"), "{both}");
    assert!(lines[2].starts_with("DIR/conf.d/b.conf:2: failback 'later'"), "{both}");
    assert_eq!(
        told("relative.conf"),
        "DIR/relative.conf:2: config_dir 'conf.d': must be an absolute path, or \"\" for none"
    );
    let missing = told("missing.conf");
    assert!(missing.starts_with("DIR/missing.conf:3: config_dir '") && missing.contains("cannot be read"), "{missing}");
    assert!(
        open("none.conf").is_ok() && open("plain.conf").is_ok(),
        "only /etc/multipath.conf has a directory by itself"
    );
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Returns a disk's options, with those filled in that follow from others.
fn options(config: &Config, disk: &Identity) -> MultipathOptions {
    let options = config.resolve(disk).options();
    let longest = options.longest_interval().min(Duration::from_secs(crate::driver::multipath::MAX_SECONDS));
    MultipathOptions { max_polling_interval: Some(longest), ..options }
}

/// The printed text is a valid configuration, and the same one.
#[test]
fn what_is_printed_reads_back() {
    let config = parse(FILE);
    let printed = config.to_string();
    let golden = include_str!("tests_printed.txt");
    assert_eq!(printed, golden, "\n{printed}");
    let again = parse(&printed);
    assert_eq!(again.to_string(), printed);
    for disk in [disk("1", "LIO-ORG", "disk17", "4.0"), disk("360000000000000000e00000000010001", "x", "y", "z")] {
        let plain = |c: &Config| {
            let found = c.resolve(&disk).found.into_iter().map(|f| (f.option.name, f.value));
            found.filter(|(name, _)| *name != "max_polling_interval").collect::<Vec<_>>()
        };
        assert_eq!(plain(&again), plain(&config));
        assert_eq!(options(&again, &disk), options(&config, &disk));
    }
}

/// Returns the words of each section's lines, by the section's path: `devices/device 1`.
fn sections(text: &str) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let (mut all, mut place, mut counts) = (BTreeMap::new(), Vec::new(), BTreeMap::<String, u32>::new());
    for line in text.lines().map(|line| line.split(" # ").next().unwrap_or_default().trim()) {
        if let Some(name) = line.strip_suffix(" {") {
            let path = [&place[..], &[name.to_owned()]].concat().join("/");
            let count = counts.entry(path).or_default();
            *count += 1;
            place.push(format!("{name} {count}"));
        } else if line == "}" {
            place.pop();
        } else {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            let entry: &mut BTreeSet<_> = all.entry(place.join("/")).or_default();
            entry.insert((name.to_owned(), value.trim_matches('"').to_owned()));
        }
    }
    all
}

/// Compares with the output of Debian's `multipath -t` 0.9.4 for the same file, without its hardware table. For an option that has an
/// effect here, both print the same in the same section. Exceptions are two options with other defaults and two options that are newer
/// (0.9.6).
#[test]
fn multipath_prints_the_same() {
    let (ours, theirs) = (sections(&parse(FILE).to_string()), sections(include_str!("tests_multipath_t.txt")));
    let known = |name: &str| OPTIONS.iter().find(|o| o.name == name).is_none_or(|o| o.idle.is_none());
    let others = ["path_checker", "checker_timeout", "detect_pgpolicy", "detect_pgpolicy_use_tpg"];
    let other = |place: &str, name: &str| place == "defaults 1" && others.contains(&name);
    let mut seen = 0;
    for (place, lines) in &theirs {
        if place.starts_with("blacklist") {
            // The output of multipath has built-in entries, too.
            assert!(lines.is_superset(&ours[place]), "{place}");
            continue;
        }
        let ours = &ours[place];
        let given = |name: &str| ours.iter().any(|(n, _)| n == name);
        let counts = |(name, _): &&(String, String)| (known(name) || given(name)) && !other(place, name);
        // multipath prints a `find_multipaths` of "yes" as "on".
        let kept =
            |(n, v): &(String, String)| (n.clone(), if n == "find_multipaths" { "on".into() } else { v.clone() });
        let ours: Vec<_> = ours.iter().filter(counts).map(kept).collect();
        let theirs: Vec<_> = lines.iter().filter(counts).map(kept).collect();
        assert_eq!(ours, theirs, "{place}");
        seen += theirs.len();
    }
    assert!(seen > 25, "{seen}");
}

#[test]
fn each_option_is_printed_with_its_origin() {
    let config = parse(FILE);
    let wwid = "360000000000000000e00000000010001";
    let text = config.resolve(&disk(wwid, "LIO-ORG", "disk17", "4.0")).show(wwid);
    for line in [
        "\tpath_selector \"round-robin 0\" # multipath.conf:50, multipaths\n",
        "\tpath_grouping_policy \"group_by_prio\" # multipath.conf:33, devices\n",
        "\tchecker_timeout 15 # built in\n",
        "\thardware_handler \"1 alua\" # multipath.conf:35, devices\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

/// Every option is in the table once, and accepts its own default.
#[test]
fn the_table_is_right() {
    for (i, o) in OPTIONS.iter().enumerate() {
        assert!(OPTIONS[..i].iter().all(|other| other.name != o.name), "{} twice", o.name);
        if let Some(default) = o.default {
            assert_eq!(o.read(default).map(|(value, _)| value), Ok(default.to_owned()), "{}", o.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any text is read or refused; errors are printable lines, and what is read reads back.
    #[test]
    fn any_text_is_read_or_refused(words in prop::collection::vec(word(), 0..80)) {
        check_any(&words.concat());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_any(&String::from_utf8_lossy(&bytes));
    }
}

fn check_any(text: &str) {
    match Config::parse("m.conf", text) {
        Err(e) => {
            assert!(!e.problems.is_empty());
            for problem in &e.problems {
                assert!(!problem.to_string().chars().any(char::is_control), "{problem:?}");
                assert!(problem.line as usize <= text.split('\n').count());
            }
        }
        Ok(config) => {
            let printed = config.to_string();
            let again = Config::parse("m.conf", &printed).unwrap_or_else(|e| panic!("{text:?}\n{printed}\n{e}"));
            assert_eq!(again.to_string(), printed);
            let nobody = Identity::default();
            assert_eq!(options(&again, &nobody), options(&config, &nobody));
        }
    }
}

fn word() -> impl Strategy<Value = String> {
    let fixed = [
        "defaults {\n",
        "devices {\ndevice {\n",
        "multipaths {\nmultipath {\n",
        "overrides {\n",
        "blacklist {\n",
        "protocol {\n",
        "}\n",
        "}\n",
        "\n",
        "vendor \"a\"\n",
        "product \"(b|c)\"\n",
        "wwid \"x\"\"y\"\n",
        "type \"scsi:fcp\"\n",
        "path_selector \"service-time 0\"\n",
        "failback 30\n",
        "features \"1 queue_if_no_path\"\n",
        "no_path_retry queue\n",
        "polling_interval 7\n",
        "devnode \"^sd\"\n",
        "prio alua\n",
        "\"",
        "#",
        "!",
        "{",
        " ",
        "alias \"\n",
        "prio_args \"\"\n",
        "dev_loss_tmo infinity\n",
    ];
    prop_oneof![8 => prop::sample::select(fixed.map(str::to_owned).to_vec()), 1 => "\\PC{0,8}"]
}

/// Found by fuzzing.
#[test]
fn messages_have_no_control_characters() {
    let errors = Config::parse("m.conf", "overrides {\nfeatures \"1 queue_if_no_p\u{1b}[2Jath\"\n}\n").unwrap_err();
    let text = errors.problems[0].to_string();
    assert!(text.contains("\\u{1b}[2Jath") && !text.chars().any(char::is_control), "{text:?}");
}
