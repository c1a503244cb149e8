#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# modules.sh KERNELDIR ROOT MODULE...
#
# Puts the modules, what they depend on and their index into the root of a guest, not compressed: busybox's modprobe reads them. KERNELDIR
# is a Debian kernel package unpacked with `dpkg-deb -x`.
set -euo pipefail
kernel=$1 root=$2; shift 2
base=$(find "$kernel" -type d -path '*lib/modules/*' -prune | head -1)
[ -n "$base" ] || { echo "there are no modules in $kernel" >&2; exit 1; }
version=$(basename "$base") top=${base%/lib/modules/*}
[ -s "$base/modules.dep" ] || depmod -b "$top" "$version"
mkdir -p "$root/lib/modules/$version"
for module in "$@"; do
  modprobe -d "$top" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | sort -u | while read -r file; do
  name=$(basename "$file") to="$root/lib/modules/$version/$(basename "${file%%.ko*}").ko"
  case $name in
    *.xz) xz -dc "$file" ;;
    *.zst) zstd -qdc "$file" ;;
    *) cat "$file" ;;
  esac >"$to"
done
cp "$base"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$version/" 2>/dev/null || true
depmod -b "$root" "$version"
