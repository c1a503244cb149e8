#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# [JOB=job.sh] record.sh CACHE OUT PACKAGE CPUS [NAME.io NAME.env ...]
#
# Runs scripts on null_blk in a guest with the Debian kernel PACKAGE. Leaves NAME.trace, NAME.env (as the kernel reports
# it) and NAME.done in OUT. JOB names another script of this folder to run in the guest instead. The kernel package is
# fetched once, into CACHE. KVM is neither needed nor used: orders are recorded, not times, and with one emulated CPU
# they repeat. `-cx16`: QEMU 7.2 breaks the slab allocator of newer kernels with that instruction. `thread=single`: its
# emulation by several threads may execute an int3 of the kernel's code patching after the patching ended (an Oops).
set -euo pipefail
cache=$(realpath -m "$1") out=$(realpath -m "$2") package=$3 cpus=$4; shift 4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
kernel="$cache/$package"
vmlinuz=$(bash "$here/kernel.sh" "$cache" "$package")
if [ ! -s "$kernel/initrd.cpio" ] || [ "$here/initramfs.sh" -nt "$kernel/initrd.cpio" ] || [ "$here/modules.sh" -nt "$kernel/initrd.cpio" ] || [ "$here/ioscript.c" -nt "$kernel/initrd.cpio" ] || [ "$0" -nt "$kernel/initrd.cpio" ]; then
  gcc -O2 -static -o "$kernel/ioscript" "$here/ioscript.c"
  bash "$here/initramfs.sh" "$kernel/root" "$kernel/initrd.cpio" "$kernel/ioscript" \
    virtio_pci virtio_blk null_blk scsi_debug sd_mod mq-deadline kyber-iosched bfq
fi
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
cp "$here/${JOB:-job.sh}" "$work/root/case.sh"
[ $# = 0 ] || cp "$@" "$work/root/"
cat >"$work/root/job.sh" <<'JOB'
sh /case.sh; status=$?
tar -C /out -c . | dd of=/dev/vda bs=1M conv=fsync 2>/dev/null
exit $status
JOB
( cd "$work/root" && find . -type f | cpio -o -H newc --quiet ) >"$work/job.cpio"
cat "$kernel/initrd.cpio" "$work/job.cpio" >"$work/initrd"
truncate -s 64M "$work/disk"
timeout "${LIMIT:-300}" qemu-system-x86_64 -machine q35 -accel tcg,thread=single -cpu max,-cx16 -smp "$cpus" -m 1024 \
  -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" -nodefaults -display none -serial stdio -no-reboot \
  -kernel "$vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 panic=-1 quiet no_timer_check" </dev/null >"$out/console.log" 2>&1 ||
  { echo "the guest did not end by itself; its console: $out/console.log" >&2; exit 1; }
grep -aq '^JOB-EXIT: 0' "$out/console.log" ||
  { echo "the guest's job failed:" >&2; grep -av '^\[' "$out/console.log" | tail -5 >&2; exit 1; }
tar -C "$out" -xf "$work/disk"
