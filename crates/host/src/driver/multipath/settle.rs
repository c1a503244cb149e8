// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Determines the settings of a disk once its identity is known: from a `conf` (multipath.conf(5)) and by detection.
//!
//! Guarantees: options of the target itself take precedence over those of a file or of detection, except that
//! `detect_prio=yes` takes precedence over `prio`. Nothing is opened before all options are consistent; a conflict is
//! reported with the file's line. A disk that the file blacklists is refused with that line. With `detect_prio`, a disk
//! whose target reports port groups gets `prio alua` and `hardware_handler "1 alua"`. With `detect_checker` it gets the
//! checker tur. With `detect_pgpolicy`, if its priorities are ALUA's, it gets `group_by_prio`, or `group_by_tpg` with
//! `detect_pgpolicy_use_tpg`. A disk whose target reports no port groups gets none of ALUA's settings, whatever the file says. The policy
//! `group_by_prio` is replaced by `failover` if the hardware table sets it or its prioritizer, and that prioritizer is not there.
//! Source: multipath-tools, libmultipath/propsel.c (`select_prio`, `select_hwhandler`, `select_checker`, `select_pgpolicy`).

use super::target::{MultipathTarget, PathTarget};
use crate::driver::file::identity;
use crate::driver::iscsi::{InquiryData, inquire};
use crate::driver::multipath::disk::none_opened;
use crate::driver::multipath::options::{HardwareHandler, PathChecker, PathGroupingPolicy, Prioritizer};
use crate::error::{Error, ErrorKind, Result};
use crate::event;
use crate::multipath_conf::{Config, Found, Identity, Origin, Resolved};
use crate::target::TargetSpec;

/// Options that the driver does not use.
const ABOUT_OTHERS: [&str; 2] = ["conf", "detect_prio"];

/// Facts about a disk before it is opened.
struct DiskFacts {
    identity: Identity,
    has_port_groups: bool,
    /// The kind of its paths, if these have no vendor and product.
    unasked: Option<&'static str>,
}

impl MultipathTarget {
    /// Reads its `conf`.
    ///
    /// # Errors
    /// Usage, with all that is wrong with the file, each with its line.
    pub fn read_conf(&self) -> Result<Option<Config>> {
        let Some(path) = &self.conf else { return Ok(None) };
        Config::open(path).map(Some).map_err(|why| Error::usage(format!("conf: {why}")))
    }

    /// Settles all options by `conf` and by what the disk reports about itself, for which the driver logs in to one path.
    /// The returned target has all options given, and no `conf`; the notes are for the user.
    ///
    /// # Errors
    /// Usage: the file is wrong, or options conflict. Denied: the disk is blacklisted. Others: no path answers.
    pub fn settle(&self) -> Result<(MultipathTarget, Vec<String>)> {
        if self.conf.is_none() && self.detect_prio != Some(true) {
            return Ok((self.clone(), Vec::new()));
        }
        let within = |e: Error| e.within("target 'multipath:'");
        let config = self.read_conf().map_err(within)?;
        let facts = disk_facts(&self.paths)?;
        match config {
            Some(config) => self.settled(&config, &facts).map_err(within),
            None => {
                let mut made = MultipathTarget { detect_prio: None, ..self.clone() };
                made.detect(facts.has_port_groups, None);
                made.check().map_err(|conflict| within(Error::usage(conflict.text)))?;
                Ok((made, Vec::new()))
            }
        }
    }

    fn settled(&self, config: &Config, facts: &DiskFacts) -> Result<(MultipathTarget, Vec<String>)> {
        if let Some(problem) = config.blacklisted(&facts.identity) {
            return Err(Error::new(ErrorKind::Denied, problem.to_string()));
        }
        let resolved = config.resolve(&facts.identity);
        let place = |option: &str| match resolved.get(option).and_then(Found::place) {
            Some(place) if !self.is_given(option) => format!("{place}: "),
            _ => String::new(),
        };
        let mut notes: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        notes.extend(facts.says_less(config));
        if let Some(alias) = resolved.alias() {
            let place = place("alias");
            notes.push(format!("{place}alias '{alias}': is ignored; a served disk has the name of its [[disk]]"));
        }
        let mut made = MultipathTarget { options: resolved.options(), conf: None, detect_prio: None, ..self.clone() };
        if !facts.has_port_groups {
            let o = &mut made.options;
            let mut none = |option: &str, instead: &str| {
                let is_of_table = resolved.get(option).is_some_and(|found| found.origin == Origin::Hardware);
                if !self.is_given(option) && !is_of_table {
                    let place = place(option);
                    notes.push(format!(
                        "{place}{option} alua: the disk reports no target port groups (ALUA), so {instead} is used"
                    ));
                }
            };
            if std::mem::take(&mut o.prio) == Prioritizer::Alua {
                none("prio", "const");
            }
            if std::mem::take(&mut o.hardware_handler) == HardwareHandler::Alua {
                none("hardware_handler", "no handler");
            }
        }
        for (option, value) in self.given.iter().filter(|(option, _)| !ABOUT_OTHERS.contains(option)) {
            let set = made.set(option, value);
            assert!(set.is_ok(), "{option}={value} was read before: {set:?}");
        }
        let detects = self.detect_prio.unwrap_or(!self.is_given("prio") && resolved.is_yes("detect_prio"));
        let is_alua = facts.has_port_groups && detects;
        if is_alua && made.options.exclusive_pref_bit && !self.is_given("prio_args") {
            let place = place("prio_args");
            notes.push(format!(
                "{place}prio_args exclusive_pref_bit: is ignored, because prio is detected, as in multipath-tools; add detect_prio no"
            ));
        }
        made.detect(is_alua, Some(&resolved));
        notes.extend(made.fall_back(&resolved));
        made.check().map_err(|c| Error::usage(format!("{}{}", place(c.option), c.text)))?;
        Ok((made, notes))
    }

    /// Uses `failover` if the grouping policy needs a prioritizer that the disk does not have. Returns a note.
    fn fall_back(&mut self, resolved: &Resolved) -> Option<String> {
        let (policy, prio) = (resolved.get("path_grouping_policy")?, resolved.get("prio")?);
        if self.options.prio == Prioritizer::Alua || self.is_given("path_grouping_policy") {
            return None;
        }
        // Without its prioritizer, the policy would put the paths to all controllers into one group. A prioritizer from the configuration
        // file is not noted here, because its line has a note of its own.
        let is_of_table = [policy, prio].iter().any(|found| found.origin == Origin::Hardware);
        let lacks_prio = || is_of_table && prio.value.parse::<Prioritizer>().is_err();
        let why = match self.options.path_grouping_policy {
            PathGroupingPolicy::GroupByTpg => "needs prio alua".to_owned(),
            PathGroupingPolicy::GroupByPrio if lacks_prio() && !self.is_given("prio") => {
                let of = if prio.origin == Origin::Hardware { " of the hardware table" } else { "" };
                format!("needs prio {}{of}, which mqblk does not have", prio.value)
            }
            _ => return None,
        };
        self.options.path_grouping_policy = PathGroupingPolicy::Failover;
        let place = policy.place().map_or_else(String::new, |place| format!("{place}: "));
        Some(format!("{place}path_grouping_policy {}: {why}, so failover is used", policy.value))
    }

    /// `is_alua`: the disk has port groups, and is to be asked for them.
    fn detect(&mut self, is_alua: bool, resolved: Option<&Resolved>) {
        let is_yes = |option: &str| resolved.is_some_and(|r| r.is_yes(option));
        if is_alua {
            self.options.prio = Prioritizer::Alua;
            // In multipath-tools a detected prioritizer has no arguments.
            self.options.exclusive_pref_bit &= self.is_given("prio_args");
            if !self.is_given("hardware_handler") {
                self.options.hardware_handler = HardwareHandler::Alua;
            }
            if is_yes("detect_checker") && !self.is_given("path_checker") {
                self.options.path_checker = PathChecker::Tur;
            }
        }
        let is_sorted = self.options.prio == Prioritizer::Alua && is_yes("detect_pgpolicy");
        if is_sorted && !self.is_given("path_grouping_policy") {
            self.options.path_grouping_policy = match is_yes("detect_pgpolicy_use_tpg") {
                true => PathGroupingPolicy::GroupByTpg,
                false => PathGroupingPolicy::GroupByPrio,
            };
        }
    }
}

impl DiskFacts {
    /// Returns a note about the parts of a file that do not apply, because its paths have no vendor and product.
    fn says_less(&self, config: &Config) -> Option<String> {
        let kind = self.unasked.filter(|_| !config.devices.is_empty() || !config.multipaths.is_empty())?;
        let file = &config.file;
        let by_wwid = match &self.identity.wwid[..] {
            "" => {
                "nor any of 'multipaths', because they have no wwid; only 'defaults' and 'overrides' apply".to_owned()
            }
            wwid => format!("but 'defaults', 'overrides' and a multipath of wwid '{wwid}' do"),
        };
        Some(format!(
            "{file}: paths that are {kind} have no vendor or product, so no 'device' applies to them, {by_wwid}"
        ))
    }
}

/// Asks the disk for its facts; all paths are of one kind.
fn disk_facts(paths: &[PathTarget]) -> Result<DiskFacts> {
    let unasked = |kind, wwid| {
        let identity = Identity { wwid, ..Identity::default() };
        Ok(DiskFacts { identity, has_port_groups: false, unasked: Some(kind) })
    };
    match paths.first().map(|p| &p.spec) {
        Some(TargetSpec::Iscsi(_)) => ask(paths).map(known),
        Some(TargetSpec::File(_)) => {
            let wwid = paths.iter().flat_map(|p| p.spec.files()).find_map(identity::wwid);
            unasked("files", wwid.unwrap_or_default())
        }
        Some(TargetSpec::Nbd(_)) => unasked("NBD exports", String::new()),
        Some(TargetSpec::Rbd(_)) => unasked("RBD images", String::new()),
        _ => unasked("made up", String::new()),
    }
}

fn known(said: InquiryData) -> DiskFacts {
    let InquiryData { inquiry, wwid, access } = said;
    let identity = Identity {
        wwid: wwid.unwrap_or_default(),
        vendor: inquiry.vendor,
        product: inquiry.product,
        revision: inquiry.revision,
        protocol: "scsi:iscsi".to_owned(),
    };
    DiskFacts { identity, has_port_groups: access.is_some(), unasked: None }
}

/// Asks all paths at once, until one has answered, so a silent path delays no other.
fn ask(paths: &[PathTarget]) -> Result<InquiryData> {
    let enough = event::new()?;
    let asked: Vec<Result<InquiryData>> = std::thread::scope(|s| {
        let one = |path: &PathTarget| match &path.spec {
            TargetSpec::Iscsi(target) => {
                let said = inquire(target, &enough);
                if said.is_ok() {
                    event::signal(&enough);
                }
                said
            }
            _ => Err(Error::usage("is no iSCSI target")),
        };
        let all: Vec<_> = paths.iter().map(|path| s.spawn(move || one(path))).collect();
        all.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut failed = Vec::new();
    for (path, said) in paths.iter().zip(asked) {
        match said {
            Ok(said) => return Ok(said),
            Err(e) => failed.push((path.name.as_str(), e)),
        }
    }
    Err(none_opened(failed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::multipath::target::parse;

    fn settled(options: &str, vendor: &str, product: &str, has_port_groups: bool) -> (MultipathTarget, Vec<String>) {
        settled_by("", options, vendor, product, has_port_groups)
    }

    /// `text` is that of the file.
    fn settled_by(
        text: &str,
        options: &str,
        vendor: &str,
        product: &str,
        has_port_groups: bool,
    ) -> (MultipathTarget, Vec<String>) {
        let paths = "iscsi://a/iqn.2026-11.x:y/1+iscsi://b/iqn.2026-11.x:y/1";
        let target = parse(&format!("conf=m.conf{options}:{paths}")).unwrap();
        let (vendor, product) = (vendor.to_owned(), product.to_owned());
        let identity = Identity { vendor, product, ..Identity::default() };
        let facts = DiskFacts { identity, has_port_groups, unasked: None };
        target.settled(&Config::parse("m.conf", text).unwrap(), &facts).unwrap()
    }

    /// With all priorities equal, paths to the controller that does not serve the disk would be in the group in use.
    #[test]
    fn group_by_prio_of_the_table_needs_its_prioritizer() {
        let (made, notes) = settled("", "DGC", "VRAID", false);
        assert_eq!(made.options.path_grouping_policy, PathGroupingPolicy::Failover);
        let note = "path_grouping_policy group_by_prio: needs prio emc of the hardware table, which mqblk does not have, so \
                    failover is used";
        assert_eq!(notes, [note]);
        let by_prio = |options: &str, vendor: &str, product: &str, has_port_groups: bool, prio: Prioritizer| {
            let (made, notes) = settled(options, vendor, product, has_port_groups);
            let is = (made.options.path_grouping_policy, made.options.prio);
            assert_eq!((is, notes), ((PathGroupingPolicy::GroupByPrio, prio), vec![]), "{vendor} {product}");
        };
        by_prio("", "DGC", "VRAID", true, Prioritizer::Alua);
        by_prio(",prio=50+10", "DGC", "VRAID", false, Prioritizer::Const);
        by_prio("", "HITACHI", "OPEN-V", false, Prioritizer::Const);
        // The table is no mistake of the file, so there is no note.
        by_prio("", "LIO-ORG", "disk", false, Prioritizer::Const);
    }

    /// Regression: with a detected prioritizer the file's argument applied, so the preferred path was another than with multipath-tools.
    #[test]
    fn detected_prioritizer_has_no_arguments_of_the_file() {
        let settled = |text: &str, options: &str| {
            let (made, notes) = settled_by(text, options, "IET", "VIRTUAL-DISK", true);
            assert_eq!(made.options.prio, Prioritizer::Alua);
            (made.options.exclusive_pref_bit, notes)
        };
        let text = "defaults {\nprio alua\nprio_args exclusive_pref_bit\n}";
        let note = "m.conf:3: prio_args exclusive_pref_bit: is ignored, because prio is detected, as in multipath-tools; add detect_prio no";
        assert_eq!(settled(text, ""), (false, vec![note.to_owned()]));
        assert_eq!(settled(&text.replace("{\n", "{\ndetect_prio no\n"), ""), (true, vec![]));
        assert_eq!(settled("", ",prio_args=exclusive_pref_bit"), (true, vec![]));
    }

    /// Regression: the file's policy took the table's prioritizer, which mqblk does not have. All priorities were then 1, so the paths to
    /// both controllers were in one group, without a note.
    #[test]
    fn group_by_prio_of_the_file_needs_the_tables_prioritizer() {
        let settled = |section: &str, more: &str, prio: &str| {
            let text = format!("{section} {{\n{more}path_grouping_policy group_by_prio\n{prio}}}");
            let text = if more.is_empty() { text } else { format!("devices {{\n{text}\n}}") };
            let (made, notes) = settled_by(&text, "", "NETAPP", "INF-01-00", false);
            (made.options.path_grouping_policy, notes)
        };
        let selects = "vendor NETAPP\nproduct INF\n";
        for (section, more, line) in [("overrides", "", 2), ("device", selects, 5)] {
            let note = format!(
                "m.conf:{line}: path_grouping_policy group_by_prio: needs prio rdac of the hardware table, which mqblk does not have, so \
                 failover is used"
            );
            assert_eq!(settled(section, more, ""), (PathGroupingPolicy::Failover, vec![note]));
            assert_eq!(settled(section, more, "prio const\n"), (PathGroupingPolicy::GroupByPrio, vec![]), "{section}");
        }
    }
}
