// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reader of I/O scripts (`NAME.io`), whose format is that of `guest/ioscript.c`, which runs them on a kernel.
//!
//! ```text
//! R|W OFFSET LENGTH [CLASS LEVEL]   an I/O of the current batch, in sectors; class 0 none, 1 RT, 2 BE, 3 idle
//! go                                the batch in one io_submit() (plugged from three I/Os on)
//! one                               the batch with one io_submit() per I/O
//! sleep MICROSECONDS | wait         sleep; wait until everything submitted has completed
//! ```
//!
//! Guarantees: what it accepts, the program accepts and does. What the program would silently read as something else (a
//! misspelt command, a length that is not a number) is refused.

use crate::CaseError;
use crate::event::Extent;
use blk::bio::{IoPrio, IoPrioClass};

/// Maximum number of I/Os of one script: as many as `guest/ioscript.c` has room for.
pub const MAX_IOS: usize = 8192;

/// From how many I/Os on `io_submit()` opens a plug (`AIO_PLUG_THRESHOLD` + 1).
pub const PLUGGED_FROM: usize = 3;

/// The I/O priority of a process of nice 0.
const DEFAULT_PRIO: IoPrio = IoPrio::new(IoPrioClass::Be, 4);

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Where and which direction.
    pub extent: Extent,
    /// Its priority; BE 4 where the script gives none, as the kernel has it for a process of nice 0.
    pub prio: IoPrio,
}

/// What the process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Opens a plug.
    Plug,
    /// Submits an I/O, by its index in [`Script::ios`].
    Submit(usize),
    /// Closes the plug.
    Unplug,
    /// Sleeps for so many microseconds.
    Sleep(u64),
    /// Waits until nothing is outstanding.
    Wait,
}

/// A script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// All I/Os in order.
    pub ios: Vec<Io>,
    /// What to do with them.
    pub actions: Vec<Action>,
}

impl Script {
    /// Reads a script; `file` is what errors call it.
    ///
    /// # Errors
    /// The first line that breaks the format.
    pub fn parse(file: &str, text: &str) -> Result<Script, CaseError> {
        let mut script = Script::default();
        let mut first = 0;
        for (at, line) in text.lines().enumerate() {
            let fail = |what: String| CaseError(format!("{file}:{}: {what}", at + 1));
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [comment, ..] if comment.starts_with('#') => {}
                ["go"] => script.batch(&mut first, true),
                ["one"] => script.batch(&mut first, false),
                ["wait"] => script.actions.push(Action::Wait),
                ["sleep", us] => {
                    let wrong = |_| fail(format!("sleep {us}: must be whole microseconds, as in 'sleep 3000'"));
                    script.actions.push(Action::Sleep(us.parse().map_err(wrong)?));
                }
                ["R" | "W", ..] => {
                    let io = parse_io(&words).map_err(fail)?;
                    if script.ios.len() == MAX_IOS {
                        return Err(fail(format!(
                            "more than {MAX_IOS} I/Os: the program has no room; split the script"
                        )));
                    }
                    script.ios.push(io);
                }
                [word, ..] => {
                    return Err(fail(format!(
                        "'{word}': must be R, W, go, one, sleep or wait (a comment starts with '#')"
                    )));
                }
            }
        }
        // The program submits what is left and waits for it.
        script.batch(&mut first, true);
        script.actions.push(Action::Wait);
        if script.ios.is_empty() {
            return Err(CaseError(format!("{file}: no I/O: a script needs a line like 'R 0 8'")));
        }
        Ok(script)
    }

    /// Gives every I/O the priority of a process of nice 0. I/Os that their own priorities kept from merging still do
    /// not merge.
    pub fn give_one_priority(&mut self) {
        let mut seen: Vec<IoPrio> = Vec::new();
        for io in &mut self.ios {
            let at = seen.iter().position(|p| *p == io.prio).unwrap_or_else(|| {
                seen.push(io.prio);
                seen.len() - 1
            });
            // There are fewer classes and levels than hints.
            io.prio = DEFAULT_PRIO.with_hint(at as u16);
        }
    }

    fn batch(&mut self, first: &mut usize, together: bool) {
        let n = self.ios.len() - *first;
        let plugged = together && n >= PLUGGED_FROM;
        if plugged {
            self.actions.push(Action::Plug);
        }
        self.actions.extend((*first..self.ios.len()).map(Action::Submit));
        if plugged {
            self.actions.push(Action::Unplug);
        }
        *first = self.ios.len();
    }
}

fn parse_io(words: &[&str]) -> Result<Io, String> {
    let number = |name: &str, word: &str, max: u64| -> Result<u64, String> {
        match word.parse::<u64>() {
            Ok(n) if n <= max => Ok(n),
            _ => Err(format!("{name} {word}: must be a whole number, at most {max}")),
        }
    };
    let ([_, sector, len] | [_, sector, len, _] | [_, sector, len, _, _]) = words else {
        return Err(format!("{} words: an I/O is 'R|W OFFSET LENGTH [CLASS LEVEL]'", words.len()));
    };
    let sector = number("offset", sector, u64::MAX >> 10)?;
    let len = number("length", len, 1 << 21)? as u32;
    if len == 0 {
        return Err("length 0: must be at least one sector".into());
    }
    let class = words.get(3).map_or(Ok(0), |w| number("class", w, 3))?;
    let level = words.get(4).map_or(Ok(0), |w| number("level", w, 7))? as u8;
    let prio = match class {
        0 if level > 0 => return Err(format!("level {level} of class 0: the kernel refuses it; leave both out")),
        0 => DEFAULT_PRIO,
        1 => IoPrio::new(IoPrioClass::Rt, level),
        2 => IoPrio::new(IoPrioClass::Be, level),
        _ => IoPrio::new(IoPrioClass::Idle, level),
    };
    Ok(Io { extent: Extent { write: words[0] == "W", sector, len }, prio })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_three_is_plugged_and_one_by_one_never() {
        let s = Script::parse("t", "R 0 8\nW 8 8\ngo\n# x\nR 16 8 1 4\nR 24 8\nR 32 8\ngo\nR 1 1\nR 2 1\nR 3 1\none\n")
            .unwrap();
        let submits = |r: std::ops::Range<usize>| r.map(Action::Submit);
        let mut want: Vec<Action> = submits(0..2).collect();
        want.push(Action::Plug);
        want.extend(submits(2..5));
        want.push(Action::Unplug);
        want.extend(submits(5..8));
        want.push(Action::Wait);
        assert_eq!(s.actions, want);
        assert_eq!(s.ios[2].prio, IoPrio::new(IoPrioClass::Rt, 4));
        assert_eq!(s.ios[3].prio, IoPrio::new(IoPrioClass::Be, 4));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| Script::parse("a.io", text).unwrap_err().0;
        assert_eq!(
            error("R 0 8\nstop\n"),
            "a.io:2: 'stop': must be R, W, go, one, sleep or wait (a comment starts with '#')"
        );
        assert!(error("R 0 x").contains("length x: must be a whole number"));
        assert!(error("R 0 0").contains("at least one sector"));
        assert!(error("R 0 8 4 0").contains("class 4"));
        assert!(error("R 0 8 0 1").contains("the kernel refuses"));
        assert!(error("R 0").contains("2 words"));
        assert!(error("sleep -1").contains("whole microseconds"));
        assert!(error("# nothing").contains("no I/O"));
    }
}
