#!/bin/sh
# Part of the test harness: started COMMAND... starts a command once per boot, as the unit `started`, after the units of
# the boot have been started, and succeeds as long as it runs. Otherwise it prints the end of its output.
set -eu
if [ ! -e /run/started ]; then
    until systemctl is-active --quiet multi-user.target 2>/dev/null; do sleep 0.1; done
    touch /run/started
    systemd-run --quiet --unit=started "$@"
fi
systemctl is-active --quiet started && exit
journalctl -q -b -u started -o cat | tail -n 40
exit 1
