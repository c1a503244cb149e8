// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The line that is shown while a tuning works: what it does, how much of the budget is gone, and the best so far.

use crate::args::Eta;
use crate::progress::{self, Line};
use crate::run::laying_out;
use host::run::{Prepared, Progress};
use lab::run::Observer;
use lab::tune::bench::Ask;
use lab::tune::journal::{Status, Watch};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The line and what it shows.
pub struct Screen {
    line: Line,
    stop: Arc<AtomicBool>,
    status: Status,
    next: String,
    /// Warnings printed so far, because every run would repeat them.
    told: Vec<String>,
}

impl Screen {
    /// Makes a screen that shows nothing yet.
    pub fn new(when: Eta, stop: Arc<AtomicBool>) -> Screen {
        Screen { line: Line::new(when), stop, status: Status::default(), next: String::new(), told: Vec::new() }
    }

    /// `screening, pass 1: run 31, scheduler=bfq [12.4%][eta 08m:40s][best so far: nr_hw_queues=1 +12%, not
    /// confirmed]`.
    fn text(&self) -> String {
        let s = &self.status;
        let part = 100.0 * (s.spent / s.budget.max(1e-9)).min(1.0);
        let eta = progress::eta(Some((s.budget - s.spent).max(0.0)));
        let best = match s.gain {
            Some(gain) if !s.best.is_empty() => {
                format!("[best so far: {} {:+.0}%, not confirmed]", s.best, 100.0 * gain.exp_m1())
            }
            _ => String::new(),
        };
        format!("{}: run {}, {} [{part:.1}%][at most {eta}]{best}", s.phase, s.runs + 1, self.next)
    }

    fn show(&mut self) {
        let text = self.text();
        self.line.show(|| text);
    }
}

/// The screen that a run and the search share.
#[derive(Clone)]
pub struct Shared(Rc<RefCell<Screen>>);

impl Shared {
    /// Shares a screen.
    pub fn new(screen: Screen) -> Shared {
        Shared(Rc::new(RefCell::new(screen)))
    }

    /// Clears the line.
    pub fn clear(&self) {
        self.0.borrow_mut().line.clear();
    }
}

impl Watch for Shared {
    fn run(&mut self, status: &Status, next: &Ask) {
        let mut screen = self.0.borrow_mut();
        screen.status = status.clone();
        screen.next = next.point.to_string();
        screen.show();
    }
}

impl Observer for Shared {
    fn laying_out(&mut self, path: &Path, done: u64, all: u64) -> ControlFlow<()> {
        let mut screen = self.0.borrow_mut();
        screen.line.show(|| laying_out(path, done, all));
        if screen.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn prepared(&mut self, run: &Prepared) {
        let mut screen = self.0.borrow_mut();
        for warning in run.warnings.iter().map(ToString::to_string) {
            if !screen.told.contains(&warning) {
                screen.line.clear();
                eprintln!("warning: {warning}");
                screen.told.push(warning);
            }
        }
    }

    fn progress(&mut self, _: &Progress) {
        self.0.borrow_mut().show();
    }
}
