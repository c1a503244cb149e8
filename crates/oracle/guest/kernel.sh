#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# kernel.sh DIRECTORY PACKAGE
#
# Unpacks the Debian kernel PACKAGE in DIRECTORY/PACKAGE/root and prints the path of its image. The package is fetched
# only once, even if several runs ask for it at the same time.
set -euo pipefail
mkdir -p "$1/$2"; cd "$1/$2"
exec 8>lock; flock 8
if [ ! -d root ]; then
  # A meta-package names the real one.
  real=$(apt-cache depends "$2" | awk '/Depends: linux-image-/ { print $2; exit }')
  rm -rf root.new ./*.deb
  apt-get -q download "${real:-$2}" >/dev/null || { echo "cannot fetch $2: is there a package archive (apt-get update)?" >&2; exit 1; }
  dpkg-deb -x ./*.deb root.new
  mv root.new root; rm ./*.deb
fi
find "$PWD/root" -name 'vmlinuz*' | head -1
