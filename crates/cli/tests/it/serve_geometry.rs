// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that are smaller for clients than on the host's storage: what clients see, a guest of such a disk, and kill -9. Needs root and
//! loop devices.

use crate::common;
use crate::machine::Machine;
use crate::serve_image::LargeSectors;

use common::{Dir, Running, Started};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

const IMAGE_BYTES: u64 = 8 << 20;

/// A configuration of a disk over `fs/a.img` with an NBD and a vhost-user export.
fn config(more: &str) -> String {
    format!(
        "[[disk]]\nname = \"d\"\ntarget = \"fs/a.img\"\n{more}\n\
         [[export]]\ntype = \"nbd\"\nsocket = \"d.sock\"\nexport_name = \"d\"\n\
         [[export]]\ntype = \"vhost-user-blk\"\nsocket = \"v.sock\"\n"
    )
}

fn image(dir: &Dir) -> File {
    let image = File::options().create(true).truncate(true).write(true).open(dir.path("fs/a.img")).unwrap();
    image.set_len(IMAGE_BYTES).unwrap();
    image
}

fn serve(dir: &Dir) -> Started {
    dir.start(&["serve", "c.toml", "--control", "ctl.sock"], "serving on")
}

fn end(daemon: Started) {
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Returns the sizes of blocks: logical and physical as clients see them, and the targets'.
fn sizes(dir: &Dir) -> [Value; 3] {
    let list = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    ["logical_block_size", "physical_block_size", "target_block_size"].map(|key| list["disks"][0][key].clone())
}

#[test]
fn clients_see_the_blocks_that_an_image_was_made_for() {
    let fs = LargeSectors::new("geometry");
    for (table_at, more, expected) in [
        (None, "", [512, 4096, 4096]),
        (Some(512), "", [512, 4096, 4096]),
        (Some(4096), "", [4096, 4096, 4096]),
        (None, "logical_block_size = 4096", [4096, 4096, 4096]),
        (Some(4096), "logical_block_size = 512\nphysical_block_size = 512", [512, 512, 4096]),
        (None, "direct = false\nlogical_block_size = 1024\nphysical_block_size = 65536", [1024, 65536, 512]),
    ] {
        let image = image(&fs.dir);
        if let Some(at) = table_at {
            image.write_all_at(b"EFI PART", at).unwrap();
        }
        fs.dir.file("c.toml", &config(more));
        let daemon = serve(&fs.dir);
        assert_eq!(sizes(&fs.dir), expected.map(Value::from), "table at {table_at:?}, {more}");
        end(daemon);
    }
    for (more, why) in [
        ("logical_block_size = 520", "c.toml:4: logical_block_size=520: must be 512, 1024, 2048 or 4096 (disk 'd')"),
        (
            "physical_block_size = 256",
            "c.toml:4: physical_block_size=256: must be a power of two, 512..=65536 (disk 'd')",
        ),
    ] {
        fs.dir.file("c.toml", &config(more));
        fs.dir.mqblk(&["serve", "c.toml", "--dry-run"]).exits(2).says(&[why]);
    }
    // Whole sectors, and not whole blocks of the size that is asked for: neither at the start nor later.
    let image = image(&fs.dir);
    fs.dir.file("c.toml", &config("direct = false\nlogical_block_size = 4096"));
    let daemon = serve(&fs.dir);
    image.set_len(IMAGE_BYTES + 512).unwrap();
    for size in [&[][..], &["8389120"]] {
        let resize = [&["ctl", "--control", "ctl.sock", "resize", "d"], size].concat();
        fs.dir.mqblk(&resize).exits(2).says(&["must be a multiple of 4096, the largest logical_block_size of"]);
    }
    // Cause: the driver had stored the rejected size. Effect: returning to the disk's own size looked like a decrease, and needed
    // --force.
    image.set_len(IMAGE_BYTES).unwrap();
    let kept = fs.dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d"]).exits(0);
    kept.prints(&[&format!("disk 'd' keeps its size of {IMAGE_BYTES} bytes")]);
    image.set_len(IMAGE_BYTES + 512).unwrap();
    end(daemon);
    fs.dir.mqblk(&["serve", "c.toml"]).exits(2).says(&["the disk has 8389120 bytes, 512 more than whole blocks"]);
}

/// One disk, with blocks of 512 for one client and of 4096 for another.
#[test]
fn each_export_shows_its_own_blocks() {
    let dir = Dir::new("geometry-exports");
    let export = |kind: &str, name: &str, more: &str| {
        format!("[[export]]\ntype = \"{kind}\"\nname = \"{name}\"\nsocket = \"{name}.sock\"\n{more}\n")
    };
    let disk = "[[disk]]\nname = \"d\"\ntarget = \"ram:size=8m\"\n";
    let large = "logical_block_size = 4096\nphysical_block_size = 16384";
    let exports = [export("nbd", "a", ""), export("nbd", "b", large), export("vhost-user-blk", "c", large)].concat();
    let fine = export("vhost-user-blk", "e", "logical_block_size = 1024\nphysical_block_size = 2048");
    dir.file("c.toml", &format!("{disk}{exports}{fine}"));
    let daemon = serve(&dir);
    let list = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    let shown = |at: usize| ["logical_block_size", "physical_block_size"].map(|key| list["exports"][at][key].clone());
    let expected = [[512, 4096], [4096, 16384], [4096, 16384], [1024, 2048]];
    assert_eq!([0, 1, 2, 3].map(shown), expected.map(|sizes| sizes.map(Value::from)));
    let uri = |name: &str| format!("nbd+unix:///d?socket={}", dir.path(&format!("{name}.sock")).display());
    for (name, min, preferred) in [("a", 1, 4096), ("b", 4096, 16384)] {
        let told = dir.program("nbdinfo", &["--json", &uri(name)]).exits(0).json();
        let told = ["block_size_minimum", "block_size_preferred"].map(|key| told["exports"][0][key].clone());
        assert_eq!(told, [min, preferred].map(Value::from), "{name}");
    }
    for (name, blocks) in [("c", (4096, 16384)), ("e", (1024, 2048))] {
        let info = vuclient::disk::info(dir.path(&format!("{name}.sock")).to_str().unwrap()).unwrap();
        assert_eq!((info.block_size, info.physical_block), blocks, "{name}");
    }
    // Half a block is served where any bytes are.
    let read = "import nbd,sys\nh=nbd.NBD()\nh.set_strict_mode(0)\nh.connect_uri(sys.argv[1])\nh.pread(4096,4096)\n\
                try:\n    h.pread(512,512)\n    print('served')\nexcept nbd.Error as e:\n    print(e.errno)";
    for (name, says) in [("a", "served"), ("b", "EINVAL")] {
        assert_eq!(dir.program("/usr/bin/python3", &["-c", read, &uri(name)]).exits(0).out.trim(), says, "{name}");
    }
    let resize = ["ctl", "--control", "ctl.sock", "resize", "d", "8389120"];
    dir.mqblk(&resize).exits(2).says(&["must be a multiple of 4096, the largest logical_block_size of"]);
    end(daemon);
    dir.file("c.toml", &format!("{}{exports}", disk.replace("8m", "8389120")));
    let why = "logical_block_size=4096: the disk has 8389120 bytes, 512 more than whole blocks; set a smaller one";
    dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[why]);
}

/// Two clients write neighbouring sectors of the same blocks, and the daemon is killed under them. A sector is never torn, older than
/// acknowledged, or changed by its neighbours' writes.
#[test]
fn neighbouring_sectors_survive_a_killed_daemon() {
    let fs = LargeSectors::new("geometry-kill");
    image(&fs.dir);
    fs.dir.file("c.toml", &config(""));
    let uri = format!("nbd+unix:///d?socket={}", fs.dir.path("d.sock").display());
    survive_kills(&fs.dir, &uri, 4, &|| {
        let daemon = serve(&fs.dir);
        assert_eq!(sizes(&fs.dir), [512, 4096, 4096].map(Value::from));
        daemon
    });
}

/// Two clients write neighbouring sectors of the disk at `uri`, and the daemon that `serve` starts is killed under them, in several rounds. A
/// sector is never torn or older than acknowledged.
pub fn survive_kills(dir: &Dir, uri: &str, rounds: usize, serve: &dyn Fn() -> Started) {
    dir.file("writer.py", include_str!("serve_geometry/writer.py"));
    dir.file("checker.py", include_str!("serve_geometry/checker.py"));
    let mut holds = [json!({}), json!({})];
    for round in 0..rounds {
        let daemon = serve();
        let mut writers: Vec<(Running, BufReader<_>)> = (0..2)
            .map(|parity| {
                let mut command = Command::new("/usr/bin/python3");
                command.args(["writer.py", uri, &parity.to_string(), &holds[parity].to_string()]);
                command.current_dir(dir.as_path()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut writer = Running::start(&mut command);
                let err = BufReader::new(writer.stderr.take().unwrap());
                (writer, err)
            })
            .collect();
        for (_, err) in &mut writers {
            let mut line = String::new();
            err.read_line(&mut line).unwrap();
            assert_eq!(line, "under way\n", "round {round}");
        }
        daemon.signal("KILL");
        assert_eq!(daemon.ends().status, -1);
        let wrote: Vec<_> = writers.into_iter().map(|(w, _)| String::from_utf8(w.output().stdout).unwrap()).collect();
        let daemon = serve();
        let checked = dir.program("/usr/bin/python3", &["checker.py", uri, &wrote[0], &wrote[1]]).exits(0).json();
        holds = [checked[0].clone(), checked[1].clone()];
        assert!(holds.iter().all(|h| h.as_object().unwrap().len() == 128), "each writes half of 256 sectors");
        end(daemon);
    }
}

/// Run by `cargo xtask test --deep`.
#[cfg(target_arch = "x86_64")]
mod deep {
    use super::*;

    /// A guest's disk of 512-byte sectors, with a partition that begins inside a block of the host's storage.
    #[test]
    fn a_guest_uses_sectors_that_are_smaller_than_the_hosts() {
        let fs = LargeSectors::new("geometry-guest");
        let image = image(&fs.dir);
        // One partition of type 0x83, sectors 63 to 16063.
        let mut table = [0u8; 66];
        table[4] = 0x83;
        table[8..12].copy_from_slice(&63u32.to_le_bytes());
        table[12..16].copy_from_slice(&16001u32.to_le_bytes());
        table[64..].copy_from_slice(&[0x55, 0xaa]);
        image.write_all_at(&table, 446).unwrap();
        fs.dir.file("c.toml", &config(""));
        let daemon = serve(&fs.dir);
        let job = include_str!("serve_geometry/guest.sh");
        let guest = Machine { queues: 2, ..Machine::default() }.start(&fs.dir, "v.sock", job, &[]);
        guest.passes(&"sectors of 512 over blocks of 4096");
        end(daemon);
    }
}
