#!/bin/sh
# Part of the test harness: prints the state that an installation may change, as comparable lines.
set -eu
export LC_ALL=C
if command -v dpkg-query >/dev/null; then
    dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n'
    apt-mark showhold | sed 's/^/hold /'
    apt-mark showmanual | sort | sed 's/^/manual /'
else
    rpm -qa --qf '%{NAME}.%{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n' | sort
    dnf -q -C --disablerepo='*' repoquery --userinstalled --qf 'manual %{name}.%{arch}' | sort -u
fi
systemctl list-unit-files --no-legend --no-pager --plain | awk '{ print "unit " $1 " " $2 }'
for modules in /lib/modules/*/updates /lib/modules/*/extra; do
    [ ! -d "$modules" ] || find "$modules" -type f
done | sort
ls /boot
# Docker generates a key at its first start; names that end in a hyphen are backups of adduser.
set -- /etc
[ ! -d /usr/share/keyrings ] || set -- "$@" /usr/share/keyrings
find "$@" ! -type d ! -name key.json ! -name '*-' -printf '%p %y %m %u:%g %l\n' | sort
find "$@" -type f ! -name key.json ! -name '*-' -print0 | sort -z | xargs -0 sha256sum
