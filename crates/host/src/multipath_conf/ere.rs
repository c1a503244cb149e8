// SPDX-License-Identifier: Apache-2.0 OR MIT
//! POSIX extended regular expressions: those that vendor, product and revision of multipath.conf are.
//!
//! Guarantees: whether one matches takes time in proportion to its size times the length of the text, whatever both
//! are; what is compiled has a bound. Bytes are compared, as in the C locale. An expression that regcomp(3) refuses
//! is refused with its reason; some that it leaves undefined (`a||b`) match the empty text there.
//!
//! Does not do: say where it matched; back references; collating elements and equivalence classes (`[[.x.]]`,
//! `[[=x=]]`); what GNU adds behind a backslash (`\w`). Rejected: the crate `regex`, whose syntax is another one
//! (`[]a]`, `\d`, `(?i)`). Source: POSIX.1-2017, chapter 9.4; regex(7).

/// Most instructions of one expression.
const MOST: usize = 10_000;
/// Most parts that are looked at to compile it, those that make no step counted.
const MOST_VISITS: u32 = 10 * MOST as u32;
/// Most groups in groups, and most repetitions of repetitions.
const DEEPEST: u32 = 50;
/// Most repetitions that may be asked for by number (`RE_DUP_MAX` of POSIX).
const MOST_TIMES: u32 = 255;

/// Bytes, one bit for each.
type Set = [u64; 4];

/// What stands behind `[:`, and which bytes are meant.
type Class = (&'static [u8], fn(&u8) -> bool);

#[derive(Clone, Debug)]
enum Node {
    Empty,
    One(Set),
    Start,
    End,
    All(Vec<Node>),
    Any(Vec<Node>),
    Times(Box<Node>, u32, Option<u32>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    One(Set),
    Start,
    End,
    Jump(usize),
    Either(usize, usize),
    Found,
}

/// A compiled expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ere(Vec<Step>);

struct Parser<'a> {
    rest: &'a [u8],
    depth: u32,
}

fn has(set: &Set, byte: u8) -> bool {
    set[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
}

fn add(set: &mut Set, byte: u8) {
    set[usize::from(byte >> 6)] |= 1 << (byte & 63);
}

fn one(byte: u8) -> Node {
    let mut set = Set::default();
    add(&mut set, byte);
    Node::One(set)
}

impl Parser<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, text: &[u8]) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        let mut all = vec![self.sequence()?];
        while self.take(b"|") {
            all.push(self.sequence()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Any(all) })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut all = Vec::new();
        while let Some(byte) = self.rest.first() {
            if *byte == b'|' || *byte == b')' && self.depth > 0 {
                break;
            }
            let mut node = self.atom()?;
            let mut repeated = 0;
            while let Some((min, max)) = self.times()? {
                repeated += 1;
                if repeated > DEEPEST {
                    return Err(format!("has more than {DEEPEST} of '*', '+', '?' and '{{' in a row"));
                }
                node = Node::Times(Box::new(node), min, max);
            }
            all.push(node);
        }
        Ok(if all.is_empty() { Node::Empty } else { Node::All(all) })
    }

    fn atom(&mut self) -> Result<Node, String> {
        Ok(match self.next() {
            Some(b'(') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(format!("has more than {DEEPEST} groups in groups"));
                }
                let node = self.alternatives()?;
                if !self.take(b")") {
                    return Err("has a '(' without its ')'; put '\\(' for the character itself".into());
                }
                self.depth -= 1;
                node
            }
            Some(b'[') => Node::One(self.bracket()?),
            Some(b'.') => Node::One([u64::MAX; 4]),
            Some(b'^') => Node::Start,
            Some(b'$') => Node::End,
            Some(b'\\') => one(self.next().ok_or("ends in '\\'; put '\\\\' for the character itself")?),
            Some(c @ (b'*' | b'+' | b'?' | b'{')) => {
                let c = char::from(c);
                return Err(format!("has '{c}' with nothing before it to repeat; '.*' stands for anything"));
            }
            Some(byte) => one(byte),
            None => Node::Empty,
        })
    }

    /// How often what stands before may stand there.
    fn times(&mut self) -> Result<Option<(u32, Option<u32>)>, String> {
        Ok(Some(match self.rest.first() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            Some(b'{') => return self.interval().map(Some),
            _ => return Ok(None),
        })
        .inspect(|_| self.rest = &self.rest[1..]))
    }

    fn interval(&mut self) -> Result<(u32, Option<u32>), String> {
        let wrong = || format!("has a '{{' that does not begin {{n}}, {{n,}} or {{n,m}} with n <= m <= {MOST_TIMES}");
        let end = self.rest.iter().position(|b| *b == b'}').ok_or_else(wrong)?;
        let text = str::from_utf8(&self.rest[1..end]).map_err(|_| wrong())?;
        self.rest = &self.rest[end + 1..];
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|n| is_number && *n <= MOST_TIMES).ok_or_else(wrong)
        };
        let (min, max) = match text.split_once(',') {
            None => (number(text)?, Some(number(text)?)),
            Some((min, "")) => (number(min)?, None),
            Some((min, max)) => (number(min)?, Some(number(max)?)),
        };
        if max.is_some_and(|max| max < min) { Err(wrong()) } else { Ok((min, max)) }
    }

    /// Behind a `[`.
    fn bracket(&mut self) -> Result<Set, String> {
        const UNCLOSED: &str = "has a '[' without its ']'; put '\\[' for the character itself";
        let not = self.take(b"^");
        let mut set = Set::default();
        let mut first = true;
        loop {
            let byte = self.next().ok_or(UNCLOSED)?;
            if byte == b']' && !first {
                break;
            }
            first = false;
            if byte == b'[' && self.take(b":") {
                self.class(&mut set)?;
                continue;
            }
            if byte == b'[' && matches!(self.rest.first(), Some(b'.' | b'=')) {
                return Err("has [. .] or [= =], which are not known here; name the characters".into());
            }
            let last = match self.rest {
                [b'-', end, ..] if *end != b']' => {
                    let end = *end;
                    self.rest = &self.rest[2..];
                    end
                }
                _ => byte,
            };
            if last < byte {
                let (from, to) = (byte.escape_ascii(), last.escape_ascii());
                return Err(format!("has the range {from}-{to}, which ends before it begins"));
            }
            (byte..=last).for_each(|b| add(&mut set, b));
        }
        Ok(if not { set.map(|bits| !bits) } else { set })
    }

    fn class(&mut self, set: &mut Set) -> Result<(), String> {
        const CLASSES: [Class; 12] = [
            (b"alpha:]", u8::is_ascii_alphabetic),
            (b"digit:]", u8::is_ascii_digit),
            (b"alnum:]", u8::is_ascii_alphanumeric),
            (b"upper:]", u8::is_ascii_uppercase),
            (b"lower:]", u8::is_ascii_lowercase),
            (b"space:]", |b| b.is_ascii_whitespace() || *b == 0xb),
            (b"blank:]", |b| matches!(b, b' ' | b'\t')),
            (b"punct:]", u8::is_ascii_punctuation),
            (b"print:]", |b| matches!(b, b' '..=b'~')),
            (b"graph:]", u8::is_ascii_graphic),
            (b"cntrl:]", u8::is_ascii_control),
            (b"xdigit:]", u8::is_ascii_hexdigit),
        ];
        let found = CLASSES.into_iter().find(|(name, _)| self.take(name));
        let (_, holds) = found.ok_or(
            "has a class that is none of alpha, digit, alnum, upper, lower, space, blank, punct, \
             print, graph, cntrl, xdigit",
        )?;
        (0..=u8::MAX).filter(holds).for_each(|b| add(set, b));
        Ok(())
    }
}

impl Ere {
    /// Compiles it.
    ///
    /// # Errors
    /// What is wrong with it, to stand behind its name.
    pub fn new(text: &str) -> Result<Ere, String> {
        let node = Parser { rest: text.as_bytes(), depth: 0 }.alternatives()?;
        let mut steps = Vec::new();
        let mut visits = MOST_VISITS;
        compile(&node, &mut steps, &mut visits)?;
        steps.push(Step::Found);
        Ok(Ere(steps))
    }

    /// Whether it matches any part of the text.
    pub fn is_match(&self, text: &str) -> bool {
        let text = text.as_bytes();
        let (mut now, mut next) = (Threads::new(self.0.len()), Threads::new(self.0.len()));
        for at in 0..=text.len() {
            if now.add(&self.0, 0, at, text.len()) {
                return true;
            }
            let Some(byte) = text.get(at) else { return false };
            for step in now.list.drain(..) {
                if let Step::One(set) = &self.0[step]
                    && has(set, *byte)
                    && next.add(&self.0, step + 1, at + 1, text.len())
                {
                    return true;
                }
            }
            now.seen.fill(false);
            std::mem::swap(&mut now, &mut next);
        }
        false
    }
}

fn compile(node: &Node, steps: &mut Vec<Step>, visits: &mut u32) -> Result<(), String> {
    *visits = visits.saturating_sub(1);
    if steps.len() > MOST || *visits == 0 {
        return Err(format!("is too large: it would take more than {MOST} steps; repeat less"));
    }
    match node {
        Node::Empty => {}
        Node::One(set) => steps.push(Step::One(*set)),
        Node::Start => steps.push(Step::Start),
        Node::End => steps.push(Step::End),
        Node::All(all) => all.iter().try_for_each(|n| compile(n, steps, visits))?,
        Node::Any(all) => {
            let mut ends = Vec::new();
            for (i, n) in all.iter().enumerate() {
                let fork = steps.len();
                if i + 1 < all.len() {
                    steps.push(Step::Found);
                }
                compile(n, steps, visits)?;
                if i + 1 < all.len() {
                    ends.push(steps.len());
                    steps.push(Step::Found);
                    steps[fork] = Step::Either(fork + 1, steps.len());
                }
            }
            let end = steps.len();
            ends.into_iter().for_each(|at| steps[at] = Step::Jump(end));
        }
        Node::Times(n, min, max) => {
            (0..*min).try_for_each(|_| compile(n, steps, visits))?;
            match max {
                None => {
                    let fork = steps.len();
                    steps.push(Step::Found);
                    compile(n, steps, visits)?;
                    steps.push(Step::Jump(fork));
                    steps[fork] = Step::Either(fork + 1, steps.len());
                }
                Some(max) => {
                    let mut forks = Vec::new();
                    for _ in *min..*max {
                        forks.push(steps.len());
                        steps.push(Step::Found);
                        compile(n, steps, visits)?;
                    }
                    let end = steps.len();
                    forks.into_iter().for_each(|at| steps[at] = Step::Either(at + 1, end));
                }
            }
        }
    }
    Ok(())
}

/// Places in the expression at which it can be, at one place in the text.
struct Threads {
    list: Vec<usize>,
    seen: Vec<bool>,
    stack: Vec<usize>,
}

impl Threads {
    fn new(steps: usize) -> Threads {
        Threads { list: Vec::new(), seen: vec![false; steps], stack: Vec::new() }
    }

    /// Goes on from a step without a byte. True: the end was reached.
    fn add(&mut self, steps: &[Step], step: usize, at: usize, length: usize) -> bool {
        self.stack.push(step);
        while let Some(step) = self.stack.pop() {
            if std::mem::replace(&mut self.seen[step], true) {
                continue;
            }
            match steps[step] {
                Step::One(_) => self.list.push(step),
                Step::Start if at == 0 => self.stack.push(step + 1),
                Step::End if at == length => self.stack.push(step + 1),
                Step::Start | Step::End => {}
                Step::Jump(to) => self.stack.push(to),
                Step::Either(a, b) => self.stack.extend([b, a]),
                Step::Found => return true,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const EXPRESSIONS: &[&str] = &[
        "IBM",
        "^IBM$",
        "^2107900$",
        "(COMPAQ|HP)",
        "^(MSA|HSV)1.*",
        "MSA [25]0[0-9]*",
        ".*",
        "^.?$",
        "HSV2[01]0|HSV3[046]0|HSV4[05]0",
        "^DISK [[:digit:]]{2,3}$",
        "[^A-Z]",
        "[]x]",
        "[^]x]",
        "[a-]",
        "\\.",
        "a{2}",
        "(ab){1,2}c",
        "(a|b)*c",
        "(a*)*b",
        "x?y+",
        "^(A|B|)C$",
        "[[:upper:]][[:lower:]]*[[:space:]]",
        "LUN$|^LUN",
        "a**",
        "()",
        "A)",
        "^^A",
        "(^A|B$)",
    ];
    const TEXTS: &[&str] = &[
        "",
        "IBM",
        "IBM ",
        "2107900",
        "2107900x",
        "HP",
        "COMPAQ MSA",
        "MSA1000",
        "HSV110 (C)COMPAQ",
        "HSV210",
        "HSV360",
        "DISK 12",
        "DISK 1234",
        "abc",
        "ababc",
        "aa",
        "a",
        "aaab",
        "ccc",
        "xy",
        "yy",
        "AC",
        "BC",
        "C",
        "Ab c",
        "my LUN",
        "LUN 3",
        "x]y",
        "a-b",
        "1.5",
        "A)",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ];

    /// Expressions that stand in configurations, and texts; what matches is for grep to say, whose expressions are
    /// the same.
    #[test]
    fn it_matches_what_grep_matches() {
        for expression in EXPRESSIONS.iter().copied() {
            let ours = Ere::new(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
            for text in TEXTS.iter().copied() {
                let mut grep = Command::new("sh");
                grep.env("LC_ALL", "C").args([
                    "-c",
                    "printf '%s\\n' \"$1\" | grep -qE -e \"$2\"",
                    "sh",
                    text,
                    expression,
                ]);
                let status = grep.status().unwrap().code();
                assert!(matches!(status, Some(0 | 1)), "{expression}: {status:?}");
                assert_eq!(ours.is_match(text), status == Some(0), "'{expression}' on '{text}'");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (expression, rule) in [
            ("*", "'*' with nothing before it"),
            ("a|+", "'+' with nothing before it"),
            ("({1})", "'{' with nothing before it"),
            ("(a", "'(' without its ')'"),
            ("[a", "'[' without its ']'"),
            ("[", "'[' without its ']'"),
            ("[[:alpha]", "class that is none of"),
            ("[[=a=]]", "not known here"),
            ("[z-a]", "range z-a"),
            ("a{", "does not begin {n}"),
            ("a{2,1}", "n <= m"),
            ("a{256}", "<= 255"),
            (&*format!("a{}", "+".repeat(1 << 20)), "in a row"),
            (&*format!("a{}", "*".repeat(51)), "in a row"),
            ("(a{0}){255}{255}{255}{255}", "too large"),
            ("a{+1}", "does not begin"),
            ("a\\", "ends in '\\'"),
            ("((a{255}){255}){255}", "too large"),
        ] {
            let e = Ere::new(expression).unwrap_err();
            assert!(e.contains(rule), "{expression}: {e}");
        }
        let deep = "(".repeat(100_000);
        assert!(Ere::new(&deep).unwrap_err().contains("groups in groups"));
    }

    /// Where one that goes back takes longer than anybody lives.
    #[test]
    fn time_is_bounded() {
        let nasty = Ere::new("(a*)*(a*)*(a|aa)+$").unwrap();
        assert!(!nasty.is_match(&("a".repeat(5000) + "b")));
    }
}
