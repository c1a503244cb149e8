# SPDX-License-Identifier: Apache-2.0 OR MIT
# One, two and four hardware queues: verified I/O from each CPU, flush, discard, write zeroes, and an end without a trace.
. /jobs/lib.sh
for queues in 1 2 4; do
  config 0 "$queues" false ram:size=64m >c.toml
  serve c.toml
  grep -q "export 'd.ublk' is /dev/ublkb0" log || fail "no word of the device"
  cd /sys/block/ublkb0
  [ "$(ls mq | wc -l)" = "$queues" ] || fail "$(ls mq | wc -l) hardware queues, not $queues"
  [ "$(cat size)" = 131072 ] || fail "size $(cat size)"
  echo "UBLK $queues queues: depth $(cat mq/0/nr_tags) cache $(cat queue/write_cache) fua $(cat queue/fua) discard $(cat queue/discard_max_bytes) zeroes $(cat queue/write_zeroes_max_bytes)"
  cd /tmp
  verify /dev/ublkb0 each --size=6m --offset_increment=16m --numjobs=4 --cpus_allowed=0-3 --cpus_allowed_policy=split --fsync=32
  fio --name=trim --filename=/dev/ublkb0 --rw=trim --bs=64k --size=4m --ioengine=psync >fio.trim 2>&1 || { cat fio.trim; fail trim; }
  [ "$(dd if=/dev/ublkb0 bs=1M count=4 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || fail "discarded blocks are not zero"
  end
  until_true 10 test ! -e /dev/ublkb0
  [ ! -e /dev/ublkc0 ] || fail "the device was left behind"
done
