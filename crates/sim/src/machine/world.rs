// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine itself: CPUs, disks, threads, and the event loop that schedules work on the CPUs.
//!
//! A CPU does one thing at a time: pending interrupts first, then the thread at the head of its run queue. An interrupt
//! pauses a computing thread, which then computes for the rest of its time. The work that a CPU does in one go is a segment.
//! A segment starts at the CPU's current time, runs under the `meter`, and yields its end time. Its effects on other CPUs and
//! devices are later events.

use super::costs::{Costs, PathCosts, Shape};
use super::event::{Event, Events};
use super::few::Few;
use super::meter;
pub use super::meter::MeteredLock;
use super::station::{Interrupts, OpTimes};
use super::task::{CpuWaits, Task, TaskState, YieldReason};
use crate::rng::Rng;
use blk::driver::Driver;
use blk::id::{CpuId, SubmitterId};
use blk::queue::{Notify, RequestQueue};
use blk::settings::{QueueConfig, SettingError};
use blk::time::Instant;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::load::Load;
use workload::logs::LogChunk;
use workload::stats::JobStats;

mod waiters;

/// How the CPUs spent their time, nanoseconds summed over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Threads: their own work, system calls and the block layer's work in them; excludes waiting for locks.
    pub thread_ns: u64,
    /// Computation that a job requests.
    pub compute_ns: u64,
    /// Interrupts; excludes waiting for locks.
    pub irq_ns: u64,
    /// Waiting for locks.
    pub spin_ns: u64,
}

impl CpuTimes {
    /// All time that was not idle.
    pub fn busy_ns(&self) -> u64 {
        self.thread_ns + self.compute_ns + self.irq_ns + self.spin_ns
    }
}

/// Submitters that were notified by the block layer of a disk, in order.
#[derive(Default)]
struct Notified {
    /// Whether `submitters` has entries. The machine checks after each segment, and mostly there are none.
    any: AtomicBool,
    submitters: Mutex<Vec<SubmitterId>>,
}

struct Notifier(Arc<Notified>);

impl Notify for Notifier {
    fn notify(&self, submitter: SubmitterId) {
        self.0.submitters.lock().push(submitter);
        // Only a hint: the lock guards the list. The machine is single-threaded.
        self.0.any.store(true, Ordering::Relaxed);
    }
}

/// A disk of the machine.
struct Disk {
    q: Arc<RequestQueue<MeteredLock>>,
    device: Arc<dyn Interrupts>,
    notified: Arc<Notified>,
    /// The machine's CPU that is CPU 0 of the disk's block layer.
    first_cpu: u32,
    /// The thread of each submitter, by submitter number.
    tasks: Vec<Option<u32>>,
    /// The CPU that collects the completions of each hardware queue.
    handlers: Vec<Handlers>,
    /// Completions go to the CPUs that submitted the requests.
    spread: bool,
    /// The device has no interrupts: each waiting thread has its own timer, and polls.
    is_polled: bool,
    /// When the machine next polls because of a block-layer timer; `u64::MAX`: no poll is scheduled.
    timer_at: u64,
}

/// The threads that submit to a hardware queue. With `rq_affinity`, their CPUs take the interrupts by round robin, because
/// completions go to the submitting CPUs. Without it the first thread's CPU takes all of them.
#[derive(Default)]
struct Handlers {
    all: Vec<Handler>,
    next: usize,
}

impl Handlers {
    fn next(&mut self, spread: bool) -> Option<Handler> {
        if spread {
            self.next = (self.next + 1) % self.all.len().max(1);
        }
        self.all.get(self.next).copied()
    }
}

#[derive(Clone, Copy, Default)]
struct Handler {
    task: u32,
    volume: u16,
    cpu: u32,
}

/// An interrupt that a CPU has to serve.
#[derive(Clone, Copy, Default)]
struct Irq {
    disk: u16,
    hctx: u16,
    handler: Handler,
}

/// The state that the loop needs for each event. It fits in two cache lines because the queues keep their first entry inline.
#[derive(Default)]
#[repr(align(64))]
struct Cpu {
    free_at: u64,
    /// A pending `Event::Free` marks the end of the CPU's present work.
    is_expected: bool,
    irqs: Few<Irq>,
    line: Few<u32>,
    /// The thread that computes, and when its computation completes.
    computing: Option<(u32, u64)>,
    /// Threads that other CPUs are waking on this CPU, and that are not in its run queue yet.
    coming: u32,
    turn: u32,
    /// The thread that ran last.
    last: u32,
    times: CpuTimes,
}

const _: () = assert!(size_of::<Cpu>() == 128);

impl Cpu {
    /// Whether a woken thread would run at once. With `is_self`, work in progress on this CPU does not count.
    fn is_free(&self, at: u64, is_self: bool) -> bool {
        let waits = self.irqs.len() + self.line.len() + self.coming as usize;
        waits == 0 && self.computing.is_none() && (is_self || self.free_at <= at)
    }

    /// Runnable threads, of which one runs. A thread in the middle of its turn is in the queue, too.
    fn threads(&self) -> usize {
        self.line.len() + usize::from(self.computing.is_some())
    }

    /// Delays the end of the present computation by `ns`.
    fn put_off(&mut self, ns: u64) {
        if let Some((_, end)) = &mut self.computing {
            *end += ns;
        }
    }
}

/// See [`Machine::slower`].
fn slower(shape: Shape, path: &PathCosts) -> u64 {
    let pct = u64::from(path.sibling_pct.clamp(1, 100));
    if shape.threads > 1 { 1000 * (100 - pct) / pct } else { 0 }
}

/// Cores that virtual CPUs share.
struct SharedCores {
    /// Cores of each domain.
    cores: u32,
    /// The domain of each CPU.
    domains: Vec<u16>,
    /// How many CPUs of each domain compute.
    computing: Vec<u32>,
}

impl SharedCores {
    fn computing_near(&mut self, cpu: u32) -> &mut u32 {
        &mut self.computing[usize::from(self.domains[cpu as usize])]
    }

    /// Starts a computation on `cpu`. Returns its duration if the number of computing CPUs stays as it is now.
    fn begin(&mut self, cpu: u32, ns: u64) -> u64 {
        let cores = u64::from(self.cores);
        let computing = self.computing_near(cpu);
        *computing += 1;
        ns * u64::from(*computing).max(cores) / cores
    }
}

/// See the module's text.
pub struct Machine {
    shape: Shape,
    costs: Costs,
    cpus: Vec<Cpu>,
    disks: Vec<Disk>,
    tasks: Vec<Task>,
    events: Events,
    now: u64,
    /// Threads whose job has completed, and that [`Machine::run`] has not returned yet.
    ended: Vec<u32>,
    running: u32,
    /// How much longer a CPU takes while another thread of its core is busy, per thousand; 0: no longer.
    slower: u64,
    /// The cores that the CPUs share, if the CPUs are virtual ones.
    shared: Option<SharedCores>,
    /// CPUs with more than one runnable thread: idle CPUs pull threads only from these.
    crowded: u32,
    /// Randomness for times with a spread.
    rng: Rng,
}

/// Time begins here: 0 means "never" to some counters.
pub const START_NS: u64 = 1_000_000;

impl Machine {
    /// A machine without disks and threads.
    pub fn new(shape: Shape, costs: Costs) -> Machine {
        let cpu = || Cpu { last: u32::MAX, ..Cpu::default() };
        Machine {
            shape,
            costs,
            cpus: (0..shape.cpus()).map(|_| cpu()).collect(),
            disks: Vec::new(),
            tasks: Vec::new(),
            events: Events::default(),
            now: START_NS,
            ended: Vec::new(),
            running: 0,
            slower: slower(shape, &costs.path),
            shared: None,
            crowded: 0,
            rng: Rng::new(1),
        }
    }

    /// Makes the CPUs virtual ones on a host's cores. The CPUs of a domain that compute at the same time share `cores` cores,
    /// at least one. `domains` has the domain of each CPU.
    pub fn share_cores(&mut self, cores: u32, domains: Vec<u16>) {
        let computing = vec![0; domains.iter().max().map_or(0, |d| usize::from(*d) + 1)];
        self.shared = Some(SharedCores { cores, domains, computing });
    }

    /// Its sockets, cores and threads.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The machine's time in nanoseconds: that of the CPU that is furthest ahead.
    pub fn now_ns(&self) -> u64 {
        self.cpus.iter().map(|c| c.free_at).fold(self.now, u64::max)
    }

    /// Adds a disk. `driver` is the driver of its block layer, `device` the source of its interrupts. Returns the disk's number.
    ///
    /// # Errors
    /// A setting that the device or the machine does not support.
    pub(crate) fn add_disk(
        &mut self,
        device: Arc<dyn Interrupts>,
        driver: Arc<dyn Driver>,
        config: QueueConfig,
    ) -> Result<u16, SettingError> {
        self.add_disk_of(0, device, driver, config)
    }

    /// As [`Machine::add_disk`], for a disk of a virtual machine whose CPUs begin at `first_cpu`.
    ///
    /// # Errors
    /// The errors of [`Machine::add_disk`].
    pub(crate) fn add_disk_of(
        &mut self,
        first_cpu: u32,
        device: Arc<dyn Interrupts>,
        driver: Arc<dyn Driver>,
        config: QueueConfig,
    ) -> Result<u16, SettingError> {
        let notified = Arc::new(Notified::default());
        let q = RequestQueue::new(driver, config, Box::new(Notifier(notified.clone())))?;
        let handlers = (0..q.map().nr_hw_queues()).map(|_| Handlers::default()).collect();
        let spread = q.config().rq_affinity > 0;
        let (tasks, is_polled) = (Vec::new(), false);
        self.disks.push(Disk {
            q,
            first_cpu,
            spread,
            is_polled,
            device,
            notified,
            tasks,
            handlers,
            timer_at: u64::MAX,
        });
        Ok((self.disks.len() - 1) as u16)
    }

    /// The block layer of a disk.
    pub fn disk(&self, disk: u16) -> &Arc<RequestQueue<MeteredLock>> {
        &self.disks[usize::from(disk)].q
    }

    /// Where requests of a disk spent their time so far.
    pub fn seen(&self, disk: u16) -> OpTimes {
        self.disks[usize::from(disk)].device.seen()
    }

    /// Adds a thread on `cpu` that runs `load`, each of its volumes on one of `disks`. The thread begins now. Returns its number.
    ///
    /// # Errors
    /// A disk has more submitters than there may be.
    pub fn add_task(&mut self, cpu: u32, load: Box<dyn Load>, batch: u32, disks: &[u16]) -> Result<u32, SettingError> {
        let task = self.tasks.len() as u32;
        let mut ways = Vec::new();
        for (volume, disk) in disks.iter().enumerate() {
            let d = &mut self.disks[usize::from(*disk)];
            let Some(sub) = d.q.submitter(CpuId::new(cpu - d.first_cpu)) else {
                let most = blk::id::MAX_SUBMITTERS;
                return Err(SettingError(format!("threads: at most {most} per disk")));
            };
            let id = sub.id().index();
            if d.tasks.len() <= id {
                d.tasks.resize(id + 1, None);
            }
            d.tasks[id] = Some(task);
            for hctx in sub.hctxs() {
                d.handlers[hctx.index()].all.push(Handler { task, volume: volume as u16, cpu });
            }
            ways.push((*disk, sub));
        }
        let polls = disks.iter().any(|d| self.disks[usize::from(*d)].is_polled);
        let mut t = Task::new(cpu, load, batch, ways);
        t.polls = polls;
        self.tasks.push(t);
        self.running += 1;
        self.events.push(self.now, Event::Ready { task, sleep: 0 });
        Ok(task)
    }

    /// Lets a thread run on any CPU of its socket. When woken it goes to a free CPU, and an idle CPU pulls it from a busy
    /// one. It still submits from the CPU it was added on.
    pub fn let_float(&mut self, task: u32) {
        self.tasks[task as usize].floats = true;
    }

    /// Runs until a thread's job completes, and returns that thread. Returns `None` if all jobs have completed, or the time
    /// is `until_ns`.
    pub fn run(&mut self, until_ns: u64) -> Option<u32> {
        meter::configure(self.shape, self.costs.line, self.costs.kernel);
        loop {
            if let Some(task) = self.ended.pop() {
                return Some(task);
            }
            // With no event left (`u64::MAX`) the loop does not stop at `until_ns`, because a caller would otherwise wait
            // for sleeping threads for ever.
            let next_at = self.events.next_at();
            if self.running == 0 || (next_at > until_ns && next_at < u64::MAX) {
                return None;
            }
            let Some((at, event)) = self.events.pop() else {
                panic!("{} threads sleep, and nothing will wake them:\n{}", self.running, self.describe());
            };
            self.now = self.now.max(at);
            self.happen(at, event);
        }
    }

    /// Whether all jobs have completed and [`Machine::run`] has returned each of them.
    pub fn is_over(&self) -> bool {
        self.running == 0 && self.ended.is_empty()
    }

    /// Advances the time to `at_ns` without events.
    pub fn sleep_until(&mut self, at_ns: u64) {
        self.now = self.now.max(at_ns);
    }

    /// What a thread has measured so far.
    pub fn stats(&self, task: u32) -> &JobStats {
        self.tasks[task as usize].stats()
    }

    /// Whether a thread is in its `ramp_time`.
    pub fn is_ramping(&self, task: u32) -> bool {
        self.tasks[task as usize].is_ramping()
    }

    /// What a thread has logged, as [`Load::take_log`].
    pub fn take_log(&mut self, task: u32, all: bool) -> Option<LogChunk> {
        self.tasks[task as usize].take_log(all)
    }

    /// CPU time of a thread so far, nanoseconds: its computing, its system calls, its waiting for locks. Interrupts belong to no thread.
    pub fn thread_cpu_ns(&self, task: u32) -> u64 {
        self.tasks[task as usize].cpu_ns
    }

    /// How long a thread waited for a CPU with I/Os in flight, so far.
    pub fn cpu_waits(&self, task: u32) -> CpuWaits {
        self.tasks[task as usize].cpu_waits
    }

    /// Gives a thread a share (`cgroup_weight`); `None`: its I/O priority counts.
    ///
    /// # Errors
    /// The weight is out of range.
    pub fn set_weight(&mut self, task: u32, weight: Option<u16>) -> Result<(), SettingError> {
        self.tasks[task as usize].volumes.iter_mut().try_for_each(|volume| volume.sub.set_weight(weight))
    }

    /// Stops all jobs: no new I/O is issued, and I/Os in flight complete.
    pub fn stop(&mut self) {
        self.tasks.iter_mut().for_each(Task::stop);
    }

    /// Stops one job, as [`Machine::stop`].
    pub fn stop_task(&mut self, task: u32) {
        self.tasks[task as usize].stop();
    }

    /// Consumes the machine. Returns what its threads have measured, in the order in which they were added.
    pub fn into_stats(self) -> Vec<JobStats> {
        debug_assert_eq!(self.crowded as usize, self.cpus.iter().filter(|c| c.threads() > 1).count());
        self.tasks.into_iter().map(Task::into_stats).collect()
    }

    /// What its CPUs did so far.
    pub fn cpu_times(&self) -> CpuTimes {
        let mut sum = CpuTimes::default();
        for t in self.cpus.iter().map(|c| &c.times) {
            sum.thread_ns += t.thread_ns;
            sum.compute_ns += t.compute_ns;
            sum.irq_ns += t.irq_ns;
            sum.spin_ns += t.spin_ns;
        }
        sum
    }

    /// Number of events so far, which is proportional to the cost of a simulation.
    pub fn events(&self) -> u64 {
        self.events.pushed()
    }

    fn happen(&mut self, at: u64, event: Event) {
        match event {
            Event::Free { cpu } => {
                self.cpus[cpu as usize].is_expected = false;
                self.dispatch(cpu, at);
            }
            Event::Interrupt { disk, hctx } => {
                let d = &mut self.disks[usize::from(disk)];
                if d.device.is_wanted(hctx, at)
                    && let Some(handler) = d.handlers[usize::from(hctx)].next(d.spread)
                {
                    self.rouse(handler.cpu, at);
                    self.cpus[handler.cpu as usize].irqs.push_back(Irq { disk, hctx, handler });
                    self.dispatch(handler.cpu, at);
                }
            }
            Event::Ready { task, sleep } => {
                let t = &mut self.tasks[task as usize];
                if t.polls && t.state == TaskState::Sleeps && t.sleep == sleep {
                    return self.wake_by_timer(task, at);
                }
                if matches!(t.state, TaskState::Sleeps | TaskState::Waking) && t.sleep == sleep {
                    if t.state == TaskState::Waking {
                        self.cpus[t.cpu as usize].coming -= 1;
                    }
                    t.state = TaskState::Runs;
                    t.sleep += 1;
                    if t.out > 0 {
                        t.could_run_at = at;
                    }
                    let cpu = t.cpu;
                    self.rouse(cpu, at);
                    self.stand_in_line(cpu, task);
                    self.dispatch(cpu, at);
                }
            }
            Event::Computed { cpu, turn } => {
                let c = &mut self.cpus[cpu as usize];
                if c.turn == turn
                    && let Some((task, end)) = c.computing
                {
                    if end > at {
                        // An interrupt has delayed the computation.
                        return self.events.push(end, event);
                    }
                    c.computing = None;
                    if let Some(shared) = &mut self.shared {
                        *shared.computing_near(cpu) -= 1;
                    }
                    c.line.push_front(task);
                    self.dispatch(cpu, at);
                }
            }
            Event::Timer { disk } => self.timer(disk, at),
        }
    }

    /// Lets a CPU do its pending work, until another event on the machine is due first.
    fn dispatch(&mut self, cpu: u32, mut at: u64) {
        loop {
            let c = &self.cpus[cpu as usize];
            if self.crowded > 0 && c.irqs.is_empty() && c.computing.is_none() && c.line.is_empty() {
                self.pull(cpu);
            }
            let c = &mut self.cpus[cpu as usize];
            if c.irqs.is_empty() && (c.computing.is_some() || c.line.is_empty()) {
                return;
            }
            if c.free_at > at {
                if c.free_at > self.events.next_at() {
                    if !c.is_expected {
                        c.is_expected = true;
                        self.events.push(c.free_at, Event::Free { cpu });
                    }
                    return;
                }
                at = c.free_at;
            }
            if let Some(irq) = c.irqs.pop_front() {
                self.interrupt(cpu, irq, at);
            } else if let Some(task) = c.line.pop_front() {
                self.crowded -= u32::from(c.threads() == 1);
                self.turn(cpu, task, at);
            }
        }
    }

    /// Prepares an idle CPU for work at `at`: waking from the idle state delays it by `idle_ns`, with its spread.
    fn rouse(&mut self, cpu: u32, at: u64) {
        let PathCosts { idle_ns, idle_spread_ns, .. } = self.costs.path;
        let c = &mut self.cpus[cpu as usize];
        if idle_ns > 0 && c.irqs.is_empty() && c.line.is_empty() && c.computing.is_none() && c.free_at < at {
            let spread = u64::from(idle_spread_ns.min(idle_ns));
            c.free_at = at + u64::from(idle_ns) - spread + self.rng.below(2 * spread + 1);
        }
    }

    /// Appends a runnable thread to the run queue of a CPU.
    fn stand_in_line(&mut self, cpu: u32, task: u32) {
        let c = &mut self.cpus[cpu as usize];
        c.line.push_back(task);
        self.crowded += u32::from(c.threads() == 2);
    }

    /// Moves a thread that waits for another CPU of the socket to an idle CPU (`newidle_balance`).
    fn pull(&mut self, cpu: u32) {
        let shape = self.shape;
        for from in shape.near(cpu) {
            let c = &mut self.cpus[from as usize];
            if c.threads() < 2 {
                continue;
            }
            let (tasks, last) = (&self.tasks, c.last);
            if let Some(task) = c.line.take_first(|t| t != last && tasks[t as usize].floats) {
                self.crowded -= u32::from(c.threads() == 1);
                self.tasks[task as usize].cpu = cpu;
                return self.cpus[cpu as usize].line.push_back(task);
            }
        }
    }

    /// Returns how much longer work of `ns` takes on `cpu` from `at` on, because busy sibling threads share the core. The
    /// siblings count as they are at `at`.
    #[inline]
    fn slowed(&self, cpu: u32, at: u64, ns: u64) -> u64 {
        if self.slower == 0 {
            return 0;
        }
        let is_busy = |c: u32| {
            let c = &self.cpus[c as usize];
            c.computing.is_some() || c.free_at > at || !c.line.is_empty()
        };
        if self.shape.siblings(cpu).any(is_busy) { ns * self.slower / 1000 } else { 0 }
    }

    /// Handles the interrupt of a hardware queue.
    fn interrupt(&mut self, cpu: u32, irq: Irq, at: u64) {
        let Irq { disk, hctx, handler } = irq;
        debug_assert_eq!(handler.cpu, cpu);
        let end = self.collect(handler, at, self.costs.path.irq_ns);
        self.disks[usize::from(disk)].device.rearm(hctx);
        self.wake_if_served(handler.task, cpu, end);
        self.after(disk, cpu, end);
    }

    /// Collects completions on the CPU of `handler` through the handler's submitter, after `entry_ns` of entry time.
    /// Returns when the collection is done.
    fn collect(&mut self, handler: Handler, at: u64, entry_ns: u32) -> u64 {
        let Handler { task, volume, cpu } = handler;
        let sub = &mut self.tasks[task as usize].volumes[usize::from(volume)].sub;
        let spent = meter::run(cpu, at, self.costs.path.hold_ns, || {
            meter::charge(entry_ns);
            sub.poll_asleep(Instant::from_ns(meter::now()));
        });
        let worked = spent.end_ns - at - spent.spun_ns;
        let end = spent.end_ns + self.slowed(cpu, at, worked);
        let c = &mut self.cpus[cpu as usize];
        c.free_at = end;
        c.times.spin_ns += spent.spun_ns;
        c.times.irq_ns += end - at - spent.spun_ns;
        c.put_off(end - at);
        end
    }

    /// Runs a thread for one turn.
    fn turn(&mut self, cpu: u32, task: u32, at: u64) {
        let path = self.costs.path;
        let next_at = self.events.next_at();
        let c = &mut self.cpus[cpu as usize];
        let switches = std::mem::replace(&mut c.last, task) != task;
        let t = &mut self.tasks[task as usize];
        t.has_a_cpu(at);
        let mut turn = YieldReason::Sleep;
        let mut spent = meter::run(cpu, at, path.hold_ns, || {
            if switches {
                meter::charge(path.switch_ns);
            }
            meter::expect(next_at);
            turn = t.turn(&path);
        });
        if self.slower > 0 {
            spent.end_ns += self.slowed(cpu, at, spent.end_ns - at - spent.spun_ns);
            if let YieldReason::Compute(ns) = &mut turn {
                *ns += self.slowed(cpu, at, *ns);
            }
        }
        let (c, t) = (&mut self.cpus[cpu as usize], &mut self.tasks[task as usize]);
        c.free_at = spent.end_ns;
        c.times.spin_ns += spent.spun_ns;
        c.times.thread_ns += spent.end_ns - at - spent.spun_ns;
        t.cpu_ns += spent.end_ns - at;
        match turn {
            YieldReason::Again => {
                if t.out > 0 {
                    t.could_run_at = spent.end_ns;
                }
                self.stand_in_line(cpu, task);
            }
            YieldReason::Sleep => {
                t.state = TaskState::Sleeps;
                if t.polls {
                    self.set_timer(task, cpu, u64::MAX, spent.end_ns);
                }
            }
            YieldReason::SleepUntil(until) => {
                t.state = TaskState::Sleeps;
                if t.polls {
                    self.set_timer(task, cpu, until, spent.end_ns);
                } else {
                    self.events.push(until.max(spent.end_ns), Event::Ready { task, sleep: t.sleep });
                }
            }
            YieldReason::Compute(ns) => {
                c.turn += 1;
                c.times.compute_ns += ns;
                t.cpu_ns += ns;
                let ns = self.shared.as_mut().map_or(ns, |s| s.begin(cpu, ns));
                c.computing = Some((task, spent.end_ns + ns));
                self.crowded += u32::from(c.threads() == 2);
                self.events.push(spent.end_ns + ns, Event::Computed { cpu, turn: c.turn });
            }
            YieldReason::Done => {
                t.state = TaskState::Done;
                self.ended.push(task);
                self.running -= 1;
            }
        }
        let nr_volumes = self.tasks[task as usize].volumes.len();
        for i in 0..nr_volumes {
            let disk = self.tasks[task as usize].volumes[i].disk;
            self.after(disk, cpu, spent.end_ns);
        }
    }

    /// Handles the effects on a disk of a segment on `cpu` that ended at `at`: schedules interrupts and wakes threads.
    fn after(&mut self, disk: u16, cpu: u32, at: u64) {
        let d = &mut self.disks[usize::from(disk)];
        let events = &mut self.events;
        if d.is_polled {
            let mut ahead = Vec::new();
            d.device.take_news(&mut |hctx, _| ahead.push(hctx));
            ahead.into_iter().for_each(|hctx| self.wake_sleepers(disk, hctx, cpu, at));
        } else {
            d.device.take_news(&mut |hctx, due| events.push(due, Event::Interrupt { disk, hctx }));
        }
        let d = &mut self.disks[usize::from(disk)];
        let events = &mut self.events;
        if let Some(timer) = d.q.next_timer().filter(|_| !d.is_polled) {
            let due = timer.as_ns().max(at);
            if due < d.timer_at {
                d.timer_at = due;
                events.push(due, Event::Timer { disk });
            }
        }
        if !d.notified.any.load(Ordering::Relaxed) {
            return;
        }
        d.notified.any.store(false, Ordering::Relaxed);
        let notified = std::mem::take(&mut *d.notified.submitters.lock());
        for id in &notified {
            if let Some(task) = self.disks[usize::from(disk)].tasks[id.index()] {
                self.tasks[task as usize].notified = true;
                let t = &self.tasks[task as usize];
                match t.sleeps_in(disk).filter(|_| t.polls && t.state == TaskState::Sleeps) {
                    Some(hctx) => self.wake_sleepers(disk, hctx.index() as u16, cpu, at),
                    None => self.wake(task, cpu, at),
                }
            }
        }
        // Returns the list's memory for reuse.
        let mut queue = self.disks[usize::from(disk)].notified.submitters.lock();
        if queue.is_empty() {
            *queue = notified;
            queue.clear();
        }
    }

    fn wake_if_served(&mut self, task: u32, cpu: u32, at: u64) {
        let t = &self.tasks[task as usize];
        if t.state == TaskState::Sleeps && t.has_what_it_waits_for() {
            self.wake(task, cpu, at);
        }
    }

    /// Wakes a thread at `at`, from `cpu`.
    fn wake(&mut self, task: u32, cpu: u32, at: u64) {
        let path = &self.costs.path;
        let t = &mut self.tasks[task as usize];
        if t.state != TaskState::Sleeps {
            return;
        }
        if t.floats {
            let (last, cpus, shape) = (t.cpu, &self.cpus, self.shape);
            let is_free = |c: u32| cpus[c as usize].is_free(at, c == cpu);
            if !is_free(last)
                && let Some(free) = shape.near(last).find(|c| is_free(*c))
            {
                t.cpu = free;
            }
        }
        let waker = &mut self.cpus[cpu as usize];
        waker.free_at = waker.free_at.max(at) + u64::from(path.wakeup_ns);
        waker.put_off(u64::from(path.wakeup_ns));
        waker.times.irq_ns += u64::from(path.wakeup_ns);
        if t.cpu == cpu {
            t.state = TaskState::Runs;
            t.sleep += 1;
            t.could_run_at = waker.free_at;
            self.stand_in_line(cpu, task);
            let waker = &mut self.cpus[cpu as usize];
            if !waker.is_expected {
                waker.is_expected = true;
                self.events.push(waker.free_at, Event::Free { cpu });
            }
        } else {
            t.state = TaskState::Waking;
            let at = waker.free_at + u64::from(path.ipi_ns);
            self.events.push(at, Event::Ready { task, sleep: t.sleep });
            self.cpus[t.cpu as usize].coming += 1;
        }
    }

    /// Runs a due timer of the block layer: any thread of the disk polls.
    fn timer(&mut self, disk: u16, at: u64) {
        let d = &mut self.disks[usize::from(disk)];
        if d.timer_at != at {
            return;
        }
        d.timer_at = u64::MAX;
        let Some(handler) = d.handlers.iter().flat_map(|h| &h.all).next().copied() else { return };
        let start = at.max(self.cpus[handler.cpu as usize].free_at);
        let end = self.collect(handler, start, 0);
        self.wake_if_served(handler.task, handler.cpu, end);
        self.after(disk, handler.cpu, end);
    }

    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n", self.now);
        for (i, t) in self.tasks.iter().enumerate().filter(|(_, t)| t.state != TaskState::Done) {
            let volumes = t.volumes.iter().map(|s| (s.sub.outstanding(), s.sub.waiting(), s.sub.ready()));
            let volumes: Vec<_> = volumes.collect();
            text += &format!("  thread {i} on CPU {}: {:?}, (out, waiting, ready) {volumes:?}\n", t.cpu, t.state);
        }
        text
    }
}
