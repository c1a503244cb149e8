#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# initramfs.sh KERNELDIR OUT.cpio IOSCRIPT MODULE...
#
# Builds the root of the recording guest: static busybox, the script runner, the modules and what they depend on.
# KERNELDIR is a Debian kernel package unpacked with `dpkg-deb -x`. At boot /init loads virtio_blk, runs /job.sh (a second
# cpio archive brings it), prints "JOB-EXIT: status" and powers off. Not compressed: under emulation a guest unpacks slower
# than QEMU copies.
set -euo pipefail
kernel=$1 out=$(realpath -m "$2") ioscript=$3; shift 3
base=$(find "$kernel" -type d -path '*lib/modules/*' -prune | head -1)
version=$(basename "$base") top=${base%/lib/modules/*}
[ -s "$base/modules.dep" ] || depmod -b "$top" "$version"
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,out} "$root/lib/modules/$version"
cp "$(command -v busybox)" "$root/bin/busybox"
if ldd "$root/bin/busybox" >/dev/null 2>&1; then
  echo "busybox is not static: install busybox-static" >&2; exit 1
fi
cp "$ioscript" "$root/bin/ioscript"
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
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin; ln -s /bin/busybox /sbin/modprobe
export PATH=/bin:/sbin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t tracefs trace /sys/kernel/tracing
modprobe virtio_pci; modprobe virtio_blk
sh /job.sh; echo "JOB-EXIT: $?"; sync; poweroff -f
INIT
chmod +x "$root/init"
( cd "$root" && find . | cpio -o -H newc --quiet ) >"$out"
