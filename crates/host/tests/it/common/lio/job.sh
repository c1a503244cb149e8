# SPDX-License-Identifier: Apache-2.0 OR MIT
# What the guest does: makes the kernel an iSCSI target with one disk, which two portal groups have as LUN 0, each in a target port group of its own; then
# carries out the lines that come from its console, and says with what status each ended.
set -e
stty -echo
# Its messages would stand in the middle of answers.
echo 1 >/proc/sys/kernel/printk
for module in virtio_net configfs; do modprobe $module; done
mount -t tmpfs tmp /tmp
mount -t configfs config /sys/kernel/config
# Where it keeps states of port groups and reservations; the module looks for it once.
mkdir -p /etc/target/alua /etc/target/pr
for module in target_core_mod target_core_file iscsi_target_mod; do modprobe $module; done
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0
target=/sys/kernel/config/target disk=$target/core/fileio_0/disk node=$target/iscsi/iqn.2026-11.test:lio
mkdir -p $disk
dd if=/dev/zero of=/tmp/disk bs=1M count=0 seek=$((BYTES >> 20)) 2>/dev/null
echo fd_dev_name=/tmp/disk,fd_dev_size=$BYTES >$disk/control
echo LIO0001 >$disk/wwn/vpd_unit_serial
echo 1 >$disk/enable
echo 1 >$disk/attrib/emulate_tpu
echo 1 >$disk/attrib/emulate_tpws
for i in 1 2; do
  group=$disk/alua/group$i portals=$node/tpgt_$i
  mkdir $group
  echo $i >$group/tg_pt_gp_id
  # Implicit and explicit changes.
  echo 3 >$group/alua_access_type
  mkdir -p $portals/lun/lun_0 $portals/np/10.0.2.15:$((3259 + i))
  ln -s $disk $portals/lun/lun_0/disk
  echo group$i >$portals/lun/lun_0/alua_tg_pt_gp
  # Any initiator may use it.
  echo 0 >$portals/attrib/authentication
  echo 1 >$portals/attrib/generate_node_acls
  echo 1 >$portals/attrib/cache_dynamic_acls
  echo 0 >$portals/attrib/demo_mode_write_protect
  echo 1 >$portals/enable
done
set +e
echo LIO-IS-UP
while read -r line; do
  eval "$line"
  echo "LIO-DID: $?"
done
