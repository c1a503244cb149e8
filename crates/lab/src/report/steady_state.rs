// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's report of `steadystate`: the section of its JSON, and the line of its text.
//!
//! Guarantees: names, order and numbers are those of fio 3.33; those about latency are of fio 3.42.

use serde::Serialize;
use workload::job::SteadyMetric;
use workload::steady::{Sample, SteadyReport};

use super::num::{self, RATE_DIGITS, Scale};

/// The section of a job.
#[derive(Serialize)]
pub(super) struct SteadyState {
    ss: String,
    duration: u64,
    attained: u8,
    criterion: String,
    max_deviation: f64,
    slope: f64,
    data: Data,
}

#[derive(Serialize)]
struct Data {
    bw_mean: u64,
    iops_mean: u64,
    iops: Vec<u64>,
    bw: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lat_mean: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lat: Vec<u64>,
}

/// fio divides by the number of samples that there may be, and shows 0 for those that are missing.
fn column(report: &SteadyReport, of: fn(&Sample) -> u64) -> (u64, Vec<u64>) {
    let mut values: Vec<u64> = report.samples.iter().map(of).collect();
    values.resize(report.steady.samples(), 0);
    (values.iter().sum::<u64>() / values.len() as u64, values)
}

fn metric(report: &SteadyReport) -> &'static str {
    match report.steady.metric {
        SteadyMetric::Iops => "iops",
        SteadyMetric::Bandwidth => "bw",
        SteadyMetric::Latency => "lat",
    }
}

impl SteadyState {
    pub(super) fn of(report: &SteadyReport) -> SteadyState {
        let steady = &report.steady;
        let (slope, percent) = (if steady.is_slope { "_slope" } else { "" }, if steady.is_percent { "%" } else { "" });
        let ((iops_mean, iops), (bw_mean, bw)) = (column(report, |s| s.iops), column(report, |s| s.bw));
        let lat = (steady.metric == SteadyMetric::Latency).then(|| column(report, |s| s.lat_ns));
        let (lat_mean, lat) = lat.map_or((None, Vec::new()), |(mean, lat)| (Some(mean), lat));
        SteadyState {
            ss: format!("{}{slope}:{:.6}{percent}", metric(report), steady.limit),
            duration: steady.duration_s,
            attained: report.attained.into(),
            criterion: format!("{:.6}{percent}", report.criterion),
            max_deviation: report.deviation,
            slope: report.slope,
            data: Data { bw_mean, iops_mean, iops, bw, lat_mean, lat },
        }
    }
}

/// The line of the text.
pub(super) fn line(report: &SteadyReport) -> String {
    let mean = |of| column(report, of).0;
    // fio scales KiB in both units.
    let bw = |scale, unit| num::short_from(mean(|s| s.bw) / 1024, RATE_DIGITS, scale, unit, 1);
    let iops = num::short(mean(|s| s.iops), RATE_DIGITS, Scale::Decimal, "");
    let lat = match report.steady.metric {
        SteadyMetric::Latency => format!(", lat={}", num::latency(mean(|s| s.lat_ns) as f64)),
        _ => String::new(),
    };
    format!(
        "  steadystate  : attained={}, bw={} ({}), iops={iops}{lat}, {}{}={:.3}{}\n",
        if report.attained { "yes" } else { "no" },
        bw(Scale::Binary, "B/s"),
        bw(Scale::Decimal, "B/s"),
        metric(report),
        if report.steady.is_slope { " slope" } else { " mean dev" },
        report.criterion,
        if report.steady.is_percent { "%" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::job::Steady;

    /// As fio 3.33 printed it for these samples.
    #[test]
    fn the_line_and_the_section_are_fio_s() {
        let samples = [(1003, 4_112_318), (1000, 4_096_000)].map(|(iops, bw)| Sample { iops, bw, lat_ns: 2_000 });
        let (metric, limit) = (SteadyMetric::Bandwidth, 0.001);
        let steady =
            Steady { metric, is_slope: true, limit, is_percent: true, duration_s: 3, ramp_ns: 0, interval_s: 1 };
        let report = SteadyReport {
            steady,
            attained: false,
            criterion: 0.0,
            deviation: 0.0,
            slope: 0.0,
            samples: samples.into(),
        };
        let expected = "  steadystate  : attained=no, bw=2671KiB/s (2671kB/s), iops=667, bw slope=0.000%\n";
        assert_eq!(line(&report), expected);
        let json = serde_json::to_value(SteadyState::of(&report)).unwrap();
        assert_eq!(json["ss"], "bw_slope:0.001000%");
        assert_eq!((json["data"]["bw_mean"].as_u64(), json["data"]["iops"][2].as_u64()), (Some(2_736_106), Some(0)));
        let report = SteadyReport { steady: Steady { metric: SteadyMetric::Latency, ..steady }, ..report };
        assert!(line(&report).contains("iops=667, lat=1.33us, lat slope=0.000%"), "{}", line(&report));
        assert_eq!(serde_json::to_value(SteadyState::of(&report)).unwrap()["data"]["lat_mean"], 1333);
    }
}
