// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines with databases in them: users on vCPUs, a virtio-blk disk with many virtqueues, and the threads of the
//! hypervisor that serve them.
//!
//! A vCPU is a CPU of the [`Machine`]; its work takes longer when more vCPUs compute than there are cores near it. A request
//! goes to the thread that serves its virtqueue: the main loop, or one of several IOThreads ([`Mapping`] assigns virtqueues).
//! An idle thread sleeps, unless it polls. Waking it costs the guest an exit and delays the request. A thread serves requests
//! one after the other.
//!
//! Guarantees: those of [`super`]. Does not do: a buffer cache, row locks, host cores that polling threads occupy. Users
//! also slow each other down in other ways than by I/O (`guest_host`). Each running user adds a little to the computing
//! time of the others. One lock of a database admits one user at a time, and commits of several users share flushes.

use super::costs::{Costs, Shape};
use super::device::{DeviceSpec, SimDevice};
use super::guest_host::{HostLoad, Lock, LockSpec, LogSpec, Logs};
use super::guest_times::{Mapping, Served, TransactionTimes, TransactionTotals};
use super::jobs::JobsError;
use super::kernel::driver::DriverKind;
use super::meter;
use super::service::{Job, Modelled, Service};
use super::world::Machine;
use crate::rng::Rng;
use blk::bio::{IoPrio, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::limits::Limits;
use blk::settings::{QueueConfig, SettingError};
use blk::status::BlkStatus;
use blk::time::Instant;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::engine::{Completed, IoReq, Next, StopReason};
use workload::load::{Load, Volume};
use workload::stats::{JobStats, LatencyStats, TxStats};
use workload::verify::VerifyError;

/// A thread of the hypervisor that serves virtqueues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ServerSpec {
    /// CPU time per request, submission and completion together.
    pub serve_ns: u64,
    /// Time from a kick or a completion until a sleeping thread runs, if its core is in deep sleep.
    pub wake_ns: u64,
    /// The same if its core is not in deep sleep, because it was idle for too short a time.
    pub awake_ns: u64,
    /// How long the thread polls before it sleeps (poll-max-ns).
    pub poll_ns: u64,
}

/// The work of one transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transaction {
    /// Computing time.
    pub cpu_ns: u64,
    /// Blocks read, one after the other.
    pub reads: u32,
    /// Writes that have to be durable, one after the other.
    pub writes: u32,
    /// Computing time that each other running user of the database adds, for latches and for cache lines of shared structures.
    pub per_user_ns: u64,
    /// The lock that each transaction of a database needs once, after its computing.
    pub lock: LockSpec,
}

/// Virtual machines and their host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestsSpec {
    /// Virtual machines.
    pub vms: u32,
    /// vCPUs of each.
    pub vcpus: u16,
    /// Virtqueues of the disk of each virtual machine.
    pub queues: u16,
    /// Users of the database of each virtual machine.
    pub users: u32,
    /// IOThreads of each; 0: the main loop serves all virtqueues.
    pub iothreads: u32,
    /// Which IOThread serves which virtqueue.
    pub mapping: Mapping,
    /// Virtual time in which transactions are counted.
    pub run_ns: u64,
    /// Cores of the host.
    pub host_cores: u32,
    /// Cores that share a last-level cache, at least 1. A vCPU that becomes runnable finds an idle core only among them.
    /// vCPUs are assigned to such groups at random, and stay there.
    pub near_cores: u32,
    /// Idle time after which a core enters deep sleep; 0: at once.
    pub deep_after_ns: u64,
    /// How writes become durable; `None`: a write is durable once it completes.
    pub log: Option<LogSpec>,
    /// Time of a guest exit for a kick.
    pub kick_ns: u32,
    /// Time from the hypervisor's thread to the guest's interrupt.
    pub inject_ns: u64,
    /// The main loop.
    pub main_loop: ServerSpec,
    /// An IOThread.
    pub iothread: ServerSpec,
    /// The transaction that users run.
    pub transaction: Transaction,
}

impl ServerSpec {
    /// Returns the mean wake-up time on a core of this host.
    fn wake_ns_of(&self, host: &HostLoad, now_ns: u64) -> u64 {
        if self.wake_ns == self.awake_ns {
            return self.wake_ns;
        }
        let deep = self.wake_ns as f64 - self.awake_ns as f64;
        (self.awake_ns as f64 + deep * host.deep_share(now_ns)) as u64
    }
}

struct Server {
    free_at: u64,
}

/// The hypervisor's threads of one virtual machine, in front of the host's storage.
struct Servers {
    threads: Vec<Server>,
    spec: ServerSpec,
    kick_ns: u32,
    inject_ns: u64,
    storage: Modelled,
    vm: u32,
    host: Arc<HostLoad>,
    logs: Option<Arc<Logs>>,
    queues: usize,
    mapping: Mapping,
    served: Arc<Served>,
    /// Requests from this time on count.
    from_ns: u64,
}

impl Service for Servers {
    fn done_at(&mut self, io: &Job, now: Instant) -> Option<Instant> {
        let n = self.threads.len();
        let thread = &mut self.threads[self.mapping.thread_of(usize::from(io.hctx), self.queues, n)];
        let now = now.as_ns();
        let (mut turn, mut wake) = (0, 0);
        let idle_ns = now.saturating_sub(thread.free_at);
        let wake_ns = self.spec.wake_ns_of(&self.host, now);
        let start = if idle_ns == 0 {
            turn = thread.free_at - now;
            thread.free_at
        } else if idle_ns <= self.spec.poll_ns {
            now
        } else {
            // The exit costs the guest's CPU time; the wake-up delays the request.
            meter::charge(self.kick_ns);
            self.host.wake();
            wake = u64::from(self.kick_ns) + wake_ns;
            now + wake
        };
        // The same thread handles the completion, so other requests wait for its share of the serving time, too.
        let issued = start + self.spec.serve_ns / 2;
        thread.free_at = start + self.spec.serve_ns;
        let mut done = self.storage.admit(io, Instant::from_ns(issued)).as_ns();
        if let Some(logs) = self.logs.as_ref().filter(|_| io.op == Op::Write) {
            done = logs.commit(self.vm, done);
        }
        let mut waking = 0;
        if done > thread.free_at + self.spec.poll_ns {
            self.host.wake();
            waking = wake_ns;
        }
        let back = done.max(issued) + waking + self.spec.serve_ns / 2;
        if now >= self.from_ns {
            let serving = 2 * (self.spec.serve_ns / 2);
            self.served.add([turn, wake + waking, serving, done.max(issued) - issued, self.inject_ns]);
        }
        Some(Instant::from_ns(back + self.inject_ns))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Computing before read number n, or at the end before the commit.
    Compute(u32),
    /// Taking the lock before I/O number n, or at the end.
    Lock(u32),
    Io(u32),
    Wait(u32),
}

/// How many users compute, and the state that exists once per database.
struct Activity {
    vms: Vec<Cell<u32>>,
    locks: Vec<RefCell<Lock>>,
    host: Arc<HostLoad>,
    /// Times of the counted transactions by part, and the latency of each.
    lived: RefCell<(TransactionTotals, LatencyStats)>,
}

impl Activity {
    /// How many of the computing users of `vm` run at a time.
    fn running(&self, vm: u32) -> u64 {
        let (mine, all) = (u64::from(self.vms[vm as usize].get()), self.host.computing());
        let cores = self.host.cores();
        if all > cores { mine * u64::from(cores) / u64::from(all) } else { mine }
    }
}

/// The computation that a user has its vCPU do.
struct Computing {
    since_ns: u64,
    /// How long it takes without other load.
    planned_ns: u64,
    /// The computation takes or holds the lock.
    is_lock: bool,
}

/// One user of a database.
struct User {
    plan: Transaction,
    vm: u32,
    activity: Rc<Activity>,
    computing: Option<Computing>,
    rng: Rng,
    blocks: u64,
    step: Step,
    begun_ns: u64,
    /// When the I/O in progress was requested.
    asked_ns: u64,
    /// Times of the present transaction by part.
    lived: TransactionTotals,
    /// When counting begins and when the run ends; a user whose run ends at 0 stops at once.
    from_ns: u64,
    until_ns: u64,
    stats: JobStats,
}

impl User {
    fn steps(&self) -> u32 {
        self.plan.reads + self.plan.writes
    }

    /// Pieces of computing.
    fn pieces(&self) -> u32 {
        self.plan.reads + u32::from(self.plan.writes > 0)
    }

    fn piece_ns(&mut self) -> u64 {
        // A uniform spread of 50 % either way keeps users from running in lockstep.
        let shared = self.plan.per_user_ns * self.activity.running(self.vm);
        let mean = (self.plan.cpu_ns + shared) / u64::from(self.pieces());
        mean / 2 + self.rng.below(mean.max(1))
    }

    /// Computes for `planned_ns`. Computing for the lock (`is_lock`) does not count as running for the other users.
    fn compute(&mut self, now: u64, planned_ns: u64, is_lock: bool) -> Next {
        self.computing = Some(Computing { since_ns: now, planned_ns, is_lock });
        self.activity.host.begin();
        // Computing for the lock directly follows the last piece of computing: no core has slept in between.
        if !is_lock {
            self.activity.host.wake();
            let mine = &self.activity.vms[self.vm as usize];
            mine.set(mine.get() + 1);
        }
        Next::Spin(Instant::from_ns(now + planned_ns))
    }

    fn computed(&mut self, now: u64) {
        let Some(Computing { since_ns, planned_ns, is_lock }) = self.computing.take() else { return };
        self.activity.host.end();
        self.lived.cpu_wait_ns += now.saturating_sub(since_ns + planned_ns);
        if is_lock {
            self.lived.lock_ns += planned_ns;
        } else {
            let mine = &self.activity.vms[self.vm as usize];
            mine.set(mine.get() - 1);
            self.lived.compute_ns += planned_ns;
        }
    }

    fn ended(&mut self, now: u64) {
        if self.begun_ns >= self.from_ns && now <= self.until_ns {
            let tx = self.stats.tx.as_mut().expect("made with it");
            tx.transactions += 1;
            tx.lat.record(now - self.begun_ns);
            let mut sum = self.activity.lived.borrow_mut();
            sum.0.add(&TransactionTotals { transactions: 1, ..self.lived });
            sum.1.record(now - self.begun_ns);
        }
        self.begun_ns = now;
        self.lived = TransactionTotals::default();
    }
}

impl Load for User {
    fn volumes(&self) -> Vec<Volume> {
        vec![Volume { slots: 1, slot_bytes: 8192 }]
    }

    fn fill_first(&mut self, _: &mut [u8]) {}

    fn next(&mut self, now: Instant) -> Next {
        let now_ns = now.as_ns();
        self.computed(now_ns);
        loop {
            match self.step {
                Step::Compute(_) if now_ns >= self.until_ns => return Next::Done,
                Step::Compute(n) => {
                    if n == self.steps() {
                        self.ended(now_ns);
                        self.step = Step::Compute(0);
                        continue;
                    }
                    let locks = n + 1 == self.pieces() && self.plan.lock.hold_ns > 0;
                    self.step = if locks { Step::Lock(n) } else { Step::Io(n) };
                    let piece_ns = self.piece_ns();
                    return self.compute(now_ns, piece_ns, false);
                }
                Step::Lock(n) => {
                    self.step = Step::Io(n);
                    let until = self.activity.locks[self.vm as usize].borrow_mut().take(self.plan.lock, now_ns);
                    return self.compute(now_ns, until - now_ns, true);
                }
                Step::Io(_) if self.until_ns == 0 => return Next::Done,
                Step::Io(n) => {
                    self.step = Step::Wait(n);
                    self.asked_ns = now_ns;
                    let is_read = n < self.plan.reads;
                    return Next::Io(IoReq {
                        slot: 0,
                        len_bytes: 8192,
                        offset_bytes: self.rng.below(self.blocks) * 8192,
                        target: 0,
                        op: if is_read { Op::Read } else { Op::Write },
                        fill: false,
                        commit: true,
                        flags: if is_read { OpFlags::NONE } else { OpFlags::SYNC },
                        prio: IoPrio::default(),
                    });
                }
                Step::Wait(_) => return Next::Reap { min: 1, max: 1 },
            }
        }
    }

    fn fill(&mut self, _: u32, _: &mut [u8]) {}

    fn submitted(&mut self, _: Instant) {}

    fn complete(&mut self, _: u32, _: BlkStatus, now: Instant) -> Completed {
        let Step::Wait(n) = self.step else { unreachable!("an I/O ends in its wait") };
        let dir = usize::from(n >= self.plan.reads);
        self.stats.dirs[dir].ios += 1;
        self.lived.ios += 1;
        self.lived.io_ns += now.as_ns().saturating_sub(self.asked_ns);
        self.step = match n + 1 {
            next if next <= self.plan.reads => Step::Compute(next),
            next if next < self.steps() => Step::Io(next),
            _ => {
                self.ended(now.as_ns());
                Step::Compute(0)
            }
        };
        Completed { needs_verify: false }
    }

    fn reaped(&mut self, _: u32) {}

    fn verify(&mut self, _: u32, _: &[u8]) -> Result<(), VerifyError> {
        unreachable!("users verify nothing")
    }

    fn stop(&mut self, _: StopReason) {
        self.until_ns = 0;
    }

    fn abandon(&mut self, _: Instant) {
        self.until_ns = 0;
    }

    fn is_ramping(&self) -> bool {
        false
    }

    fn stats(&self) -> &JobStats {
        &self.stats
    }

    fn stats_mut(&mut self) -> &mut JobStats {
        &mut self.stats
    }
}

/// What virtual machines did.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestsRun {
    /// Transactions per second, all virtual machines together.
    pub tps: f64,
    /// Mean time of a transaction, nanoseconds.
    pub tx_ns: f64,
    /// 99th percentile of the time of a transaction, nanoseconds; `None` if no transaction completed.
    pub tx_p99_ns: Option<u64>,
    /// The time of transactions by part.
    pub times: TransactionTimes,
    /// I/Os simulated.
    pub ios: u64,
    /// Share of the host's core time that was spent computing.
    pub busy: f64,
}

/// Virtual time before counting begins.
pub const RAMP_NS: u64 = 50_000_000;
/// Virtual time of counting, by default.
pub(crate) const RUN_NS: u64 = 300_000_000;

/// Virtual time between two checks of `stop`: a few hundred I/Os of one virtual machine. With many virtual machines that is
/// milliseconds of real time.
const LOOK_NS: u64 = 1_000_000;

/// Runs the databases of all virtual machines side by side on host storage. `storage` makes the storage, one for each virtual
/// machine. Setting `stop` ends the run within about a millisecond of virtual time. Until then the flag does not change the
/// results.
///
/// # Errors
/// A number that the block layer rejects; [`JobsError::Stopped`].
pub(crate) fn run(
    spec: &GuestsSpec,
    costs: Costs,
    storage: impl Fn(u32) -> Modelled,
    seed: u64,
    stop: &AtomicBool,
) -> Result<GuestsRun, JobsError> {
    let vcpus = u32::from(spec.vcpus);
    let all = spec.vms * vcpus;
    let Ok(cores) = u16::try_from(all) else {
        let text = format!("{all} vCPUs in total: must be at most {}; lower vms or vcpus", u16::MAX);
        return Err(SettingError(text).into());
    };
    let mut machine = Machine::new(Shape { sockets: 1, cores, threads: 1 }, costs);
    machine.share_cores(spec.near_cores, domains(spec, all, seed));
    let start = machine.now_ns();
    let vms = (0..spec.vms).map(|_| Cell::new(0)).collect();
    let locks = (0..spec.vms).map(|_| RefCell::default()).collect();
    let lived = RefCell::new((TransactionTotals::default(), LatencyStats::new(true)));
    let host = Arc::new(HostLoad::new(spec.host_cores, spec.deep_after_ns, start));
    let activity = Rc::new(Activity { vms, locks, host: Arc::clone(&host), lived });
    let logs = spec.log.map(|log| Arc::new(Logs::new(log, spec.vms)));
    let served = Arc::new(Served::default());
    let queues = spec.queues.min(spec.vcpus);
    for vm in 0..spec.vms {
        let (n, server) = if spec.iothreads == 0 { (1, spec.main_loop) } else { (spec.iothreads, spec.iothread) };
        let servers = Servers {
            threads: (0..n).map(|_| Server { free_at: 0 }).collect(),
            spec: server,
            kick_ns: spec.kick_ns,
            inject_ns: spec.inject_ns,
            storage: storage(vm),
            vm,
            host: Arc::clone(&host),
            logs: logs.clone(),
            queues: queues.into(),
            mapping: spec.mapping,
            served: Arc::clone(&served),
            from_ns: start + RAMP_NS,
        };
        let sectors = 2u64 << 31;
        let device = DeviceSpec { sectors, limits: Limits::default() };
        let device = SimDevice::new(device, costs.path, Box::new(servers), DriverKind::Other);
        let disk = machine.add_disk_of(vm * vcpus, device.station(), Arc::new(device), config(spec.vcpus, queues))?;
        for user in 0..spec.users {
            let stats = JobStats { tx: Some(Box::new(TxStats::default())), ..JobStats::default() };
            let load = User {
                plan: spec.transaction,
                vm,
                activity: activity.clone(),
                computing: None,
                rng: Rng::new(seed ^ u64::from(vm * 1000 + user)),
                blocks: sectors / 16,
                step: Step::Compute(0),
                begun_ns: start,
                asked_ns: start,
                lived: TransactionTotals::default(),
                from_ns: start + RAMP_NS,
                until_ns: start + RAMP_NS + spec.run_ns,
                stats,
            };
            machine.add_task(vm * vcpus + user % vcpus, Box::new(load), 1, &[disk])?;
        }
    }
    run_unless(stop, &mut machine)?;
    let lived = activity.lived.borrow();
    Ok(sum_up(spec, machine, &lived, &served))
}

/// Runs a machine until all jobs complete, or until `stop` is set. The flag is checked between stretches of virtual time, not
/// between events, so that the event loop stays free of the check.
fn run_unless(stop: &AtomicBool, machine: &mut Machine) -> Result<(), JobsError> {
    let mut look_at = machine.now_ns();
    while !machine.is_over() {
        if stop.load(Ordering::Relaxed) {
            // I/Os in flight belong to the block layer, and are waited for.
            machine.stop();
            while machine.run(u64::MAX).is_some() {}
            return Err(JobsError::Stopped);
        }
        look_at += LOOK_NS;
        while machine.run(look_at).is_some() {}
    }
    Ok(())
}

/// The group of host cores that each vCPU runs on.
fn domains(spec: &GuestsSpec, vcpus: u32, seed: u64) -> Vec<u16> {
    let groups = (spec.host_cores / spec.near_cores).max(1);
    let mut rng = Rng::new(!seed);
    (0..vcpus).map(|_| rng.below(u64::from(groups)) as u16).collect()
}

/// The block layer of a guest's disk.
fn config(vcpus: u16, queues: u16) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(vcpus),
        nr_hw_queues: Some(queues),
        queue_depth: 256,
        scheduler: Some("none".into()),
        bios_per_submitter: 16,
        ..QueueConfig::default()
    }
}

fn sum_up(
    spec: &GuestsSpec,
    machine: Machine,
    lived: &(TransactionTotals, LatencyStats),
    served: &Served,
) -> GuestsRun {
    let busy = machine.cpu_times().busy_ns() as f64 / (RAMP_NS + spec.run_ns) as f64 / f64::from(spec.host_cores);
    let (mut transactions, mut lat, mut ios) = (0, 0.0, 0);
    for stats in machine.into_stats() {
        let tx = stats.tx.expect("made with it");
        transactions += tx.transactions;
        lat += tx.lat.run.mean() * tx.transactions as f64;
        ios += stats.dirs.iter().map(|d| d.ios).sum::<u64>();
    }
    let tps = transactions as f64 / (spec.run_ns as f64 / 1e9);
    let tx_p99_ns = lived.1.hist.as_ref().filter(|_| transactions > 0).map(|h| h.percentile(99.0));
    let times = lived.0.with(served);
    GuestsRun { tps, tx_ns: lat / transactions as f64, tx_p99_ns, times, ios, busy }
}
