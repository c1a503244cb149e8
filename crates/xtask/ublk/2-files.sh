# SPDX-License-Identifier: Apache-2.0 OR MIT
# A file behind ext4: made, filled, checked; read-only; written through; a number in use; a device that a killed daemon left behind.
. /jobs/lib.sh
modprobe ext4 || fail "no ext4"
truncate -s 96M disk.img
config 3 2 false disk.img >c.toml
serve c.toml
mkfs.ext4 -q /dev/ublkb3 || fail mkfs
mount -t ext4 /dev/ublkb3 /mnt || fail mount
cp -r /bin/busybox /bin/mqblk /mnt/ || fail copy
sync
before=$(sha256sum </bin/mqblk)
umount /mnt; echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o discard /dev/ublkb3 /mnt || fail mount
[ "$(sha256sum </mnt/mqblk)" = "$before" ] || fail "the file is another one"
used=$(du -k disk.img | cut -f1)
rm /mnt/mqblk; sync; umount /mnt
e2fsck -fn /dev/ublkb3 >fsck 2>&1 || { cat fsck; fail fsck; }
[ "$(du -k disk.img | cut -f1)" -lt "$used" ] || fail "discards did not free blocks: $used KiB before"
config 3 1 false null:size=1m >other.toml
mqblk serve other.toml >o 2>e && fail "two daemons have one device"
grep -q "ublk device 3 is in use by process $server" e || { cat e; fail "the owner is not reported"; }
kill -9 "$server"; wait "$server"
# Without recovery the kernel ends the device, and its number is left behind.
until_true 30 test ! -e /dev/ublkb3
config 3 2 false disk.img 'read_only = true' >c.toml
serve c.toml
[ "$(cat /sys/block/ublkb3/ro)" = 1 ] || fail "not read-only"
e2fsck -fn /dev/ublkb3 >fsck 2>&1 || { cat fsck; fail "fsck, read-only"; }
dd if=/dev/zero of=/dev/ublkb3 bs=4k count=1 oflag=direct 2>/dev/null && fail "a read-only device was written"
end
config 3 2 false disk.img '' 'write_cache = "write through"' >c.toml
serve c.toml
cache="$(cat /sys/block/ublkb3/queue/write_cache), fua $(cat /sys/block/ublkb3/queue/fua)"
[ "$cache" = "write through, fua 0" ] || fail "a cache that is written through: $cache"
verify /dev/ublkb3 through --size=8m --bsrange=4k-64k
# Tables are zeroed by write zeroes.
mkfs.ext4 -q -E lazy_itable_init=0,nodiscard /dev/ublkb3 || fail "mkfs, written through"
e2fsck -fn /dev/ublkb3 >fsck 2>&1 || { cat fsck; fail "fsck, written through"; }
end
# Blocks of the export's own.
config 3 1 false ram:size=8m 'logical_block_size = 4096' >c.toml
serve c.toml
[ "$(cat /sys/block/ublkb3/queue/logical_block_size)" = 4096 ] || fail "other blocks than those of the export"
verify /dev/ublkb3 blocks --size=4m --bsrange=4k-64k
end
