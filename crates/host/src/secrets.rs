// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text that names a target, as it may be shown.
//!
//! Guarantees: whatever is in the position of a target's password or key is removed as a whole. The target may be alone or
//! within other text (a command line, a stripe of targets). Does not do: know whether it is one; an option that is mistaken for
//! `key` hides its value, too.

/// What is shown instead.
const HIDDEN: &str = "***";
/// Options of RBD targets (Ceph's configuration) whose value is a secret.
const KEYS: [&str; 2] = [":key=", ":secret="];

/// `text` without passwords of `iscsi://` URLs and keys of `rbd:` targets.
pub fn without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = url_in(rest) {
        let (before, url) = rest.split_at(at.end);
        out += before;
        // A password may have any character but a space, so what is hidden ends at the last place where it can.
        let end = url_in(url).map_or(url.len(), |next| next.start);
        let end = url[..end].find(char::is_whitespace).unwrap_or(end);
        let (this, behind) = url.split_at(end);
        match (this.find('%'), this.rfind('@')) {
            (Some(from), Some(to)) if from < to => {
                out += &this[..=from];
                out += HIDDEN;
                out += &this[to..];
            }
            _ => out += this,
        }
        rest = behind;
    }
    out += rest;
    if out.contains("rbd:") || out.contains("rbd\\:") { without_keys(out) } else { out }
}

/// Whether [`without_secrets`] has hidden something in `text`, so that it is no target to log in with.
pub fn is_hidden(text: &str) -> bool {
    let key = |key: &&str| text.contains(&format!("{key}{HIDDEN}"));
    text.contains(&format!("%{HIDDEN}@")) || KEYS.iter().any(key)
}

/// Where the first `iscsi://` is; in job files colons have a backslash.
fn url_in(text: &str) -> Option<std::ops::Range<usize>> {
    let place = |url: &str| text.find(url).map(|at| at..at + url.len());
    place("iscsi://").into_iter().chain(place("iscsi\\://")).min_by_key(|at| at.start)
}

fn without_keys(mut text: String) -> String {
    for key in KEYS {
        let mut from = 0;
        while let Some(at) = text[from..].find(key) {
            let begin = from + at + key.len();
            let ends = |c: char| c == ':' || c.is_whitespace();
            let mut is_escaped = false;
            let end = text[begin..].find(|c| {
                let found = ends(c) && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                found
            });
            let end = end.map_or(text.len(), |n| begin + n);
            text.replace_range(begin..end, HIDDEN);
            from = begin + HIDDEN.len();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{is_hidden, without_secrets};

    #[test]
    fn passwords_and_keys_are_hidden_and_the_rest_is_as_it_was() {
        for (text, shown) in [
            ("iscsi://me%secret@h:1/iqn.a:b/1?sessions=2", "iscsi://me%***@h:1/iqn.a:b/1?sessions=2"),
            ("iscsi://me%se/c@r%et@h/iqn/1", "iscsi://me%***@h/iqn/1"),
            ("iscsi://me@h/iqn/1", "iscsi://me@h/iqn/1"),
            ("iscsi://h/iqn/1?x=100%25", "iscsi://h/iqn/1?x=100%25"),
            (
                "mqblk run j.fio --target=stripe:iscsi://a%b@h/i/1+iscsi://c%d@h/i/2 --set x=1@2%",
                "mqblk run j.fio --target=stripe:iscsi://a%***@h/i/1+iscsi://c%***@h/i/2 --set x=1@2%",
            ),
            ("rbd:p/i:id=me:key=SEC\\:RET==:images=2", "rbd:p/i:id=me:key=***:images=2"),
            ("rbd:p/i:key=SECRET", "rbd:p/i:key=***"),
            ("/a:key=b", "/a:key=b"),
            (
                "[a]\nfilename=iscsi\\://me%secret@h\\:1/i\\:b/1\nbs=4k",
                "[a]\nfilename=iscsi\\://me%***@h\\:1/i\\:b/1\nbs=4k",
            ),
            ("[a]\nfilename=rbd\\:p/i\\:key=SEC\nbs=4k", "[a]\nfilename=rbd\\:p/i\\:key=***\nbs=4k"),
        ] {
            assert_eq!(without_secrets(text), shown);
            assert_eq!(is_hidden(shown), text != shown, "{shown}");
        }
    }
}
