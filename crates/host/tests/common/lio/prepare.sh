#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# prepare.sh CACHE
#
# Leaves in CACHE the root of a guest whose kernel is an iSCSI target (target.cpio), and prints the paths of its kernel and of the root.
set -euo pipefail
mkdir -p "$1"
cache=$(realpath "$1") here=$(cd "$(dirname "$0")" && pwd)
oracle=$here/../../../../oracle/guest package=linux-image-cloud-amd64 initrd=$cache/target.cpio
vmlinuz=$(bash "$oracle/kernel.sh" "$cache" $package)
exec 9>"$cache/lock"; flock 9
new() { [ "$initrd" -nt "$1" ]; }
if ! { new "$here/job.sh" && new "$0" && new "$oracle/initramfs.sh" && new "$oracle/modules.sh" && new "$vmlinuz"; }; then
  work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
  # The place of the oracle's script runner is taken by nothing that is used.
  bash "$oracle/initramfs.sh" "$cache/$package/root" "$work/root.cpio" "$here/job.sh" \
    virtio_pci virtio_blk virtio_net configfs target_core_mod target_core_file iscsi_target_mod
  cp "$here/job.sh" "$work/job.sh"
  ( cd "$work" && echo job.sh | cpio -o -H newc --quiet ) >"$work/job.cpio"
  cat "$work/root.cpio" "$work/job.cpio" >"$initrd.new"
  mv "$initrd.new" "$initrd"
fi
printf '%s\n' "$vmlinuz" "$initrd"
