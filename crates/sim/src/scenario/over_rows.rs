// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes that were published without their load, beside the simulated range over all loads.
//!
//! Guarantees: only rows with `against` count, and only where the figure is above 0 in both rows. Does not: call a figure
//! predicted. A range says where a machine may lie, not where it was.

use super::file::Scenario;
use super::outcome::RowOutcome;
use serde::Serialize;

/// A change as a multiple, and the row in which it occurs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The figure as a multiple of the figure of the row it is compared with.
    pub ratio: f64,
    /// The row's name.
    pub row: String,
}

/// A published change, and the range of the simulated rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverRows {
    /// `job.metric`.
    pub name: String,
    /// The published multiple.
    pub published: f64,
    /// The smallest multiple of all rows.
    pub least: Change,
    /// The largest.
    pub most: Change,
}

impl OverRows {
    /// Whether the published change lies in the simulated range.
    pub fn is_within(&self) -> bool {
        (self.least.ratio..=self.most.ratio).contains(&self.published)
    }
}

/// Returns the published changes of a scenario beside the simulated rows, in the order of the figures. A figure that is 0
/// in all rows is left out.
pub fn over_rows(scenario: &Scenario, rows: &[RowOutcome]) -> Vec<OverRows> {
    let figure = |row: &RowOutcome, name: &str| {
        row.figures.iter().find(|f| f.name == name).map(|f| f.simulated).filter(|value| *value > 0.0)
    };
    let mut all = Vec::new();
    for (name, published) in &scenario.over_rows {
        let mut changes: Vec<Change> = Vec::new();
        for (spec, row) in scenario.row.iter().zip(rows) {
            let base = spec.against.as_ref().and_then(|name| rows.iter().find(|r| r.name == *name));
            if let Some((base, now)) = base.and_then(|b| figure(b, name)).zip(figure(row, name)) {
                changes.push(Change { ratio: now / base, row: row.name.clone() });
            }
        }
        changes.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        if let (Some(least), Some(most)) = (changes.first(), changes.last()) {
            let (least, most) = (least.clone(), most.clone());
            all.push(OverRows { name: name.clone(), published: *published, least, most });
        }
    }
    all
}
