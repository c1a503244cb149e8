//! Throwaway: how fast the machine is simulated.
use blk::limits::Limits;
use blk::model::Speed;
use blk::settings::{Mode, QueueConfig};
use blk::time::Duration;
use sim::machine::costs::{Costs, Shape};
use sim::machine::device::DeviceSpec;
use sim::machine::jobs::{self, DiskSpec};
use sim::machine::service::Modelled;
use workload::job::{JobFile, ParseContext};
fn main() {
    for mode in [Mode::Sq, Mode::Mq] {
        for (sockets, cores) in [(1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (4, 8), (8, 8), (8, 32)] {
            for depth in [1, 32] {
                let shape = Shape { sockets, cores, threads: 1 };
                let n = shape.cpus();
                let text = format!(
                    "[a]\nrw=randread\nbs=4k\niodepth={depth}\nnumjobs={n}\nsize=1g\ntime_based\nruntime={}ms\nioengine=libaio\n",
                    (2000 / n).max(10)
                );
                let file = JobFile::parse_str(&text, &ParseContext::bare("a.fio"), &[]).expect("job");
                let speed = Speed { parallel: 65536, ..Speed::default() };
                let spec = DiskSpec {
                    device: DeviceSpec { sectors: 1 << 31, limits: Limits::default() },
                    service: Box::new(move |_| Box::new(Modelled::new(&speed, Duration::from_us(10), Duration::from_us(10)))), luns: 1,
                    config: QueueConfig {
                        mode,
                        queue_depth: 1023,
                        nr_requests: (mode == Mode::Sq).then_some(1024),
                        ..QueueConfig::default()
                    },
                    scsi: None,
                };
                let t = std::time::Instant::now();
                let r = jobs::run(shape, Costs::default(), &spec, &file.jobs, 1).expect("run");
                let wall = t.elapsed().as_secs_f64();
                let ios: u64 = r.stats.iter().map(|s| s.dirs[0].ios).sum();
                let secs = r.elapsed_ns as f64 / 1e9;
                println!(
                    "{mode} {sockets}x{cores} depth {depth}: {:.0} kIOPS, lat {:.1} us, spin {:.0}%, busy {:.0}%, {:.2} M simulated I/Os/s, {:.1} events per I/O",
                    ios as f64 / secs / 1e3,
                    r.stats[0].dirs[0].lat.run.mean() / 1e3,
                    100.0 * r.cpu.spin_ns as f64 / (secs * 1e9 * f64::from(n)),
                    100.0 * r.cpu.busy_ns() as f64 / (secs * 1e9 * f64::from(n)),
                    ios as f64 / wall / 1e6,
                    r.events as f64 / ios as f64
                );
            }
        }
    }
}
