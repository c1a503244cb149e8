// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost of the core per I/O on the null driver, without the job engine: batches of `depth` random reads.
extern crate mqblk_host as host;

use blk::bio::{Bio, DataRef};
use blk::id::{CpuId, Sector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use host::driver::null::{Null, NullOptions};
use parking_lot::RawMutex;
use std::sync::Arc;

fn main() {
    println!("clock: {:?}", host::clock::start());
    let smoke = !std::env::args().any(|a| a == "--bench");
    let total: u64 = if smoke { 2_000 } else { 20_000_000 };
    for sched in ["none", "mq-deadline"] {
        for depth in [1u32, 32] {
            let mut config = QueueConfig::default();
            config.set("scheduler", sched).unwrap();
            config.set("nr_hw_queues", "1").unwrap();
            let disk =
                RequestQueue::<RawMutex>::new(Arc::new(Null::new(NullOptions::default())), config, Box::new(NoNotify));
            let disk = match disk {
                Ok(d) => d,
                Err(e) => {
                    println!("{sched}: {e}");
                    continue;
                }
            };
            let mut sub = disk.submitter(CpuId::new(0)).unwrap();
            let mut x = 0x9e3779b97f4a7c15u64;
            let mut done = 0u64;
            let blocks = disk.capacity().0 >> 3;
            let t0 = host::clock::now();
            let mut now = t0;
            while done < total {
                if depth > 1 {
                    sub.start_plug(depth);
                }
                for i in 0..depth {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    let s = ((u128::from(x) * u128::from(blocks)) >> 64) as u64;
                    sub.submit(&Bio::read(Sector(s << 3), 8, DataRef::NONE).with_user_data(u64::from(i)), now).unwrap();
                }
                if depth > 1 {
                    sub.finish_plug(now);
                }
                now = host::clock::now();
                sub.poll(now);
                sub.reap(|d| {
                    done += 1;
                    assert!(d.status.is_ok());
                });
            }
            let ns = host::clock::now().since(t0).as_ns();
            println!(
                "{sched} depth {depth}: {:.1} ns per I/O, {:.2} M IOPS",
                ns as f64 / total as f64,
                total as f64 * 1e3 / ns as f64
            );
        }
    }
}
