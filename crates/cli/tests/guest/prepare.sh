#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# prepare.sh CACHE
#
# Leaves in CACHE a kernel (vmlinuz) and the root of a guest (initrd.cpio) with busybox, fio and what job.sh needs. The kernel is
# fetched once. Debian's fio comes with its libraries: a static one would have to be built.
set -euo pipefail
mkdir -p "$1"
cache=$(realpath "$1") here=$(cd "$(dirname "$0")" && pwd)
exec 9>"$cache/lock"; flock 9
new() { [ -s "$2" ] && [ ! "$1" -nt "$2" ]; }
oracle=$here/../../../oracle/guest package=linux-image-cloud-amd64 initrd=$cache/initrd.cpio
vmlinuz=$(bash "$oracle/kernel.sh" "$cache" $package)
ln -sf "$vmlinuz" "$cache/vmlinuz"
if new "$here/job.sh" "$initrd" && new "$0" "$initrd" && new "$oracle/modules.sh" "$initrd" && new "$vmlinuz" "$initrd"; then exit 0; fi
# The place of the oracle's script runner takes the job.
bash "$oracle/initramfs.sh" "$cache/$package/root" "$cache/base.cpio" "$here/job.sh" virtio_pci virtio_blk mq-deadline
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
fio=$(command -v fio)
cp -L "$fio" "$work/bin/fio"
ldd "$fio" | grep -o '/[^ )]*' | while read -r library; do
  mkdir -p "$work$(dirname "$library")"
  cp -L "$library" "$work$library"
done
( cd "$work" && find . | cpio -o -H newc --quiet ) >"$work.cpio"
cat "$cache/base.cpio" "$work.cpio" >"$cache/initrd.new"
rm -f "$work.cpio" "$cache/base.cpio"
mv "$cache/initrd.new" "$cache/initrd.cpio"
