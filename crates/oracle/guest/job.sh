# SPDX-License-Identifier: Apache-2.0 OR MIT
# In the guest: runs every /NAME.env + /NAME.io on a fresh null_blk and leaves in /out
#   NAME.trace  the block events of tracefs, one per line
#   NAME.env    the settings as the kernel reports them, the limits of the disk and the number of CPUs
#   NAME.done   completions as the script saw them: number, operation, extent, result, submit and end time (us)
# The script runs on CPU 0. If the kernel refuses the settings of a case, the run ends: half a recording is useless.
tracing=/sys/kernel/tracing
for module in mq-deadline kyber-iosched bfq; do modprobe -q $module; done
echo mono >$tracing/trace_clock
echo 32768 >$tracing/buffer_size_kb
echo 0 >$tracing/options/irq-info 2>/dev/null
for event in rq_insert rq_issue rq_complete rq_requeue rq_merge bio_queue bio_backmerge bio_frontmerge getrq plug unplug split; do
  echo 1 >$tracing/events/block/block_$event/enable
done
for file in /*.env; do
  name=${file#/}; name=${name%.env}
  NB= SCHED= TUNE= NR=0
  . $file
  modprobe null_blk $NB || { echo "$name: null_blk refuses '$NB'"; exit 1; }
  queue=/sys/block/nullb0/queue
  echo $SCHED >$queue/scheduler || { echo "$name: no scheduler '$SCHED'"; exit 1; }
  [ "$NR" = 0 ] || echo $NR >$queue/nr_requests || { echo "$name: nr_requests $NR refused"; exit 1; }
  for tunable in $TUNE; do
    key=${tunable%%=*} at=$queue/iosched/${tunable%%=*}
    [ ! -e $queue/$key ] || at=$queue/$key   # async_depth is there since 7.x, nomerges always was
    echo ${tunable#*=} >$at || { echo "$name: $tunable refused"; exit 1; }
  done
  {
    echo "kernel $(uname -r)"
    echo "null_blk $NB"
    echo "scheduler $(cat $queue/scheduler) nr_requests $(cat $queue/nr_requests) tune $TUNE"
    echo "cpus $(nproc)"
    for limit in nomerges max_hw_sectors_kb max_sectors_kb max_segments max_segment_size; do
      echo "queue $limit $(cat $queue/$limit)"
    done
    for value in $queue/iosched/*; do [ ! -e $value ] || echo "iosched ${value##*/} $(cat $value)"; done
  } >/out/$name.env
  sync
  echo >$tracing/trace
  echo 1 >$tracing/tracing_on
  taskset 1 ioscript /dev/nullb0 </$name.io >/out/$name.done || { echo "$name: the script failed"; exit 1; }
  echo 0 >$tracing/tracing_on
  grep -E ' block_' $tracing/trace >/out/$name.trace
  modprobe -r null_blk
  echo "$name: $(grep -c rq_issue /out/$name.trace) issued, $(wc -l </out/$name.done) completed"
done
