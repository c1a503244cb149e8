// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is printed survives names that each syntax treats in its own way. That the commands work is in tests/serve.rs.

use super::*;

fn nbd(listen: NbdListen, name: &str) -> NbdPlan {
    NbdPlan { listen, socket_mode: None, name: name.to_owned(), tls: None, max_connections: 1 }
}

#[test]
fn uris_are_percent_encoded() {
    let unix = |path: &str, name: &str| uri(&nbd(NbdListen::Unix(path.into()), name));
    assert_eq!(unix("/run/a.sock", ""), "nbd+unix:///?socket=/run/a.sock");
    assert_eq!(unix("/run/a b&c;#.sock", "x y"), "nbd+unix:///x%20y?socket=/run/a%20b%26c%3B%23.sock");
    let tcp = |address: &str| uri(&nbd(NbdListen::Tcp(address.parse().unwrap()), "d"));
    assert_eq!(tcp("10.0.0.1:10809"), "nbd://10.0.0.1:10809/d");
    assert_eq!(tcp("0.0.0.0:1"), "nbd://127.0.0.1:1/d");
    assert_eq!(tcp("[::]:1"), "nbd://[::1]:1/d");
}

#[test]
fn words_are_quoted_for_the_shell() {
    assert_eq!(quoted("/run/a,b=1.sock"), "/run/a,b=1.sock");
    assert_eq!(quoted("a b"), "'a b'");
    assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    assert_eq!(quoted(""), "''");
}

#[test]
fn guests_see_the_disks_own_name_or_the_next_one() {
    assert_eq!(guest_name("vdb", 7), "vdb");
    let names: Vec<_> = [0, 1, 24, 25, 26, 51, 701].iter().map(|i| guest_name("disk.img", *i)).collect();
    assert_eq!(names, ["vdb", "vdc", "vdz", "vdaa", "vdab", "vdba", "vdaaa"]);
    assert_eq!(guest_name("vd1", 0), "vdb");
}

#[test]
fn ids_and_xml_are_what_qemu_and_libvirt_take() {
    assert_eq!(qemu_id("0disk"), "d0disk");
    assert_eq!(xml_text("a'b<c&d"), "a&apos;b&lt;c&amp;d");
}
