#!/bin/sh
# Runs before the removal. Only if the package is removed (dpkg passes `remove`, rpm 0), stops the timers that run `check` and
# `upgrade`, because their units would fail without the program. Everything else stays: `uninstall` needs reboots and stops
# workloads, so only the administrator runs it. Always succeeds, because otherwise the package could not be removed.
case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac
root=${DPKG_ROOT:-}

for name in check upgrade; do
    timer=gpu-bootstrap-$name.timer
    # Another copy of the program may have written the unit.
    grep -q '^ExecStart=/usr/bin/gpu-bootstrap ' "$root/etc/systemd/system/gpu-bootstrap-$name.service" 2>/dev/null || continue
    if systemctl ${root:+"--root=$root"} disable "$timer" >/dev/null 2>&1; then
        echo "gpu-bootstrap: $timer is disabled"
    else
        echo "gpu-bootstrap: $timer could not be disabled" >&2
    fi
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then
        systemctl stop "$timer" || echo "gpu-bootstrap: $timer could not be stopped" >&2
    fi
done
exit 0
