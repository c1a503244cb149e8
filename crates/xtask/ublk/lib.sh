# SPDX-License-Identifier: Apache-2.0 OR MIT
# What the scripts in the guest share; it does nothing by itself.

fail() {
  echo "UBLK-FAIL: $*"
  [ ! -f log ] || cat log
  dmesg | tail -5
  exit 1
}

# until_true SECONDS COMMAND...: waits for a condition.
until_true() {
  limit=$(($1 * 10)); shift
  while ! "$@" 2>/dev/null; do
    limit=$((limit - 1))
    [ "$limit" -gt 0 ] || fail "not within its time: $*"
    usleep 100000
  done
}

# config ID QUEUES RECOVERY TARGET [LINE OF THE EXPORT] [LINE OF THE DISK]
config() {
  printf '[[disk]]\nname = "d"\ntarget = "%s"\n%s\n' "$4" "${6:-}"
  printf '[[export]]\ntype = "ublk"\nid = %s\nnum_queues = %s\nqueue_depth = 64\nrecovery = %s\n%s\n' "$1" "$2" "$3" "${5:-}"
}

# serve CONFIG: starts mqblk and waits until it serves; $server is its process.
serve() {
  mqblk serve "$1" >out 2>log &
  server=$!
  until_true 60 sh -c "grep -q 'Ctrl-C or SIGTERM ends it' log || ! kill -0 $server"
  kill -0 "$server" 2>/dev/null || fail "mqblk does not serve"
}

# end: ends it as an operator does.
end() {
  kill -TERM "$server"
  wait "$server" || fail "mqblk ended with $?"
}

# verify DEVICE NAME OPTIONS...: writes, reads back and compares.
verify() {
  device=$1 name=$2; shift 2
  fio --name="$name" --filename="$device" --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 \
    --bsrange=4k-256k --iodepth=16 "$@" >"fio.$name" 2>&1 || { cat "fio.$name"; fail "fio $name"; }
}
