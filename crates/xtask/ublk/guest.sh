#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# guest.sh CACHE PACKAGE MQBLK CPUS JOB...
#
# Boots the Debian kernel PACKAGE under emulation with ublk_drv, nbd, loop, busybox, fio, e2fsprogs, nbd-client, losetup, dash and MQBLK
# (with the libraries they load), and runs the JOB scripts in it one after the other. The console goes to standard output; exit status 0 if the guest
# ended by itself and all scripts did with 0. The kernel is fetched once, into CACHE. No KVM is used. `-cx16`: QEMU 7.2 breaks the
# slab allocator of newer kernels with that instruction. `thread=single`: its emulation by several threads may execute an int3 of the
# kernel's code patching after the patching ended (an Oops). `no_timer_check`: on a busy host the timer comes later than the kernel waits for it.
set -euo pipefail
cache=$(realpath -m "$1") package=$2 mqblk=$3 cpus=$4; shift 4
here=$(dirname "$(realpath "$0")")
vmlinuz=$(bash "$here/../../oracle/guest/kernel.sh" "$cache" "$package")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
root="$work/root"
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,mnt,jobs}
cp "$(command -v busybox)" "$root/bin/busybox"
for program in "$mqblk" fio mkfs.ext4 e2fsck nbd-client losetup dash; do
  path=$(command -v "$program") || { echo "the guest needs $program, which is not installed" >&2; exit 1; }
  cp -L "$path" "$root/bin/$(basename "$program")"
  strip "$root/bin/$(basename "$program")" 2>/dev/null || true
  for library in $(ldd "$path" 2>/dev/null | grep -o '/[^ )]*' || true); do
    mkdir -p "$root$(dirname "$library")"; cp -nL "$library" "$root$library"
  done
done
bash "$here/../../oracle/guest/modules.sh" "$cache/$package/root" "$root" ublk_drv ext4 nbd loop
cp "$@" "$root/jobs/"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin; ln -s /bin/busybox /sbin/modprobe
export PATH=/bin:/sbin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm; mkdir -p /run
modprobe ublk_drv
status=0
for job in /jobs/[0-9]*; do echo "JOB: ${job##*/}"; ( cd /tmp; sh "$job" ) || status=$?; done
echo "JOB-EXIT: $status"; sync; poweroff -f
INIT
chmod +x "$root/init"
( cd "$root" && find . | cpio -o -H newc --quiet ) >"$work/initrd"
timeout "${LIMIT:-900}" qemu-system-x86_64 -machine q35 -accel tcg,thread=single -cpu max,-cx16 -smp "$cpus" -m 2048 \
  -nodefaults -display none -serial stdio -no-reboot -kernel "$vmlinuz" -initrd "$work/initrd" \
  -append "console=ttyS0 panic=-1 quiet no_timer_check" </dev/null 2>&1 | tee "$work/console" ||
  { echo "the guest did not end by itself" >&2; exit 1; }
! grep -aqE 'Oops:|BUG:|UBSAN' "$work/console" && grep -aq '^JOB-EXIT: 0' "$work/console"
