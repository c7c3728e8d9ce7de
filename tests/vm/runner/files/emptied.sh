#!/bin/sh
# Part of the test harness: the first call records the empty files of the system. Later calls print files that have
# become empty, as after a power loss, and fail if there are any. Some files are always empty: locks, notes of systemd
# helpers, the options in kernel headers, and the metadata of fake kernels. A removed package with a script for its purge has an
# empty list in dpkg.
set -eu
noted=/root/empty
empty() {
    find /boot /etc /usr /var/lib -xdev -type f -empty ! -path '/var/lib/systemd/*' ! -path '*/include/config/*' \
        ! -name 'System.map-*' ! -name 'modules.builtin*' ! -name modules.devname ! -iname '*lock*' | LC_ALL=C sort
}
if [ ! -e $noted ]; then
    empty >$noted
    sync $noted /root
    exit
fi
if [ -e /var/lib/dpkg/status ]; then
    dpkg-query --show --showformat='${db:Status-Status} /var/lib/dpkg/info/${Package}.list\n' | sed -n 's/^config-files //p'
fi | LC_ALL=C sort - $noted >/run/empty
new=$(empty | LC_ALL=C comm -13 /run/empty -)
[ -z "$new" ] || { echo "$new" && exit 1; } >&2
