// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Warnings about TCP listeners that other machines reach without TLS.
//!
//! Guarantees: each export and the page of metrics are named once. Does not do: reject them, because a firewall or a private network may
//! protect them, which this machine does not know.

use super::metrics::Listen;
use host::handed::At;
use host::serve::plan::{ExportKind, NbdListen, ServePlan};
use std::net::SocketAddr;

/// Returns the warnings about a plan's exports.
pub fn of_exports(plan: &ServePlan) -> Vec<String> {
    let warning = |export: &host::serve::plan::ExportPlan| {
        let ExportKind::Nbd(nbd) = &export.kind else { return None };
        let NbdListen::Tcp(listen) = &nbd.listen else { return None };
        let may = match &nbd.tls {
            Some(tls) if tls.required => return None,
            Some(_) => "may leave TLS out",
            None => "needs no TLS",
        };
        listen.addresses().find(|at| is_exposed(*at)).map(|at| {
            format!(
                "export '{}': {at} is not loopback, and a client {may}: every machine that reaches it can use the disk; set \
                 tls = \"require\", or listen at 127.0.0.1 or a Unix socket",
                export.name
            )
        })
    };
    plan.exports.iter().filter_map(warning).collect()
}

/// Returns the warnings about the exports of `new` that are not about those of `old`.
pub fn of_new_exports(old: &ServePlan, new: &ServePlan) -> Vec<String> {
    let known = of_exports(old);
    of_exports(new).into_iter().filter(|warning| !known.contains(warning)).collect()
}

/// Returns the warning about the page of metrics.
pub fn of_metrics(listen: Option<&Listen>) -> Option<String> {
    match &listen?.0 {
        At::Tcp(at) if is_exposed(*at) => Some(format!(
            "--metrics {at}: is not loopback, and the page has no TLS: every machine that reaches it can read names and counters \
             of disks; listen at 127.0.0.1 or unix:PATH"
        )),
        At::Tcp(_) | At::Unix(_) => None,
    }
}

/// Whether other machines may reach an address.
fn is_exposed(at: SocketAddr) -> bool {
    !at.ip().to_canonical().is_loopback()
}
