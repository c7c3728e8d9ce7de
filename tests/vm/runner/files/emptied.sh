#!/bin/sh
# Part of the test bed: the first call notes which files of the system are empty. Later ones print those that have
# become so, as after a power cut, and fail if there are any. Some are always empty: locks, what systemd's helper
# notes, the options of a kernel's headers, and what describes a kernel that is none.
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
new=$(empty | LC_ALL=C comm -13 $noted -)
[ -z "$new" ] || { echo "$new" && exit 1; } >&2
