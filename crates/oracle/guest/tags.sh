# SPDX-License-Identifier: Apache-2.0 OR MIT
# In the guest: loads disks that share tags and leaves for each set-up /out/NAME.tags, of lines
#   module NAME PARAMETERS         what was loaded
#   disk DISK ATTRIBUTE VALUE      scheduler, nr_requests, flags (of hctx0 in debugfs)
#   hctx DISK N nr_tags T cpus LIST
#   phase N rest SECONDS           rests, then loads the disks named by its load lines all at once
#   load N DISK CPU READS          READS reads of 4 KiB in one io_submit(), by a process bound to CPU
#   users N DISK HCTX U            disks that count as active on those tags when the phase has ended (active_queues)
#   inflight N DISK issued I max M the most that DISK had at the device at once, from block_rq_issue and _complete
# A phase begins when the one before has ended. A disk counts as active for up to 5 s after its last request.
tracing=/sys/kernel/tracing
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
echo mono >$tracing/trace_clock
echo 16384 >$tracing/buffer_size_kb
for event in rq_issue rq_complete; do echo 1 >$tracing/events/block/block_$event/enable; done

i=0; while [ $i -lt 100 ]; do echo "R $((i * 64)) 8"; i=$((i + 1)); done >/tmp/reads

describe() {
  for disk in $disks; do
    echo "disk $disk scheduler $(sed 's/.*\[\(.*\)\].*/\1/' /sys/block/$disk/queue/scheduler)"
    echo "disk $disk nr_requests $(cat /sys/block/$disk/queue/nr_requests)"
    echo "disk $disk flags $(cat /sys/kernel/debug/block/$disk/hctx0/flags)"
    for hctx in /sys/block/$disk/mq/*; do
      echo "hctx $disk ${hctx##*/} nr_tags $(cat $hctx/nr_tags) cpus $(cat $hctx/cpu_list | tr -d ' ')"
    done
  done
}

# phase SECONDS DISK:CPU:READS ...; nothing slow in it, so that phases without a rest follow within the 5 s.
phase() {
  echo "phase $n rest $1"; sleep $1; shift
  echo >$tracing/trace; echo 1 >$tracing/tracing_on
  for load in "$@"; do
    disk=${load%%:*} rest=${load#*:}; cpu=${rest%:*} reads=${rest#*:}
    echo "load $n $disk $cpu $reads"
    head -$reads /tmp/reads | taskset $((1 << cpu)) ioscript /dev/$disk >/dev/null &
  done
  wait
  echo 0 >$tracing/tracing_on
  for disk in $disks; do
    for hctx in /sys/block/$disk/mq/*; do
      hctx=${hctx##*/}
      echo "users $n $disk $hctx $(sed -n s/active_queues=//p /sys/kernel/debug/block/$disk/hctx$hctx/tags)"
    done
  done
  cat $tracing/trace >/tmp/trace.$n
  n=$((n + 1))
}

# Prints the most in flight per phase and disk.
inflight() {
  for disk in $disks; do
    number=$(tr : , </sys/block/$disk/dev)
    i=0
    while [ $i -lt $n ]; do
      awk -v n=$i -v disk=$disk -v number=$number '
        $0 ~ "block_rq_issue: " number " R" { at++; issued++; if (at > max) max = at }
        $0 ~ "block_rq_complete: " number " R" { at-- }
        END { if (issued) print "inflight", n, disk, "issued", issued, "max", max }' /tmp/trace.$i
      i=$((i + 1))
    done
  done
}

# setup NAME MODULE PARAMETERS: loads it; then its disks are in $disks.
setup() {
  name=$1 module=$2 n=0; shift 2
  modprobe $module "$@" || exit 1
  sleep 2
  case $module in null_blk) disks=$(cd /sys/block; ls -d nullb*) ;; *) disks=$(cd /sys/block; ls -d sd*) ;; esac
  for disk in $disks; do echo none >/sys/block/$disk/queue/scheduler; done
  { echo "kernel $(uname -r)"; echo "cpus $(nproc)"; echo "module $module $*"; describe; } >/out/$name.tags
}

setup null-shared null_blk nr_devices=2 shared_tags=1 submit_queues=1 hw_queue_depth=16 irqmode=2 completion_nsec=10000000 gb=1
{
  phase 8 nullb0:0:100
  phase 0 nullb1:0:100
  phase 0 nullb0:0:100 nullb1:1:100
  phase 0 nullb0:0:100
  phase 8 nullb1:1:100
  inflight
} >>/out/null-shared.tags
modprobe -r null_blk

setup null-shared-3 null_blk nr_devices=3 shared_tags=1 submit_queues=2 hw_queue_depth=10 irqmode=2 completion_nsec=10000000 gb=1
{
  phase 8 nullb0:0:100
  phase 0 nullb1:1:100
  phase 0 nullb2:0:100
  phase 0 nullb0:0:100 nullb1:1:100 nullb2:0:100
  phase 8 nullb1:3:100
  phase 8 nullb0:0:50 nullb0:2:50
  inflight
} >>/out/null-shared-3.tags
modprobe -r null_blk

setup null-bitmap null_blk nr_devices=1 shared_tag_bitmap=1 submit_queues=4 hw_queue_depth=16 irqmode=2 completion_nsec=10000000 gb=1
{
  phase 0 nullb0:0:100
  phase 0 nullb0:0:60 nullb0:1:60 nullb0:2:60 nullb0:3:60
  inflight
} >>/out/null-bitmap.tags
modprobe -r null_blk

modprobe sd_mod
setup scsi-host scsi_debug max_queue=16 host_max_queue=16 submit_queues=4 num_tgts=2 dev_size_mb=16 ndelay=10000000
set -- $disks
{
  phase 8 $1:0:100
  phase 0 $2:1:100
  phase 0 $1:0:60 $1:1:60 $2:2:60 $2:3:60
  phase 0 $1:0:100
  phase 8 $2:2:100
  inflight
} >>/out/scsi-host.tags
