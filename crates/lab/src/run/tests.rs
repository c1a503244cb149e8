// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs on the null target: grouping, counts that agree with each other, pairs in the order of the plan.

use super::*;
use crate::pairs::{CompareSpec, SideSpec, compare};
use crate::plan::Plan;
use crate::results::{self, Header, ResultsError, ResultsWriter};
use crate::setup::Setup;
use crate::world::execute;
use std::sync::atomic::Ordering;
use workload::job::{ParseContext, Warning};

fn parse(text: &str) -> JobFile {
    JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn run<'a>(file: &'a JobFile, settings: &[(String, String)]) -> Run<'a> {
    let spec = RunSpec {
        file,
        target: Some("null:size=1g"),
        settings,
        entropy: 1,
        stop: Arc::default(),
        trace_events: 0,
        force: false,
        slices: true,
        files: None,
    };
    execute(&spec, &mut Unobserved).unwrap()
}

#[test]
fn blocks_follow_fio_s_grouping_and_sums_agree() {
    let file = parse(
        "[global]\nioengine=libaio\nrw=randread\nsize=1m\nbs=4k\n[a]\nnumjobs=2\n[b]\ngroup_reporting\nnumjobs=3\n\
         [c]\ngroup_reporting\n[d]\nstonewall\ngroup_reporting\nrw=write\nnumber_ios=7\n",
    );
    let warnings: &[Warning] = &[];
    assert_eq!(file.warnings, warnings);
    let r = run(&file, &[]);
    let report = r.fio_report(0);
    let blocks: Vec<_> = report.jobs.iter().map(|j| (j.name.as_str(), j.group_id, j.members)).collect();
    assert_eq!(blocks, [("a", 0, 1), ("a", 0, 1), ("b", 0, 4), ("d", 1, 1)]);
    assert_eq!(report.jobs.iter().map(|j| j.dirs[0].total_ios).sum::<u64>(), 6 * 256);
    assert_eq!(report.jobs[3].dirs[1].total_ios, 7);
    assert_eq!((r.outcome.ios, r.errors()), (6 * 256 + 7, 0));
    let f = r.facts();
    assert_eq!(f.times.n + f.merges, 6 * 256 + 7, "each I/O is a request of its own or joined one");
    assert_eq!(f.hctx.iter().map(|h| h.dispatched).sum::<u64>(), f.times.n);
    assert_eq!(report.disk_util[0].ios.iter().sum::<u64>(), f.times.n);
    assert_eq!(report.jobs[0].options, [("numjobs".to_owned(), "2".to_owned())]);
    assert_eq!(report.global_options[0], ("ioengine".to_owned(), "libaio".to_owned()));
}

#[test]
fn settings_in_effect_come_with_the_run() {
    let file = parse("[a]\nsize=64k\n");
    let r = run(&file, &[("mode".into(), "sq".into())]);
    let sq = r.settings[0].iter().find(|s| s.name == "mode").unwrap();
    assert_eq!((sq.value.as_str(), sq.default), ("sq", false));
    assert_eq!(r.outcome.disks[0].scheduler, r.settings[0].iter().find(|s| s.name == "scheduler").unwrap().value);
}

struct Steps(Vec<(Side, Option<u32>)>, Arc<AtomicBool>, usize);

impl Observer for Steps {
    fn step(&mut self, _: u32, _: u32, step: Step) {
        self.0.push((step.side, step.pair));
        if self.0.len() > self.2 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

fn spec<'a>(file: &'a JobFile, b: &[(&str, &str)]) -> CompareSpec<'a> {
    let side = |label: &str, settings: &[(&str, &str)]| SideSpec {
        label: label.into(),
        target: Some("null:size=1g".into()),
        settings: settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        behind: None,
    };
    let plan = Plan::new(Plan::MIN_PAIRS, 1, 7).unwrap();
    CompareSpec {
        file,
        sides: vec![side("a", &[]), side("b", b)],
        judge: None,
        plan,
        entropy: 3,
        stop: Arc::default(),
        detect: None,
        past: &[],
        force: false,
        slices: false,
    }
}

fn writer(spec: &CompareSpec<'_>) -> std::result::Result<ResultsWriter<Vec<u8>>, ResultsError> {
    let header = Header {
        format: results::FORMAT,
        setup: Setup::default(),
        command: "x".into(),
        plan: spec.plan,
        primary: spec.primary(),
        labels: vec!["a".into(), "b".into()],
        job: String::new(),
        started_unix_ms: 0,
        detect: None,
        sides: Vec::new(),
    };
    ResultsWriter::new(Vec::new(), "memory".into(), &header)
}

#[test]
fn pairs_run_in_the_order_of_the_plan() {
    let file = parse("[a]\nsize=64k\nrw=randread\n");
    let spec = spec(&file, &[("mode", "sq")]);
    let mut seen = Steps(Vec::new(), Arc::default(), usize::MAX);
    let c = compare(&spec, || writer(&spec), &mut seen).unwrap().remove(0);
    let planned: Vec<_> = spec.plan.steps().map(|s| (s.side, s.pair)).collect();
    assert_eq!(seen.0, planned);
    assert_eq!((c.pairs_done, c.a.errors), (Plan::MIN_PAIRS, 0));
    assert_eq!(c.a.stages.unwrap().ios, 16 * u64::from(Plan::MIN_PAIRS));
}

#[test]
fn a_stopped_comparison_keeps_whole_pairs_only() {
    let file = parse("[a]\nsize=64k\nrw=randread\n");
    let spec = spec(&file, &[]);
    // The observer stops after two warm-ups and five runs: two pairs and a half.
    let mut seen = Steps(Vec::new(), Arc::clone(&spec.stop), 7);
    let c = compare(&spec, || writer(&spec), &mut seen).unwrap().remove(0);
    assert_eq!((c.pairs_done, seen.0.len()), (2, 8));
}

#[test]
fn a_side_that_cannot_be_is_refused_before_anything_runs() {
    let file = parse("[a]\nsize=64k\n");
    let spec = spec(&file, &[("nr_hw_queues", "4097")]);
    let mut seen = Steps(Vec::new(), Arc::default(), usize::MAX);
    let e = compare(&spec, || writer(&spec), &mut seen).unwrap_err().to_string();
    assert!(e.starts_with("B (b): nr_hw_queues=4097: must be 0..="), "{e}");
    assert!(seen.0.is_empty());
}

#[test]
fn a_rated_job_is_judged_by_its_latency() {
    let file = parse("[a]\nsize=64k\nrate_iops=100\n");
    assert_eq!(spec(&file, &[]).primary(), crate::metric::Metric::LatencyMean);
}

#[test]
fn a_comparison_about_one_job_shows_the_others_beside_it() {
    let file = parse("[global]\nrw=randread\n[a]\nsize=64k\n[b]\nsize=1m\nnumjobs=2\n[c]\nstonewall\nsize=128k\n");
    let of_a = CompareSpec { judge: Some("a"), ..spec(&file, &[]) };
    let mut records = Vec::new();
    let open = || writer(&of_a);
    let c = compare(&of_a, open, &mut Steps(Vec::new(), Arc::default(), usize::MAX)).unwrap().remove(0);
    assert_eq!(c.others.iter().map(|o| o.job.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    assert!(
        c.others.iter().all(|o| o.rows.iter().any(|r| r.metric == crate::metric::Metric::Iops && r.ratio.is_some()))
    );
    assert!(c.row(crate::metric::Metric::CpuPerIo).is_none(), "the process has worked for all");
    let r = run(&file, &[]);
    for (judge, ios) in [(None, 16 + 512 + 32), (Some("a"), 16), (Some("b"), 512), (Some("c"), 32)] {
        let record = r.record(0, Side::A, true, judge);
        assert_eq!(record.others.len(), if judge.is_some() { 2 } else { 0 });
        let all: u64 = r.threads_of(judge).map(|s| s.dirs[0].ios).sum();
        assert_eq!(all, ios);
        let slices = record.detail.as_ref().unwrap().slices.as_ref().unwrap();
        assert_eq!(slices.columns.iter().map(|c| c.ios[0]).sum::<u64>(), ios, "charts over time show the judged job");
        records.push(record);
    }
    let iops = |i: usize| records[i].metrics.iops.unwrap();
    assert!(iops(1) > 0.0 && iops(2) > 0.0 && iops(3) > 0.0);
    assert_eq!(records[1].others[1].metrics, records[3].metrics);
}
