# SPDX-License-Identifier: Apache-2.0 OR MIT
# kill -9 of the daemon under load, and a new one: the load goes on, and nothing that was acknowledged is lost.
. /jobs/lib.sh
truncate -s 64M data.img
config 5 2 true data.img >c.toml
serve c.toml
fio --name=load --filename=/dev/ublkb5 --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=24m --io_size=48m \
  --norandommap=0 --loops=2 --verify=crc32c --verify_fatal=1 --fsync=128 >fio.load 2>&1 &
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
# Only the disk that it was, as far as can be seen, is served to its users.
refused() {
  mqblk serve other.toml >o 2>e && fail "the device that waits was served with $1"
  grep -q "ublk device 5 waits for recovery with .*$2" e || { cat e; fail "not said what it waits for: $2"; }
}
config 5 1 true data.img >other.toml
refused "other queues" "num_queues=2, not 1"
truncate -s 32M small.img
config 5 2 true small.img >other.toml
refused "a smaller disk" "size=67108864, not 33554432"
block=$(cat /sys/block/ublkb5/queue/logical_block_size) other=$((block == 512 ? 4096 : 512))
config 5 2 true "ram:size=64m,blocksize=$other" >other.toml
refused "other blocks" "logical_block_size=$block, not $other"
config 5 2 true data.img "" "logical_block_size = $other" >other.toml
refused "other blocks by its key" "logical_block_size=$block, not $other"
config 5 2 true data.img 'read_only = true' >other.toml
refused "what cannot be written" "read_only=false, not true"
config 5 2 true data.img '' 'write_cache = "write through"' >other.toml
refused "another cache" "write_cache="
serve c.toml
verify /dev/ublkb5 after --size=16m --bsrange=4k-64k
mqblk ctl resize d 96m >said 2>&1 || { cat said; fail "resize"; }
if grep -q "/dev/ublkb5 keeps its size: resizing a ublk device needs Linux 6.16" said; then
  [ "$(cat /sys/block/ublkb5/size)" = 131072 ] || fail "size $(cat /sys/block/ublkb5/size)"
  echo "UBLK $(uname -r) keeps sizes, and it is said"
else
  until_true 10 grep -qx 196608 /sys/block/ublkb5/size
  echo "UBLK $(uname -r) was given another size"
fi
end
config 5 2 false data.img >c.toml
serve c.toml
end
until_true 10 test ! -e /dev/ublkb5
echo "UBLK recovery ends with recovery=false"
