// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fio jobs of published experiments parse as they were printed.

use workload::job::*;

/// Number of hardware queues on a cloud disk: the job pair of the storvsc patch (linux-hyperv list, February 2021).
fn cloud_disk(runtime: u32, read_size: &str, depth: u32, batch: u32, write_size: &str) -> String {
    format!(
        "[global]\ntime_based\ndirect=1\nioengine=libaio\nruntime={runtime}\n\n\
         [job1]\nname=seq_read\nbs=32k\nsize={read_size}\nrw=read\nnumjobs=2\niodepth={depth}\n\
         iodepth_batch_submit={batch}\niodepth_batch_complete={batch}\n\n\
         [job2]\nname=seq_write\nbs=8k\nsize={write_size}\nrw=write\nnumjobs=1\niodepth=1\noverwrite=1\n"
    )
}

#[test]
fn both_job_pairs_of_the_cloud_disk_experiment() {
    for (runtime, sizes, depth, batch) in [(20, [23_u64, 10], 110, 55), (60, [5, 3], 22, 11)] {
        let text = cloud_disk(runtime, &format!("{}G", sizes[0]), depth, batch, &format!("{}G", sizes[1]));
        let file = JobFile::parse_str(&text, &ParseContext::bare("pair.fio"), &[]).expect("as published");
        assert_eq!(file.warnings, []);
        let [read, write] = file.jobs.as_slice() else { panic!("two jobs") };
        for job in [read, write] {
            assert!(job.direct && job.time_based);
            assert_eq!(job.runtime_ns, Some(u64::from(runtime) * 1_000_000_000));
            assert_eq!(job.ioengine.submit(), Submit::Async);
        }
        assert_eq!((read.name.as_str(), read.rw.to_string().as_str(), read.numjobs), ("seq_read", "read", 2));
        assert_eq!((read.iodepth, read.iodepth_batch_submit), (depth, batch));
        assert_eq!((read.iodepth_batch_complete_min, read.iodepth_batch_complete_max), (batch, batch));
        assert_eq!(read.block_sizes.read, BlockSizes::Fixed(32 << 10));
        assert_eq!(read.size, Some(Extent::Bytes(sizes[0] << 30)));
        assert_eq!((write.name.as_str(), write.rw.to_string().as_str(), write.numjobs), ("seq_write", "write", 1));
        assert_eq!((write.iodepth, write.overwrite), (1, true));
        assert_eq!(write.block_sizes.write, BlockSizes::Fixed(8 << 10));
        assert_eq!(write.size, Some(Extent::Bytes(sizes[1] << 30)));
        // Each instance reads a file of its own; the writer has one.
        let no_target = |_: &str| false;
        assert_ne!(read.file_name(0, 0, &no_target), read.file_name(1, 0, &no_target));
    }
}
