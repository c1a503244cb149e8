// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text that names a target, as it may be shown.
//!
//! Guarantees: whatever is in the position of a target's password or key is removed as a whole, also from a target that is mistyped. The
//! target may be alone or within other text (a command line, a stripe of targets, an error). Masking a masked text changes nothing.
//! Does not do: know whether it is a secret; an option that is mistaken for `key` hides its value, too.
//!
//! [`without_secrets`] is the only function that masks. [`Masked`] has its result in the type; [`Error`](crate::error::Error) prints
//! through it.

use std::fmt;

/// What is shown instead.
const HIDDEN: &str = "***";
/// Options whose value is a secret: those of Ceph's configuration, and what may be mistaken for an option. Names may have words before
/// these, as in `chap_password`.
const SECRET_NAMES: [&str; 6] = ["key", "secret", "password", "passwd", "passphrase", "psk"];

/// The text of a target for messages. The original is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masked(String);

impl Masked {
    /// Masks a text.
    pub fn new(text: &str) -> Masked {
        Masked(without_secrets(text))
    }

    /// Returns the masked text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Masked {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text of a target as it was typed, with its secrets. Its `Debug` shows it masked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Unmasked(String);

impl Unmasked {
    /// Keeps a text.
    pub fn new(text: &str) -> Unmasked {
        Unmasked(text.to_owned())
    }

    /// Returns the text with its secrets, to open the target. It must not be shown.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Unmasked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        without_secrets(&self.0).fmt(f)
    }
}

/// `text` without passwords in URLs (`iscsi://USER%PASSWORD@`, `nbds://USER:PASSWORD@`) and values of options such as `rbd:...:key=`.
pub fn without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(url) = Url::first_in(rest) {
        let (before, body) = rest.split_at(url.body);
        out += before;
        let end = Url::first_in(body).map_or(body.len(), |next| next.scheme);
        let end = body[..end].find('\n').unwrap_or(end);
        let (this, behind) = body.split_at(end);
        match url.kind.password(this) {
            Some((from, to)) => {
                out += &this[..from];
                out += HIDDEN;
                out += &this[to..];
            }
            None => out += this,
        }
        rest = behind;
    }
    out += rest;
    without_values(&out)
}

/// Whether [`without_secrets`] has hidden something in `text`, so that it is no target to log in with.
pub fn is_hidden(text: &str) -> bool {
    text.contains(&format!("{HIDDEN}@")) || text.contains(&format!("={HIDDEN}"))
}

/// How a URL separates the user from the password.
#[derive(Clone, Copy)]
enum Kind {
    /// `%`; the password may have any other character.
    Iscsi,
    /// `:`, as in RFC 3986; also before a port.
    Nbd,
    /// The scheme may be mistyped.
    Unknown,
}

/// A URL within a text.
struct Url {
    /// Where its scheme begins.
    scheme: usize,
    /// Where the part behind `://` begins.
    body: usize,
    kind: Kind,
}

impl Url {
    /// The first URL of a text; in job files colons have a backslash. A character of `://` may be missing.
    fn first_in(text: &str) -> Option<Url> {
        text.char_indices().find_map(|(at, _)| {
            let separator = ["://", ":/", "//"].into_iter().find(|s| text[at..].starts_with(s))?;
            let before = text[..at].trim_end_matches('\\');
            let scheme = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
            // A password may have such text in it; a URL begins a text or an item of a list, or is a mistyped one as a path.
            let is_before = |c: char| c.is_whitespace() || "+'\"=,:([{".contains(c);
            let begins = scheme.is_empty() || scheme.ends_with(is_before) || scheme.ends_with("./");
            let kind = match before[scheme.len()..].to_ascii_lowercase().as_str() {
                "" => return None,
                "iscsi" => Kind::Iscsi,
                "nbd" | "nbds" | "unix" | "vsock" => Kind::Nbd,
                _ => Kind::Unknown,
            };
            begins.then(|| Url { scheme: scheme.len(), body: at + separator.len(), kind })
        })
    }
}

impl Kind {
    /// Where the password is in the part of a URL behind `://`, up to the end of the line. It ends at the last place where it can.
    fn password(self, body: &str) -> Option<(usize, usize)> {
        let authority = &body[..body.find(|c: char| "/?#".contains(c) || c.is_whitespace()).unwrap_or(body.len())];
        let from = match self {
            Kind::Iscsi => authority.find('%'),
            Kind::Nbd | Kind::Unknown if authority.starts_with('[') => None,
            Kind::Nbd => authority.find(':'),
            Kind::Unknown => authority.find([':', '%']),
        }? + 1;
        let is_last_of = |part: &str| part.rfind('@').filter(|to| *to >= from);
        if authority[..from].ends_with(':') {
            if let Some(to) = is_last_of(authority) {
                return Some((from, to));
            }
            // A port, unless it is the beginning of a password with a '/' or a space in it.
            if authority[from..].bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
        }
        let word = &body[..body.find(char::is_whitespace).unwrap_or(body.len())];
        let to = is_last_of(word).or_else(|| is_last_of(body))?;
        Some((from, to))
    }
}

/// `text` without the values of options that are secrets.
fn without_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find([':', '?', '&', ';']) {
        let (before, option) = rest.split_at(at + 1);
        out += before;
        rest = option;
        let Some((name, value)) = option.split_once('=').filter(|(name, _)| is_secret(name)) else { continue };
        out += name;
        out += "=";
        out += HIDDEN;
        let is_end = |c: char| c.is_whitespace() || if before.ends_with(':') { c == ':' } else { "&;".contains(c) };
        let mut is_escaped = false;
        let end = value.find(|c| {
            let found = is_end(c) && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            found
        });
        // The end keeps its backslash in a job file.
        rest = &value[end.unwrap_or(value.len())..];
    }
    out + rest
}

/// Whether the value of an option is a secret, whatever the kind of target, which may be mistyped. Any character of its name may have a
/// backslash.
fn is_secret(name: &str) -> bool {
    let name = name.replace('\\', "").to_ascii_lowercase();
    let is_name = !name.starts_with(' ') && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c));
    is_name && name.rsplit(['_', '-', '.', ' ']).next().is_some_and(|word| SECRET_NAMES.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::{Masked, is_hidden, without_secrets};
    use sim::rng::Rng;

    #[test]
    fn passwords_and_keys_are_hidden_and_the_rest_is_as_it_was() {
        for (text, shown) in [
            ("iscsi://me%secret@h:1/iqn.a:b/1?sessions=2", "iscsi://me%***@h:1/iqn.a:b/1?sessions=2"),
            ("iscsi://me%se/c@r%et@h/iqn/1", "iscsi://me%***@h/iqn/1"),
            ("iscsi://me%sec ret@h/iqn/1", "iscsi://me%***@h/iqn/1"),
            ("iscsi://me%x://y@h/iqn/1", "iscsi://me%***@h/iqn/1"),
            ("ISCSI://me%secret@h/iqn/1", "ISCSI://me%***@h/iqn/1"),
            ("iscsi://me@h/iqn/1", "iscsi://me@h/iqn/1"),
            ("iscsi://h/iqn/1?x=100%25", "iscsi://h/iqn/1?x=100%25"),
            ("stripe:iscsi://h/iqn/%*4 --set x=1@2", "stripe:iscsi://h/iqn/%*4 --set x=1@2"),
            ("iscsi://h/iqn/1?chap-password=a;b=2", "iscsi://h/iqn/1?chap-password=***;b=2"),
            (
                "mqblk run j.fio --target=stripe:iscsi://a%b@h/i/1+iscsi://c%d@h/i/2 --set x=1@2%",
                "mqblk run j.fio --target=stripe:iscsi://a%***@h/i/1+iscsi://c%***@h/i/2 --set x=1@2%",
            ),
            ("nbds://me:secret@h:1/d?timeout=2", "nbds://me:***@h:1/d?timeout=2"),
            ("nbds+unix://me:secret@/d?socket=s", "nbds+unix://me:***@/d?socket=s"),
            ("nbds://me:se/c ret@h/d", "nbds://me:***@h/d"),
            ("nbds://me@h:1/a@b", "nbds://me@h:1/a@b"),
            ("nbd://[::1]:7/a@b", "nbd://[::1]:7/a@b"),
            ("iscis://me%se/cret@h/iqn/1", "iscis://me%***@h/iqn/1"),
            ("i-scs1://me%secret@h/iqn/1", "i-scs1://me%***@h/iqn/1"),
            ("target=iscsi:/me%secret@h/iqn/1", "target=iscsi:/me%***@h/iqn/1"),
            ("'iscsi//me%secret@h/iqn/1'", "'iscsi//me%***@h/iqn/1'"),
            ("nbds:/me:secret@h/d", "nbds:/me:***@h/d"),
            ("/a//b%c@d", "/a//b%c@d"),
            ("write './iscis://me%secret@h/iqn/1'", "write './iscis://me%***@h/iqn/1'"),
            ("target 'https://me:secret@h/d': no", "target 'https://me:***@h/d': no"),
            ("rbd:p/i:id=me:key=SEC\\:RET==:images=2", "rbd:p/i:id=me:key=***:images=2"),
            ("rbd:p/i:key=SECRET", "rbd:p/i:key=***"),
            ("rbd:p/i:k\\ey=SECRET", "rbd:p/i:k\\ey=***"),
            ("rbd:p/i:keyring=/a:keyfile=b", "rbd:p/i:keyring=/a:keyfile=b"),
            ("rdb:p/i:key=SECRET", "rdb:p/i:key=***"),
            ("tls: key=/a and nr_requests=1", "tls: key=/a and nr_requests=1"),
            (
                "[a]\nfilename=iscsi\\://me%secret@h\\:1/i\\:b/1\nbs=4k",
                "[a]\nfilename=iscsi\\://me%***@h\\:1/i\\:b/1\nbs=4k",
            ),
            ("[a]\nfilename=rbd\\:p/i\\:key=SEC\nbs=4k", "[a]\nfilename=rbd\\:p/i\\:key=***\nbs=4k"),
        ] {
            assert_eq!(without_secrets(text), shown);
            assert_eq!(Masked::new(shown).as_str(), shown, "masking again changes nothing");
            assert_eq!(is_hidden(shown), text != shown, "{shown}");
        }
    }

    #[test]
    fn masking_again_changes_nothing_whatever_the_text() {
        const WORDS: [&str; 24] = [
            "iscsi", "nbds", "stripe", "me", "hunter", "2", "\u{e4}", "key", "psk", "://", ":/", "//", ":", "/", "%",
            "@", "?", "&", "=", "+", " ", "\n", "\\", "***",
        ];
        let mut rng = Rng::new(20_261_127);
        for _ in 0..100_000 {
            let text: String = (0..rng.below(14)).map(|_| rng.pick(&WORDS)).collect();
            let once = without_secrets(&text);
            assert_eq!(without_secrets(&once), once, "of {text:?}");
        }
    }
}
