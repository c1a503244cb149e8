# SPDX-License-Identifier: Apache-2.0 OR MIT
# The Debian package from its installation to its removal, as root on a clean Debian under systemd. The last line is PASSED; otherwise
# the commands and their errors are in /mnt/trace.
exec 2>/mnt/trace
set -eux
trap '[ $? = 0 ] || journalctl --unit "mqblk-serve@*" --lines 40 --no-hostname >&2' EXIT

say() { printf '    %s\n' "$*"; }
fails() { if "$@"; then exit 1; fi; }

# Everything on the root file system but what dpkg, systemd and accounts keep about packages that were there.
files() {
    find / -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log -o -path /var/lib/systemd -o -path /var/tmp \) -prune \
        -o ! -path '/etc/*-' ! -path /etc/.pwd.lock -print | LC_ALL=C sort
}

files >/tmp/before

say "install"
dpkg --install /mnt/mqblk.deb >&2

say "the program, its engine, its pages and completions"
mqblk --version
test -z "$(ldd /usr/lib/mqblk/libmqblk_fio.so | grep 'not found')"
for page in man1/mqblk.1 man1/mqblk-serve.1 man5/mqblk-job.5 man5/mqblk-serve.5 man7/mqblk-targets.7; do
    zcat "/usr/share/man/$page.gz" | grep '^\.TH mqblk' >&2
done
bash -n /usr/share/bash-completion/completions/mqblk
test -s /usr/share/zsh/vendor-completions/_mqblk
test -s /usr/share/fish/vendor_completions.d/mqblk.fish
test -s /usr/share/doc/mqblk/third-party.txt.gz

say "a comparison"
cd /tmp
mqblk compare /mnt/job.fio --target ram:size=16m --b mode=sq --pairs 12 --runtime 100ms >/tmp/compared
grep IOPS /tmp/compared

say "the example is served, by a user of its own"
systemctl start mqblk-serve@example.service
systemctl is-active --quiet mqblk-serve@example.service
pid=$(systemctl show --property MainPID --value mqblk-serve@example.service)
test "$(stat --format %U "/proc/$pid")" = mqblk
mqblk ctl --control /run/mqblk-example/ctl.sock list

say "an image is served, written, reloaded, restarted and read"
truncate --size 64M /var/lib/mqblk/data.img
chown mqblk:mqblk /var/lib/mqblk/data.img
cat >/etc/mqblk/data.toml <<'EOF'
[[disk]]
name = "data"
target = "/var/lib/mqblk/data.img"

[[export]]
type = "nbd"

[[export]]
type = "vhost-user-blk"
num_queues = 2
EOF
systemctl enable --now mqblk-serve@data.service
uri="nbd+unix:///data?socket=/run/mqblk-data/data.nbd.sock"
printf '[job]\nrw=write\nbs=64k\nsize=16m\nverify=crc32c\ndo_verify=1\n' >/tmp/verify.fio
mqblk run /tmp/verify.fio --target "$uri" >&2
systemctl reload mqblk-serve@data.service
cp /etc/mqblk/data.toml /tmp/data.toml
echo 'target = 1' >>/etc/mqblk/data.toml
fails systemctl reload mqblk-serve@data.service
cp /tmp/data.toml /etc/mqblk/data.toml
mqblk ctl --control /run/mqblk-data/ctl.sock add ram:size=1m
systemctl restart mqblk-serve@data.service
printf '[job]\nrw=read\nbs=64k\nsize=16m\nverify=crc32c\n' >/tmp/verify.fio
mqblk run /tmp/verify.fio --target "$uri" >&2

say "an upgrade leaves daemons running"
dpkg --install /mnt/mqblk.deb >&2
systemctl is-active --quiet mqblk-serve@data.service

say "systemd makes the sockets"
systemctl stop mqblk-serve@data.service
systemctl start mqblk-serve@data.socket
test "$(stat --format %G /run/mqblk-data/data.nbd.sock)" = mqblk
mqblk run /tmp/verify.fio --target "$uri" >&2
systemctl stop mqblk-serve@data.service
test -S /run/mqblk-data/data.nbd.sock
mqblk run /tmp/verify.fio --target "$uri" >&2
systemctl is-active --quiet mqblk-serve@data.service

say "what is removed stops first, and purging leaves images and what owns them"
dpkg --remove mqblk >&2
fails systemctl is-active --quiet mqblk-serve@data.service
test -e /etc/mqblk/example.toml
dpkg --purge mqblk >&2
test -s /var/lib/mqblk/data.img
test -s /etc/mqblk/data.toml

say "without images and configurations only the user is left"
rm /var/lib/mqblk/data.img /etc/mqblk/data.toml
rmdir /etc/mqblk
dpkg --install /mnt/mqblk.deb >&2
dpkg --purge mqblk >&2
files >/tmp/after
diff /tmp/before /tmp/after

journalctl --unit 'mqblk-serve@*' --grep 'dropped root privileges' --quiet >&2
test -z "$(journalctl --unit 'mqblk-serve@*' --grep 'cannot remove this socket' --quiet)"

echo PASSED
