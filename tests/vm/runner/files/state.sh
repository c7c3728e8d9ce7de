#!/bin/sh
# Part of the test bed: the state that an installation may change, as lines to compare.
set -eu
export LC_ALL=C
dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n'
apt-mark showhold | sed 's/^/hold /'
apt-mark showmanual | sort | sed 's/^/manual /'
systemctl list-unit-files --no-legend --no-pager --plain | awk '{ print "unit " $1 " " $2 }'
for modules in /lib/modules/*/updates; do
    [ ! -d "$modules" ] || find "$modules" -type f
done | sort
ls /boot
# Docker makes a key at its first start; names that end in a hyphen are backups of adduser.
find /etc /usr/share/keyrings ! -type d ! -name key.json ! -name '*-' -printf '%p %y %m %u:%g %l\n' | sort
find /etc /usr/share/keyrings -type f ! -name key.json ! -name '*-' -print0 | sort -z | xargs -0 sha256sum
