// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL on ext4, on a loop device, on a file that `mqblk serve` mounts. PostgreSQL and the daemon are killed in the middle of the
//! work, and all acknowledged rows are there afterwards. Needs root, /dev/fuse and loop devices.

use crate::common;

use common::{Dir, Started, until, until_reported};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// How often the daemon and PostgreSQL are killed.
const ROUNDS: u64 = 3;
/// Rows that must be acknowledged before a kill.
const ROWS: u64 = 150;
/// Clients that insert rows, besides pgbench's.
const CLIENTS: u64 = 3;

const IOTHREADS: &str = "[[iothread]]\nname = \"io0\"\n[[iothread]]\nname = \"io1\"\n";

/// Returns the directory of a version's programs on Debian. Those on the path are wrappers that look for Debian's own clusters.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let newest = versions.filter_map(|v| v.unwrap().file_name().to_str()?.parse::<u32>().ok()).max().unwrap();
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"))
}

/// Returns the processes whose parent is `parent`, from /proc.
fn children(parent: u32) -> Vec<u32> {
    let of = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain anything, come state and parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| of(*pid) == Some(parent)).collect()
}

fn is_there(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The daemon, a loop device on its file, a file system on that, a database in it.
struct Machine {
    dir: Dir,
    daemon: Option<Started>,
    device: String,
    mounted: bool,
    postgres: Option<Child>,
}

impl Machine {
    fn new() -> Machine {
        let dir = Dir::public("serve-postgres");
        dir.mounted_disk(768 << 20, IOTHREADS);
        fs::create_dir(dir.path("fs")).unwrap();
        fs::create_dir(dir.path("sockets")).unwrap();
        dir.program("chown", &["postgres:", "sockets"]).exits(0);
        Machine { dir, daemon: None, device: String::new(), mounted: false, postgres: None }
    }

    fn text(&self, name: &str) -> String {
        self.dir.path(name).to_str().unwrap().to_owned()
    }

    /// Runs a program that must succeed.
    #[track_caller]
    fn run(&self, program: &str, args: &[&str]) -> String {
        self.dir.program(program, args).exits(0).out
    }

    /// Returns a command of PostgreSQL that runs as its user.
    fn postgres_command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "60", "300", "setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(programs().join(program)).args(args).current_dir(self.dir.as_path()).stdin(Stdio::null());
        command.env("PGHOST", self.dir.path("sockets")).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command.env("LC_ALL", "C");
        command
    }

    #[track_caller]
    fn postgres(&self, program: &str, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.postgres_command(program, args).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{program} {args:?}: {status}\n{out}\n{err}\n{}", self.log());
        out.into_owned()
    }

    /// Returns the result of a query, without decoration.
    #[track_caller]
    fn ask(&self, query: &str) -> String {
        self.postgres("psql", &["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", query]).trim().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path("postgres.log")).unwrap_or_default()
    }

    fn start_daemon(&mut self) {
        self.daemon = Some(self.dir.start(&["serve", "c.toml"], "serving on"));
        let mount = self.text("mount");
        self.device = self.run("losetup", &["--find", "--show", "--direct-io=on", &mount]).trim().to_owned();
    }

    fn mount(&mut self) {
        self.run("mount", &[&self.device, &self.text("fs")]);
        self.mounted = true;
    }

    fn start_postgres(&mut self) {
        let log = fs::File::create(self.dir.path("postgres.log")).unwrap();
        let (data, sockets) = (self.text("fs/data"), self.text("sockets"));
        // Not under `timeout`, because this process must be the postmaster.
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(programs().join("postgres"));
        command.args(["-D", &data, "-k", &sockets, "-h", "", "-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB"]);
        command.args(["-c", "huge_pages=off", "-c", "checkpoint_timeout=30s", "-c", "wal_level=replica"]);
        command.env("LC_ALL", "C").current_dir(self.dir.as_path()).stdin(Stdio::null());
        self.postgres = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        until_reported("PostgreSQL accepts clients", || {
            let ended = self.postgres.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}\n{}", fs::read_to_string(self.dir.path("postgres.log")).unwrap());
            self.postgres_command("psql", &["-Xc", "select 1"]).output().unwrap().status.success()
        });
    }

    /// Kills the daemon and all processes of PostgreSQL at the same moment.
    fn kill(&mut self) {
        let daemon = self.daemon.take().unwrap();
        let mut postgres = self.postgres.take().unwrap();
        let mut pids = vec![daemon.id(), postgres.id()];
        pids.extend(children(postgres.id()));
        let args: Vec<String> = pids.iter().map(u32::to_string).collect();
        // A process of PostgreSQL may have ended by itself.
        let _ = Command::new("kill").arg("-9").args(&args).output().unwrap();
        daemon.ends();
        postgres.wait().unwrap();
        until("the killed processes are gone", || !pids.iter().any(|pid| is_there(*pid)));
    }

    /// Removes what is left of a dead daemon's disk. The next daemon detaches the file's mount by itself.
    fn clear(&mut self) {
        let at = self.text("fs");
        self.run("umount", &[&at]);
        self.mounted = false;
        self.run("losetup", &["--detach", &self.device]);
        let stale = fs::metadata(self.dir.path("mount")).unwrap_err();
        assert!(stale.to_string().contains("endpoint is not connected"), "{stale}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Only if the test has failed.
        if let Some(postgres) = &mut self.postgres {
            let pids: Vec<String> = children(postgres.id()).iter().map(u32::to_string).collect();
            let _ = postgres.kill();
            let _ = postgres.wait();
            let _ = Command::new("kill").arg("-9").args(&pids).output();
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.signal("KILL");
            daemon.ends();
        }
        if self.mounted {
            self.dir.program("umount", &["--lazy", &self.text("fs")]);
        }
        self.dir.program("losetup", &["--detach", &self.device]);
        self.dir.program("umount", &["--lazy", &self.text("mount")]);
    }
}

/// A client that inserts rows one by one, each in its own transaction, and records those that were acknowledged.
struct Inserter {
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<BTreeSet<u64>>,
}

impl Inserter {
    fn start(machine: &Machine, first: u64) -> Inserter {
        let mut command = machine.postgres_command("psql", &["-XAtq"]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&acknowledged);
        let thread = std::thread::spawn(move || {
            let (mut to, mut from) = (client.stdin.take().unwrap(), BufReader::new(client.stdout.take().unwrap()));
            let (mut rows, mut answer) = (BTreeSet::new(), String::new());
            // The end of the server ends this loop: the client exits, and no further answer comes and no row can be sent.
            for row in first.. {
                answer.clear();
                let asked = writeln!(to, "insert into acked values ({row}, repeat('x', 200)) returning n;");
                if asked.is_err() || from.read_line(&mut answer).unwrap_or(0) == 0 {
                    break;
                }
                assert_eq!(answer.trim(), row.to_string());
                rows.insert(row);
                count.fetch_add(1, Ordering::Relaxed);
            }
            drop(to);
            client.wait().unwrap();
            rows
        });
        Inserter { acknowledged, thread }
    }
}

#[test]
fn committed_transactions_survive_killing_database_and_daemon() {
    let mut machine = Machine::new();
    machine.start_daemon();
    machine.run("mkfs.ext4", &["-q", "-F", &machine.device]);
    machine.mount();
    let data = machine.text("fs/data");
    machine.run("install", &["-d", "-m", "700", "-o", "postgres", "-g", "postgres", &data]);
    machine.postgres("initdb", &["-D", &data, "-A", "trust", "-k", "--no-locale", "-E", "UTF8"]);
    machine.start_postgres();
    machine.postgres("pgbench", &["-i", "-q", "-s", "2"]);
    machine.ask("create table acked (n bigint primary key, filler text)");
    let mut acknowledged = BTreeSet::new();
    for round in 0..ROUNDS {
        let mut bench = machine.postgres_command("pgbench", &["-n", "-c", "4", "-j", "2", "-T", "250"]);
        let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let first = |client: u64| (round * CLIENTS + client) * 1_000_000;
        let clients: Vec<Inserter> = (0..CLIENTS).map(|c| Inserter::start(&machine, first(c))).collect();
        let wanted = ROWS * (round + 1);
        until("clients insert rows", || clients.iter().all(|c| c.acknowledged.load(Ordering::Relaxed) >= wanted));
        machine.kill();
        let before = acknowledged.len();
        clients.into_iter().for_each(|c| acknowledged.extend(c.thread.join().unwrap()));
        bench.wait().unwrap();
        println!("round {round}: {} rows acknowledged", acknowledged.len() - before);
        machine.clear();

        machine.start_daemon();
        let repaired = machine.dir.program("e2fsck", &["-fy", &machine.device]);
        assert!(repaired.status <= 1, "{repaired:?}");
        machine.run("e2fsck", &["-fn", &machine.device]);
        machine.mount();
        machine.start_postgres();
        assert!(machine.log().contains("automatic recovery in progress"), "{}", machine.log());
        let there: BTreeSet<u64> = machine.ask("select n from acked").lines().map(|n| n.parse().unwrap()).collect();
        let lost: Vec<&u64> = acknowledged.difference(&there).collect();
        assert!(lost.is_empty(), "round {round}: acknowledged and lost: {lost:?}");
        // In every round, each client may have one row more than were acknowledged.
        assert!(there.len() as u64 <= acknowledged.len() as u64 + CLIENTS * (round + 1), "{} rows", there.len());
        machine.postgres("pg_amcheck", &["--install-missing", "--heapallindexed", "--rootdescend", "--all"]);
        // pgbench moves amounts, so their sum stays the same.
        let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers) \
                    and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches) \
                    and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)";
        assert_eq!(machine.ask(sums), "t", "round {round}");
    }
    // Last, a regular shutdown.
    let mut postgres = machine.postgres.take().unwrap();
    machine.run("kill", &["-s", "INT", &postgres.id().to_string()]);
    assert!(postgres.wait().unwrap().success(), "{}", machine.log());
    machine.run("umount", &[&machine.text("fs")]);
    machine.mounted = false;
    machine.run("e2fsck", &["-fn", &machine.device]);
    machine.run("losetup", &["--detach", &machine.device]);
    let daemon = machine.daemon.take().unwrap();
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert_eq!(fs::metadata(machine.dir.path("mount")).unwrap().len(), 0, "it is mounted still");
}
