# SPDX-License-Identifier: Apache-2.0 OR MIT
# The kernel's block devices on NBD and FUSE exports, made by the commands that mqblk prints, as printed: with blocks of 512 and of 4096 bytes,
# ext4 on each.
. /jobs/lib.sh
for module in nbd loop ext4; do modprobe "$module" || fail "no module $module"; done
ip link set lo up

# run_printed: runs the command below the line `Linux block device`.
run_printed() {
  command=$(sed -n '/^  Linux block device/{n;s/^ *//p;q}' out)
  [ -n "$command" ] || { cat out; fail "no command is printed"; }
  echo "CLIENT $command"
  # Not by busybox, which runs its own losetup for this one.
  dash -c "$command" >client 2>&1 || { cat client; fail "the printed command"; }
}

# use DEVICE BLOCK: a file system that keeps what it is given.
use() {
  queue=/sys/block/${1#/dev/}/queue
  [ "$(cat "$queue/logical_block_size")" = "$2" ] || fail "$1 has blocks of $(cat "$queue/logical_block_size"), not $2"
  [ "$(cat "${queue%queue}size")" = 131072 ] || fail "$1 has $(cat "${queue%queue}size") sectors"
  mkfs.ext4 -q "$1" || fail "mkfs on $1"
  mount -t ext4 "$1" /mnt || fail "mount $1"
  cp /bin/busybox /mnt/ || fail copy
  sync; umount /mnt; echo 3 >/proc/sys/vm/drop_caches
  mount -t ext4 "$1" /mnt || fail "mount $1 again"
  cmp /mnt/busybox /bin/busybox || fail "the file is another one"
  umount /mnt
  e2fsck -fn "$1" >fsck 2>&1 || { cat fsck; fail fsck; }
}

# serve_as BLOCK EXPORT: serves a new image of 64 MiB.
serve_as() {
  rm -f disk.img; truncate -s 64M disk.img
  printf '[[disk]]\nname = "d"\ntarget = "disk.img"\nlogical_block_size = %s\n[[export]]\n%s\n' "$1" "$2" >c.toml
  serve c.toml
}

for block in 512 4096; do
  for at in 'listen = "127.0.0.1:10809"' 'socket = "/tmp/d.sock"'; do
    serve_as "$block" "type = \"nbd\"
$at"
    run_printed
    until_true 30 grep -qv "^0$" /sys/block/nbd0/size
    use /dev/nbd0 "$block"
    nbd-client -d /dev/nbd0 >client 2>&1 || { cat client; fail disconnect; }
    end
  done
  : >disk
  serve_as "$block" 'type = "fuse"
mountpoint = "/tmp/disk"'
  run_printed
  loop=$(cat client)
  use "$loop" "$block"
  dash -c "losetup --detach $loop" || fail detach
  end
done
