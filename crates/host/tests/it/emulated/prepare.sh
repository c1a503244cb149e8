#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# prepare.sh CACHE NAME SCRIPT PROGRAMS MODULES
#
# Leaves in CACHE a kernel, fetched once, and the root of a guest (NAME.cpio) with busybox, PROGRAMS and what they load, and MODULES; prints the
# paths of both. SCRIPT stands in it as /bin/ioscript (the place of the oracle's script runner), and is what the guest runs unless another archive
# brings another /job.sh. Debian's programs come with their libraries: static ones would have to be built.
set -euo pipefail
mkdir -p "$1"
cache=$(realpath "$1") initrd=$cache/$2.cpio script=$3 here=$(cd "$(dirname "$0")" && pwd)
oracle=$here/../../../../oracle/guest package=linux-image-cloud-amd64
vmlinuz=$(bash "$oracle/kernel.sh" "$cache" $package)
exec 9>"$cache/lock"; flock 9
new() { [ "$initrd" -nt "$1" ]; }
if ! { new "$script" && new "$0" && new "$oracle/initramfs.sh" && new "$oracle/modules.sh" && new "$vmlinuz"; }; then
  work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
  # shellcheck disable=SC2086 # a list of modules
  bash "$oracle/initramfs.sh" "$cache/$package/root" "$work/base" "$script" $5
  mkdir -p "$work/root/bin"
  echo 'exec sh /bin/ioscript' >"$work/root/job.sh"
  for program in $4; do
    path=$(command -v "$program") || { echo "the guest needs $program, which is not installed" >&2; exit 1; }
    cp -L "$path" "$work/root/bin/$program"
    ldd "$path" | grep -o '/[^ )]*' | while read -r library; do
      mkdir -p "$work/root$(dirname "$library")"
      cp -L "$library" "$work/root$library"
    done
  done
  ( cd "$work/root" && find . | cpio -o -H newc --quiet ) >"$work/more"
  cat "$work/base" "$work/more" >"$initrd.new"
  mv "$initrd.new" "$initrd"
fi
printf '%s\n' "$vmlinuz" "$initrd"
