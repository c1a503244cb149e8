# SPDX-License-Identifier: Apache-2.0 OR MIT
# Partitions, odd sectors and verifying load in a guest whose disk has smaller blocks than the host's storage.
set -eu
fail() { echo "GUEST-FAIL: $*"; exit 1; }
for i in $(seq 200); do [ -e /sys/block/vda ] && break; sleep 0.1; done
q=/sys/block/vda/queue
[ "$(cat $q/logical_block_size)" = 512 ] || fail "logical blocks of $(cat $q/logical_block_size)"
[ "$(cat $q/physical_block_size)" = 4096 ] || fail "physical blocks of $(cat $q/physical_block_size)"
[ "$(cat /sys/block/vda/vda1/start)" = 63 ] || fail "no partition"
dd if=/dev/urandom of=/tmp/data bs=512 count=999 2>/dev/null
dd if=/tmp/data of=/dev/vda1 bs=512 seek=5 oflag=direct conv=fsync 2>/dev/null
dd if=/dev/vda bs=512 skip=68 count=999 iflag=direct 2>/dev/null | cmp - /tmp/data || fail "what was written is not what is read"
dd if=/dev/vda bs=512 count=63 iflag=direct 2>/dev/null | tail -c 2 >/tmp/end
dd if=/dev/zero bs=2 count=1 2>/dev/null | cmp - /tmp/end || fail "the sector before the partition"
for job in 1 2; do
  fio --name=odd --filename=/dev/vda1 --direct=1 --ioengine=libaio --iodepth=16 --numjobs=2 --offset=600k --size=1m --offset_increment=1m \
    --bsrange=512-20k --bs_unaligned=0 --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 --fsync=32 --minimal >/tmp/fio.out 2>&1 ||
    { cat /tmp/fio.out; fail "fio"; }
done
echo "GUEST-PASS"
