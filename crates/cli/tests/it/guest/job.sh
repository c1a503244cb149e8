# SPDX-License-Identifier: Apache-2.0 OR MIT
# What the guest does; it is placed as /bin/ioscript, and /job.sh sets QUEUES, CACHE, POLL and WORK before it. The first failing
# check ends it. Lines that begin with GUEST are read by the test.
set -eu
fail() { echo "GUEST-FAIL: $*"; exit 1; }
for i in $(seq 200); do [ -e /sys/block/vda ] && break; sleep 0.1; done
cd /sys/block/vda
q=queue cpus=$(nproc)
want=$((QUEUES < cpus ? QUEUES : cpus))
[ "$(ls mq | wc -l)" = "$want" ] || fail "$(ls mq | wc -l) hardware queues, not $want"
[ "$(cat $q/write_cache)" = "$CACHE" ] || fail "cache is '$(cat $q/write_cache)', not '$CACHE'"
[ "$(cat serial)" = "$SERIAL" ] || fail "serial is '$(cat serial)'"
echo "GUEST device: size $(cat size) queues $(ls mq | wc -l) cache '$(cat $q/write_cache)' segments $(cat $q/max_segments)" \
  "discard $(cat $q/discard_max_bytes) zeroes $(cat $q/write_zeroes_max_bytes) tags $(cat mq/0/nr_tags)"
sum() { dd if=/dev/vda bs=64k skip="$1" count="$2" iflag=direct 2>/dev/null | sha256sum; }

# Independent of fio's own checks.
dd if=/dev/urandom of=/tmp/data bs=64k count=64 2>/dev/null
dd if=/tmp/data of=/dev/vda bs=64k seek=3 oflag=direct conv=fsync 2>/dev/null
[ "$(sha256sum </tmp/data)" = "$(sum 3 64)" ] || fail "what was written is not what is read"
zeroes=$(dd if=/dev/zero bs=64k count=16 2>/dev/null | sha256sum)
if [ "$(cat $q/discard_max_bytes)" -gt 0 ]; then
  blkdiscard -o 1M -l 1M /dev/vda || fail "discard"
fi
[ "$(cat $q/write_zeroes_max_bytes)" -gt 0 ] || fail "no write zeroes"
# The range that is zeroed was written before: 2 MiB are blocks 32 to 47.
fallocate -z -o 2M -l 1M /dev/vda 2>/dev/null || blkdiscard -z -o 2M -l 1M /dev/vda 2>/dev/null || dd if=/dev/zero of=/dev/vda bs=1M seek=2 count=1 oflag=direct 2>/dev/null
[ "$(sum 32 16)" = "$zeroes" ] || fail "zeroed blocks are not zeroes"
[ "$(sum 48 16)" = "$(tail -c +2949121 /tmp/data | head -c 1048576 | sha256sum)" ] || fail "blocks beside the zeroed ones"

load() { # name, more options: one verifying job per CPU, each in its own part, so that every queue carries I/O
  name=$1; shift
  fio --filename=/dev/vda --direct=1 --numjobs="$cpus" --cpus_allowed_policy=split --cpus_allowed="0-$((cpus - 1))" \
    --offset=16m --verify=crc32c --verify_fatal=1 --do_verify=1 --name="$name" --minimal "$@" >/tmp/fio.out 2>&1 ||
    { cat /tmp/fio.out; fail "fio $name"; }
}
case $WORK in
  verify)
    load verify --ioengine=libaio --iodepth=16 --bsrange=4k-128k --rw=randwrite --size=6m --offset_increment=6m --fsync=64
    if [ "$POLL" -gt 0 ]; then
      load poll --ioengine=io_uring --hipri --iodepth=8 --bs=4k --rw=randwrite --size=2m --offset_increment=2m
    fi
    ;;
  reconnect | migrate)
    # Says so when it is under way: the daemon is killed then, or the machine begins to move, which takes some of the rounds.
    ( set -- $(cat stat); start=$5
      while set -- $(cat stat); [ $(($5 - start)) -lt 1500 ]; do usleep 10000; done
      echo GUEST-UNDER-LOAD ) &
    rounds=1
    [ "$WORK" = migrate ] && rounds=8
    for i in $(seq $rounds); do
      load "$WORK" --ioengine=libaio --iodepth=16 --bs=4k --rw=randwrite --size=8m --offset_increment=8m --fsync=512
    done
    wait
    ;;
  resize)
    before=$(cat size)
    echo GUEST-READY-TO-GROW
    for i in $(seq 300); do [ "$(cat size)" != "$before" ] && break; sleep 0.1; done
    [ "$(cat size)" = "$GROWN" ] || fail "size is $(cat size) sectors, not $GROWN"
    dd if=/tmp/data of=/dev/vda bs=64k seek=$((before / 128)) oflag=direct conv=fsync 2>/dev/null
    [ "$(sha256sum </tmp/data)" = "$(sum $((before / 128)) 64)" ] || fail "the new part"
    ;;
esac
for h in mq/*; do
  echo "GUEST $h: cpus $(cat "$h/cpu_list")"
done
grep -E 'virtio.*req' /proc/interrupts | sed 's/^/GUEST irq /'
echo "GUEST-PASS"
