// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps values to coordinates, and places the ticks.
//!
//! Guarantees: the ends of an axis are at ticks or beyond the data. A range of zero length is widened. A value that an axis cannot show
//! (0 on a logarithmic one) has the coordinate `None`. Does not: draw.

use crate::chart::Scale as Kind;

/// An axis with its two ends, as values and as coordinates.
#[derive(Clone, Copy, Debug)]
pub struct Scaler {
    kind: Kind,
    /// Lower end, transformed by the scale.
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    step: f64,
}

/// Maximum number of nines. Counts of I/Os are too low for more.
const NINES_MAX: f64 = 9.0;

fn transformed(kind: Kind, v: f64) -> Option<f64> {
    let t = match kind {
        Kind::Linear | Kind::Near => v,
        Kind::Log10 => v.log10(),
        Kind::Log2 => v.log2(),
        Kind::Nines => -(1.0 - v).log10(),
    };
    t.is_finite().then_some(t)
}

fn restored(kind: Kind, t: f64) -> f64 {
    match kind {
        Kind::Linear | Kind::Near => t,
        Kind::Log10 => 10f64.powf(t),
        Kind::Log2 => t.exp2(),
        Kind::Nines => 1.0 - 10f64.powf(-t),
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten, so that at most `most` steps fit into `span`.
fn nice_step(span: f64, most: usize) -> f64 {
    let raw = span / most.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw * 0.999_999);
    step.unwrap_or(10.0 * power)
}

impl Scaler {
    /// Makes an axis for `values` between two coordinates, with at most about `most` ticks.
    pub fn new(kind: Kind, values: impl Iterator<Item = f64>, most: usize, (from, to): (f64, f64)) -> Scaler {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for t in values.filter_map(|v| transformed(kind, v)) {
            (low, high) = (low.min(t), high.max(t));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let mut step = 1.0;
        match kind {
            Kind::Linear => {
                (low, high) = (low.min(0.0), high.max(0.0));
                if high - low <= 0.0 {
                    high = 1.0;
                }
                step = nice_step(high - low, most);
                (low, high) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
            }
            Kind::Near => {
                // At least half a percent of the value on each side, so that the ticks of equal values have different labels.
                let pad = (0.08 * (high - low)).max(5e-3 * if high == 0.0 { 1.0 } else { high.abs() });
                (low, high) = (low - pad, high + pad);
                step = nice_step(high - low, most);
            }
            Kind::Log10 => {
                (low, high) = (floor_125(low), ceil_125(high));
                if high - low < 0.3 {
                    high = ceil_125(low + 0.31);
                }
                let decades = ((high - low) / most as f64).ceil();
                step = if high - low > 2.6 { decades.max(1.0) } else { 0.0 };
            }
            Kind::Log2 => {
                (low, high) = ((low - 0.15).min(low), high + 0.15);
                step = ((high - low) / most as f64).ceil().max(1.0);
            }
            Kind::Nines => {
                low = 0.0;
                high = high.clamp(1.0, NINES_MAX);
            }
        }
        Scaler { kind, low, high, from, to, step }
    }

    /// Makes an axis whose ends are exactly these values.
    pub fn exact(kind: Kind, (low, high): (f64, f64), most: usize, between: (f64, f64)) -> Scaler {
        let mut s = Scaler::new(kind, [low, high].into_iter(), most, between);
        if let (Some(low), Some(high)) = (transformed(kind, low), transformed(kind, high))
            && high > low
        {
            (s.low, s.high) = (low, high);
            s.step = match kind {
                Kind::Linear | Kind::Near => nice_step(high - low, most),
                _ => s.step,
            };
        }
        s
    }

    /// Returns the coordinate of a value. A value outside of the axis gets the coordinate of the nearer end.
    pub fn at(&self, v: f64) -> Option<f64> {
        let t = transformed(self.kind, v)?;
        let share = ((t - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        Some(self.from + share * (self.to - self.from))
    }

    /// Returns the values with a tick, ascending.
    pub fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Log10 if self.step == 0.0 => self.ticks_125(),
            Kind::Nines => {
                let nines = (1..=self.high.floor() as i32).map(|n| 1.0 - 10f64.powi(-n));
                [0.0, 0.5].into_iter().chain(nines).collect()
            }
            kind => {
                let first = (self.low / self.step - 1e-9).ceil();
                let last = (self.high / self.step + 1e-9).floor();
                let n = (last - first).clamp(0.0, 60.0) as u32;
                (0..=n).map(|i| restored(kind, (first + f64::from(i)) * self.step)).collect()
            }
        }
    }

    fn ticks_125(&self) -> Vec<f64> {
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        let all = (first..=last).flat_map(|d| [1.0, 2.0, 5.0].map(|m: f64| f64::from(d) + m.log10()));
        all.filter(|t| *t >= self.low - 1e-9 && *t <= self.high + 1e-9).map(|t| restored(self.kind, t)).collect()
    }
}

/// Rounds down to 1, 2 or 5 times a power of ten. Argument and result are logarithms.
fn floor_125(log: f64) -> f64 {
    let decade = log.floor();
    let rest = log - decade + 1e-9;
    decade + [5f64.log10(), 2f64.log10()].into_iter().find(|m| rest >= *m).unwrap_or(0.0)
}

fn ceil_125(log: f64) -> f64 {
    let decade = log.floor();
    let rest = log - decade - 1e-9;
    decade + [0.0, 2f64.log10(), 5f64.log10()].into_iter().find(|m| rest <= *m).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(kind: Kind, low: f64, high: f64) -> Vec<f64> {
        let all = Scaler::new(kind, [low, high].into_iter(), 6, (0.0, 600.0)).ticks();
        all.iter().map(|t| (t * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn ticks_are_round_and_hold_the_data() {
        assert_eq!(Scaler::new(Kind::Linear, [3.0, 9.0].into_iter(), 6, (0.0, 1.0)).at(0.0), Some(0.0), "begins at 0");
        assert_eq!(ticks(Kind::Linear, 12.0, 87.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(Kind::Linear, 0.0, 0.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(Kind::Log10, 90.0, 4_000.0), [50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0]);
        assert_eq!(ticks(Kind::Log10, 300.0, 3e7), [1e3, 1e4, 1e5, 1e6, 1e7]);
        assert_eq!(ticks(Kind::Near, 1.0, 1.0), [0.996, 0.998, 1.0, 1.002, 1.004]);
        assert_eq!(ticks(Kind::Log2, 1.0, 8.0), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(ticks(Kind::Nines, 0.0, 0.9995), [0.0, 0.5, 0.9, 0.99, 0.999]);
    }

    #[test]
    fn a_single_value_has_an_axis_and_zero_is_not_on_a_logarithm() {
        for kind in [Kind::Linear, Kind::Near, Kind::Log10, Kind::Log2] {
            let s = Scaler::new(kind, [5.0].into_iter(), 6, (0.0, 100.0));
            assert!(s.at(5.0).is_some_and(|x| (0.0..=100.0).contains(&x)) && !s.ticks().is_empty(), "{kind:?}");
        }
        let s = Scaler::new(Kind::Log10, [5.0, 50.0].into_iter(), 6, (0.0, 100.0));
        assert_eq!((s.at(0.0), s.at(-1.0), s.at(f64::NAN)), (None, None, None));
    }
}
