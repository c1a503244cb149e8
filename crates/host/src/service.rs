// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notifications to the service manager that started this process: that it serves, reloads, ends, and that it is alive.
//!
//! Guarantees: without `$NOTIFY_SOCKET` nothing happens; a manager that is not there costs nothing and stops nothing. A message that the
//! manager acts on waits for a busy manager, `PATIENCE` at most. Others do not wait: a status is sent again with the next change, and
//! there are more watchdog messages. Watchdog messages are sent only while every IOThread answers, at twice the requested rate.
//!
//! Source: sd_notify(3), sd_watchdog_enabled(3).

use crate::error::{Error, Result};
use crate::serve::IoThreads;
use parking_lot::{Condvar, Mutex};
use rustix::net::{SendFlags, SocketAddrUnix};
use rustix::time::{ClockId, clock_gettime};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a manager whose queue is full is waited for. Less than the 90 s that systemd gives a start by default.
const PATIENCE: Duration = Duration::from_secs(30);

/// The service manager. A copy is the same one.
#[derive(Clone, Debug, Default)]
pub struct Manager(Option<Arc<(UnixDatagram, SocketAddrUnix)>>);

impl Manager {
    /// The one that the environment names, if it does.
    ///
    /// # Errors
    /// Usage: its address is of a kind that is not known here.
    pub fn of_environment() -> Result<Manager> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|n| !n.is_empty()) else {
            return Ok(Manager::default());
        };
        let failed = |e| Error::os(e, format!("NOTIFY_SOCKET={}", name.to_string_lossy()));
        let address = match name.as_bytes() {
            [b'/', ..] => SocketAddrUnix::new(&*name).map_err(Into::into),
            [b'@', rest @ ..] => SocketAddrUnix::new_abstract_name(rest).map_err(Into::into),
            _ => Err(std::io::Error::other("must be a path, or an abstract name after '@'")),
        };
        let socket = UnixDatagram::unbound().map_err(failed)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Manager(Some(Arc::new((socket, address.map_err(failed)?)))))
    }

    fn tell(&self, lines: &str) {
        self.send(lines, SendFlags::NOSIGNAL);
    }

    /// Whether it was sent, or there is no service manager.
    fn send(&self, lines: &str, flags: SendFlags) -> bool {
        let Some(to) = &self.0 else { return true };
        let sent = rustix::io::retry_on_intr(|| rustix::net::sendto(&to.0, lines.as_bytes(), flags, &to.1));
        if let Err(e) = sent {
            log::debug!("cannot notify the service manager: {e}");
        }
        sent.is_ok()
    }

    /// All is as it is to be; `status` for people, on one line.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}\n", status.replace('\n', " ")));
    }

    /// What is so now; for people, on one line. False: the manager is busy or gone.
    pub fn status(&self, status: &str) -> bool {
        self.send(&format!("STATUS={}\n", status.replace('\n', " ")), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// A change has begun; [`Manager::ready`] ends it.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reading the configuration again\n"));
    }

    /// The end has begun.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=disconnecting clients\n");
    }

    /// Gives signs of life as often as the environment asks for, until what is returned is dropped.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn watch(&self, threads: &Arc<IoThreads>) -> Result<Option<Watchdog>> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let Some(usec) = number("WATCHDOG_USEC").filter(|usec| *usec > 0 && for_us && self.0.is_some()) else {
            return Ok(None);
        };
        let over = Arc::<(Mutex<bool>, Condvar)>::default();
        let (manager, threads, seen) = (self.clone(), Arc::downgrade(threads), Arc::clone(&over));
        let run = move || manager.live(&threads, &seen, Duration::from_micros(usec / 2));
        let thread = std::thread::Builder::new().name("mqblk-watchdog".into()).spawn(run);
        let thread = thread.map_err(|e| Error::os(e, "cannot start the watchdog thread"))?;
        Ok(Some(Watchdog { over, thread: Some(thread) }))
    }

    fn live(&self, threads: &Weak<IoThreads>, (over, ends): &(Mutex<bool>, Condvar), pace: Duration) {
        let mut over = over.lock();
        while !*over {
            let Some(threads) = threads.upgrade() else { return };
            // Waits for an IOThread that hangs, and then the watchdog is not fed.
            drop(threads.report());
            drop(threads);
            self.send("WATCHDOG=1\n", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            ends.wait_for(&mut over, pace);
        }
    }
}

/// Gives signs of life until it is dropped.
pub struct Watchdog {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // If the thread itself waits for an IOThread that hangs, do not wait for the thread.
        if let Some(mut over) = self.over.0.try_lock_for(Duration::from_secs(1)) {
            *over = true;
            self.over.1.notify_all();
            drop(over);
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
