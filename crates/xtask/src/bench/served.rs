// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of a client against a server. The server is ours or a peer's; it starts and ends with the run.
//!
//! Guarantees: the client starts when the server is ready. The CPU time is that of the server alone, as the kernel counts it, over the
//! client's run, warm-up included. The server is killed by its own process id when the run ends. All servers get the same disk: 1 GiB
//! that does nothing, or a file: by io_uring without the page cache, or by threads with it.
//! Needs: this process reaps no other child meanwhile.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::job::{self, Figures, Idle};
use super::rows::{By, Client, Disk, Served};
use super::side::ticks_of;

/// Longest time a server may take to start.
const START: Duration = Duration::from_secs(30);
/// How long a server without clients is measured, in a run whose figures are judged.
const WATCH: Duration = Duration::from_secs(10);
/// Size of disks that store nothing.
const NULL_BYTES: u64 = 1 << 30;

/// What a run needs.
pub struct Tools<'a> {
    /// Our program. `None`: qemu-storage-daemon runs instead.
    pub mqblk: Option<&'a Path>,
    /// The vhost-user client.
    pub vuclient: &'a Path,
    /// Directory of the run's files.
    pub scratch: &'a Path,
    /// The file of the file rows.
    pub file: &'a str,
    /// Seconds of I/O; `None` = a fraction of a second, as a smoke test.
    pub seconds: Option<u32>,
}

/// Runs the client of `served` once. Returns the figures, and the client's own report.
///
/// # Errors
/// A program did not start, failed, or printed no figures.
pub fn run(served: &Served, tools: &Tools<'_>) -> Result<(Figures, Value), String> {
    let by = if served.by == By::Mqblk && tools.mqblk.is_none() { By::Qsd } else { served.by };
    let server = Server::start(by, served, tools)?;
    if let Client::Idle { .. } = served.client {
        return server.idle(tools.seconds.map_or(Duration::from_millis(100), |_| WATCH));
    }
    let before = server.cpu_us()?;
    let (iops, total_ios, report) = client(served, &server.socket, tools)?;
    let cpu_us = server.cpu_us()? - before;
    // The server's CPU time includes the warm-up, so its requests count, too.
    let all = total_ios + report["warm_up_requests"].as_u64().unwrap_or(0);
    Ok((Figures { iops, total_ios, cpu_us_per_io: cpu_us / all as f64, ..Figures::default() }, report))
}

/// A server, which is killed when the value is dropped.
pub struct Server {
    child: Child,
    socket: PathBuf,
    directory: PathBuf,
    /// Where an export is mounted, if one is.
    mount: Option<PathBuf>,
}

/// The directory of the server's files. It is not below the results, because a socket's path has at most 107 bytes.
fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("mqblk-bench-{}", std::process::id()))
}

/// The socket of every server; only one server runs at a time.
pub fn socket() -> PathBuf {
    directory().join("s.sock")
}

impl Server {
    /// Starts nbdkit with a disk that does nothing, at [`socket`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn beside(tools: &Tools<'_>) -> Result<Server, String> {
        let client = Client::FioNbd { connections: 1, iodepth: 1 };
        let served = Served { by: By::Nbdkit, disk: Disk::Null, iothreads: 1, client, pinned: false };
        Server::start(served.by, &served, tools)
    }

    fn start(by: By, served: &Served, tools: &Tools<'_>) -> Result<Server, String> {
        let (directory, socket) = (directory(), socket());
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).map_err(|e| format!("cannot create {}: {e}", directory.display()))?;
        let mount = matches!(served.client, Client::FioFuse { .. }).then(|| directory.join("mount"));
        if let Some(mount) = &mount {
            fs::write(mount, "").map_err(|e| format!("cannot create {}: {e}", mount.display()))?;
        }
        let mut command = match by {
            By::Mqblk => mqblk(served, tools, &directory)?,
            By::Qsd => qsd(served, tools, &socket),
            By::Nbdkit => {
                let mut command = Command::new("nbdkit");
                command.args(["-f", "-U"]).arg(&socket);
                match served.disk {
                    Disk::Null => command.args(["null", &format!("size={NULL_BYTES}")]),
                    Disk::File | Disk::CachedByThreads => command.args(["file", tools.file]),
                };
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = format!("{command:?}");
        let failed = |why: String| format!("{why}\nrepeat it by: {shown}");
        let child = command.spawn().map_err(|e| failed(format!("cannot run it: {e}")))?;
        let mut server = Server { child, socket, directory, mount };
        server.wait_until_ready(by).map_err(&failed)?;
        server.wait_until_mounted().map_err(&failed)?;
        // Only for NBD: a vhost-user server would accept the probe as its client.
        if is_nbd(served.client) {
            server.knock().map_err(failed)?;
        }
        Ok(server)
    }

    /// Waits until the server listens at the socket. qemu-storage-daemon's monitor may send its greeting before that.
    fn knock(&self) -> Result<(), String> {
        let until = Instant::now() + START;
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() > until => return Err(format!("no process listens: {e}")),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Waits until the export is mounted, if it is a FUSE export.
    fn wait_until_mounted(&self) -> Result<(), String> {
        let Some(mount) = &self.mount else { return Ok(()) };
        let (until, at) = (Instant::now() + START, format!(" {} ", mount.display()));
        loop {
            let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("no mountinfo: {e}"))?;
            if mounts.contains(&at) {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("nothing is mounted at {}", mount.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reads the server's output until it reports that it is ready. Threads read and discard the rest.
    fn wait_until_ready(&mut self, by: By) -> Result<(), String> {
        let (said, hears) = mpsc::channel();
        let sign = match by {
            By::Mqblk => "serving on",
            By::Qsd => "QMP",
            // nbdkit prints nothing; `knock` finds out when it is ready.
            By::Nbdkit => return Ok(()),
        };
        let out = self.child.stdout.take().map(|o| Box::new(o) as Box<dyn std::io::Read + Send>);
        let err = self.child.stderr.take().map(|o| Box::new(o) as Box<dyn std::io::Read + Send>);
        for stream in [out, err].into_iter().flatten() {
            let said = said.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = said.send(line);
                }
            });
        }
        drop(said);
        let until = Instant::now() + START;
        let mut all = String::new();
        while let Ok(line) = hears.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(sign) {
                return Ok(());
            }
            all += &line;
            all.push('\n');
        }
        Err(format!("it did not start:\n{all}"))
    }

    /// CPU time so far, microseconds.
    fn cpu_us(&self) -> Result<f64, String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.map_err(|e| format!("the server has ended: {e}"))?;
        ticks_of(&stat, 14).map(|ticks| ticks as f64 * 1e4).ok_or_else(|| "cannot understand its stat".to_owned())
    }

    /// CPU time of its threads so far, in microseconds, from schedstat. An idle daemon uses less than one tick of `stat` in half a minute.
    fn on_cpu_us(&self) -> Result<f64, String> {
        let failed = |e| format!("the server has ended: {e}");
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).map_err(failed)?;
        let mut ns = 0.0;
        for task in tasks {
            let schedstat = fs::read_to_string(task.map_err(failed)?.path().join("schedstat")).map_err(failed)?;
            let ran = schedstat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
            ns += ran.ok_or("cannot understand the schedstat of a thread")?;
        }
        Ok(ns / 1e3)
    }

    /// Measures the server for `time` while it has no clients.
    fn idle(&self, time: Duration) -> Result<(Figures, Value), String> {
        let before = self.on_cpu_us()?;
        std::thread::sleep(time);
        let used = self.on_cpu_us()? - before;
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).map_err(|e| e.to_string())?;
        let kb = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        let kb: f64 = kb.ok_or("its status has no VmRSS")?;
        let idle = Idle { cpu_percent: used / 1e4 / time.as_secs_f64(), resident_mb: kb / 1024.0 };
        Ok((Figures { idle: Some(idle), ..Figures::default() }, Value::Null))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mount) = &self.mount {
            // A killed server leaves its mount behind.
            let _ = Command::new("umount").arg("--lazy").arg(mount).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn is_nbd(client: Client) -> bool {
    matches!(client, Client::FioNbd { .. } | Client::LeanNbd { .. })
}

fn queues(client: Client) -> u16 {
    match client {
        Client::Blkio { queues, .. } | Client::Lean { queues, .. } => queues,
        Client::Idle { .. } => 2,
        Client::FioNbd { .. } | Client::LeanNbd { .. } | Client::FioFuse { .. } => 1,
    }
}

fn mqblk(served: &Served, tools: &Tools<'_>, directory: &Path) -> Result<Command, String> {
    let failed = |e: std::io::Error| format!("cannot write below {}: {e}", directory.display());
    let mut config = String::new();
    for i in 0..served.iothreads {
        config += &format!("[[iothread]]\nname = \"io{i}\"\n");
        if served.pinned {
            config += &format!("cpus = [{i}]\n");
        }
    }
    let disks = if let Client::Idle { disks } = served.client { disks } else { 1 };
    for i in 0..disks {
        let target = match (served.disk, served.client) {
            (_, Client::Idle { .. }) => {
                let file = directory.join(format!("{i}.img"));
                fs::File::create(&file).and_then(|f| f.set_len(NULL_BYTES)).map_err(failed)?;
                file.display().to_string()
            }
            (Disk::File | Disk::CachedByThreads, _) => tools.file.to_owned(),
            (Disk::Null, _) => format!("null:size={NULL_BYTES}"),
        };
        let socket = if i == 0 { "s".to_owned() } else { format!("s{i}") };
        let kind = match served.client {
            Client::FioFuse { .. } => "fuse\"\nmountpoint = \"mount".to_owned(),
            client if is_nbd(client) => format!("nbd\"\nsocket = \"{socket}.sock\"\nexport_name = \"disk"),
            client => {
                let place = format!("socket = \"{socket}.sock\"\nnum_queues = {}", queues(client));
                format!("vhost-user-blk\"\n{place}\nname = \"e{i}")
            }
        };
        let by_threads = served.disk == Disk::CachedByThreads;
        let how = if by_threads { "direct = false\naio = \"threads\"\n" } else { "" };
        config += &format!(
            "[[disk]]\nname = \"d{i}\"\ntarget = {target:?}\n{how}[[export]]\ndisk = \"d{i}\"\ntype = \"{kind}\"\n"
        );
    }
    fs::write(directory.join("serve.toml"), config).map_err(failed)?;
    let mut command = Command::new(tools.mqblk.ok_or("no mqblk was built")?);
    command.args(["serve", "serve.toml", "--control", "ctl.sock"]).current_dir(directory);
    Ok(command)
}

fn qsd(served: &Served, tools: &Tools<'_>, socket: &Path) -> Command {
    let file = format!("driver=file,node-name=disk,filename={}", tools.file);
    let blockdev = match served.disk {
        Disk::Null => format!("driver=null-co,node-name=disk,size={NULL_BYTES},read-zeroes=off"),
        Disk::File => format!("{file},cache.direct=on,aio=io_uring"),
        Disk::CachedByThreads => format!("{file},cache.direct=off,aio=threads"),
    };
    let mount = socket.with_file_name("mount");
    let socket = socket.display();
    let mut command = Command::new("qemu-storage-daemon");
    if served.pinned && queues(served.client) == 1 {
        command = Command::new("taskset");
        command.args(["--cpu-list", "0", "qemu-storage-daemon"]);
    }
    command.args(["--object", "iothread,id=i0", "--blockdev", &blockdev]);
    if is_nbd(served.client) {
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={socket}")]);
        // Not on the IOThread: there, 7.2 aborts when a client disconnects (blockdev-nbd.c, nbd_blockdev_client_closed).
        command.args(["--export", "type=nbd,id=e,node-name=disk,name=disk,writable=on"]);
    } else if let Client::FioFuse { .. } = served.client {
        let mount = mount.display();
        command.args(["--export", &format!("type=fuse,id=e,node-name=disk,mountpoint={mount},writable=on")]);
    } else {
        let n = queues(served.client);
        let place = format!("addr.type=unix,addr.path={socket},iothread=i0,num-queues={n}");
        command.args(["--export", &format!("type=vhost-user-blk,id=e,node-name=disk,writable=on,{place}")]);
    }
    // The monitor sends its greeting after everything else is set up.
    command.args(["--chardev", "stdio,id=m", "--monitor", "chardev=m"]);
    command
}

/// The client's command.
fn client_command(served: &Served, socket: &Path, tools: &Tools<'_>) -> Command {
    let seconds = tools.seconds.map_or("0.05".to_owned(), |s| s.to_string());
    let mut command = Command::new("timeout");
    command.arg("120");
    match served.client {
        Client::Blkio { queues, iodepth, spins } | Client::Lean { queues, iodepth, spins } => {
            let name = if let Client::Lean { .. } = served.client { "lean" } else { "bench" };
            command.arg(tools.vuclient).arg(name).arg(socket).args(["--json", "--runtime", &seconds]);
            command.args(["--queues", &queues.to_string(), "--iodepth", &iodepth.to_string()]);
            command.args(spins.then_some("--poll"));
            if served.pinned {
                let cpus: Vec<String> = (0..queues).map(|cpu| cpu.to_string()).collect();
                command.args(["--cpus", &cpus.join(",")]);
            }
            // A guest, too, writes a new header for each request.
            command.args((name == "lean").then_some("--rewrite"));
        }
        Client::LeanNbd { connections, iodepth } => {
            command.arg(tools.vuclient).arg("nbd").arg(socket).args(["--json", "--runtime", &seconds]);
            command.args(["--export", "disk", "--connections", &connections.to_string()]);
            command.args(["--iodepth", &iodepth.to_string()]);
        }
        Client::FioNbd { connections, iodepth } => {
            fio(&mut command, iodepth, tools);
            command.args(["--ioengine=nbd", "--size=1g"]);
            command.arg(format!("--uri=nbd+unix:///disk?socket={}", socket.display()));
            command.arg(format!("--numjobs={connections}"));
        }
        Client::FioFuse { iodepth } => {
            fio(&mut command, iodepth, tools);
            command.args(["--ioengine=io_uring", "--direct=1"]);
            command.arg(format!("--filename={}", socket.with_file_name("mount").display()));
        }
        Client::Idle { .. } => unreachable!("there is no client"),
    }
    command
}

fn fio(command: &mut Command, iodepth: u16, tools: &Tools<'_>) {
    command.args(["fio", "--name=j", "--rw=randread", "--bs=4k", "--norandommap", "--output-format=json"]);
    command.args([format!("--iodepth={iodepth}"), format!("--aux-path={}", tools.scratch.display())]);
    match tools.seconds {
        Some(s) => command.args(["--time_based".to_owned(), format!("--runtime={s}")]),
        None => command.arg("--number_ios=1000"),
    };
}

/// Runs the client. Returns I/Os per second, the number of I/Os, and the client's report.
fn client(served: &Served, socket: &Path, tools: &Tools<'_>) -> Result<(f64, u64, Value), String> {
    let mut command = client_command(served, socket, tools);
    let output = command.output().map_err(|e| format!("cannot run its client: {e}"))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("its client: {}\n{}\nby {command:?}", output.status, stderr.trim()));
    }
    let result = job::parse(&stdout)?;
    if let Client::FioNbd { .. } | Client::FioFuse { .. } = served.client {
        let figures = job::figures(&result)?;
        return Ok((figures.iops, figures.total_ios, job::kept(result)));
    }
    let iops = result["iops"].as_f64().ok_or("no `iops` in the client's report")?;
    let of = |q: &Value| q["requests"].as_u64().unwrap_or(0);
    let ios = result["queues"].as_array().map_or_else(|| of(&result), |all| all.iter().map(of).sum());
    if ios == 0 {
        return Err(format!("the client did no I/O: {result}"));
    }
    Ok((iops, ios, result))
}
