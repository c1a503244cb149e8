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
here=$(dirname "$0")
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,out}
cp "$(command -v busybox)" "$root/bin/busybox"
if ldd "$root/bin/busybox" >/dev/null 2>&1; then
  echo "busybox is not static: install busybox-static" >&2; exit 1
fi
cp "$ioscript" "$root/bin/ioscript"
bash "$here/modules.sh" "$kernel" "$root" "$@"
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
