//! Throwaway: experiment 2.
use blk::limits::Limits;
use blk::model::Speed;
use blk::settings::QueueConfig;
use blk::time::Duration;
use sim::machine::costs::{Costs, Shape};
use sim::machine::device::DeviceSpec;
use sim::machine::jobs::{self, DiskSpec};
use sim::machine::scsi::ScsiSpec;
use sim::machine::service::{Modelled, Split};
use workload::job::{JobFile, ParseContext};
fn main() {
    let a = |s: usize, d: f64| std::env::args().nth(s).map_or(d, |a| a.parse().unwrap());
    for disk in ["A", "B"] {
        let (depth, kb, bw, iops, iod, batch, sizes, runtime) = if disk == "A" {
            (55, 64, 750, 18000, 110, 55, ("23g", "10g"), 20)
        } else {
            (11, 64, 170, 3500, 22, 11, ("5g", "3g"), 60)
        };
        for queues in [32, 1] {
            let text = format!(
                "[global]\ntime_based\ndirect=1\nioengine=libaio\nruntime={runtime}\n[seq_read]\nbs=32k\nsize={}\nrw=read\nnumjobs=2\niodepth={iod}\niodepth_batch_submit={batch}\niodepth_batch_complete={batch}\n[seq_write]\nbs=8k\nsize={}\nrw=write\nnumjobs=1\niodepth=1\noverwrite=1\noffset=100g\n",
                sizes.0, sizes.1
            );
            let file = JobFile::parse_str(&text, &ParseContext::bare("a.fio"), &[]).expect("job");
            let us = a(1, 2400.0) as u64;
            let speed = Speed {
                iops,
                bytes_per_sec: bw * 1_000_000,
                burst: Duration::from_ms(1),
                jitter_pct: 10,
                seed: 1,
                parallel: 65536,
            };
            let spec = DiskSpec {
                device: DeviceSpec { sectors: 1 << 31, limits: Limits::default() },
                service: Box::new(Split {
                    read: Modelled::new(&speed, Duration::from_us(a(2, 1000.0) as u64), Duration::from_us(us)),
                    write: Modelled::new(&speed, Duration::from_us(us), Duration::from_us(us)),
                }),
                config: QueueConfig {
                    nr_hw_queues: Some(queues),
                    nr_requests: Some(depth),
                    scheduler: Some("mq-deadline".into()),
                    max_sectors_kb: Some(kb),
                    ..QueueConfig::default()
                },
                scsi: Some(ScsiSpec { lun_queue_depth: depth, can_queue: 2048 }),
            };
            let r = jobs::run(Shape { sockets: 1, cores: 32, threads: 1 }, Costs::default(), spec, &file.jobs, 1)
                .expect("run");
            let read: u64 = r.stats[..2].iter().map(|s| s.dirs[0].bytes).sum();
            let w = &r.stats[2].dirs[1];
            let secs = runtime as f64;
            let st = r.disk.stages;
            println!(
                "{disk} {queues} queues: read {:.0} MB/s, write {:.0} IOPS, clat {:.2} ms; per request tag {:.2} ctx {:.2} sched {:.2} dispatch {:.2} device {:.2} ms; merges {} of {}",
                read as f64 / 1e6 / secs,
                w.ios as f64 / secs,
                w.clat.run.mean() / 1e6,
                st.tag_wait_ns as f64 / st.requests as f64 / 1e6,
                st.ctx_ns as f64 / st.requests as f64 / 1e6,
                st.scheduler_ns as f64 / st.requests as f64 / 1e6,
                st.dispatch_ns as f64 / st.requests as f64 / 1e6,
                st.device_ns as f64 / st.requests as f64 / 1e6,
                r.disk.merges(),
                st.requests
            );
        }
    }
}
