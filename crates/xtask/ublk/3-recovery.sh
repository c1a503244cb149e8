# SPDX-License-Identifier: Apache-2.0 OR MIT
# kill -9 of the daemon under load, and a new one: the load goes on, and nothing that was acknowledged is lost.
. /jobs/lib.sh
truncate -s 64M data.img
config 5 2 true data.img >c.toml
serve c.toml
fio --name=load --filename=/dev/ublkb5 --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=32m --io_size=96m \
  --norandommap=0 --loops=3 --verify=crc32c --verify_fatal=1 --fsync=128 >fio.load 2>&1 &
load=$!
for round in 1 2 3; do
  written=$(awk '{ print $7 }' /sys/block/ublkb5/stat)
  until_true 120 sh -c "[ \$(awk '{ print \$7 }' /sys/block/ublkb5/stat) -gt $((written + 8192)) ]"
  kill -0 "$load" || break
  kill -9 "$server"; wait "$server"
  [ -e /dev/ublkb5 ] || fail "the device did not outlive the daemon"
  serve c.toml
  echo "UBLK killed and restarted: round $round"
done
[ "$round" = 3 ] || { cat fio.load; fail "fio had ended after round $round"; }
wait "$load" || { cat fio.load; fail "fio, over $round restarts"; }
grep -q 'err= 0' fio.load || { cat fio.load; fail "fio saw errors"; }
# An orderly end leaves it, too.
end
[ -e /dev/ublkb5 ] || fail "the device did not outlive an orderly end"
config 5 1 true data.img >other.toml
mqblk serve other.toml >o 2>e && fail "other queues than the device that waits"
grep -q "waits to be served with num_queues=2 and queue_depth=64, not 1 and 64" e || { cat e; fail "not said what it waits for"; }
serve c.toml
verify /dev/ublkb5 after --size=32m
end
config 5 2 false data.img >c.toml
serve c.toml
end
until_true 10 test ! -e /dev/ublkb5
echo "UBLK recovery ends with recovery=false"
