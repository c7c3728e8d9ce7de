#!/bin/sh
# Runs after the installation and after each upgrade. It changes nothing. dpkg passes `configure`, rpm the number of installed
# versions.
case ${1:-} in
configure | [1-9]*) ;;
*) exit 0 ;;
esac
root=${DPKG_ROOT:-}

if [ -x "$root/usr/local/bin/gpu-bootstrap" ]; then
    echo 'gpu-bootstrap: /usr/local/bin/gpu-bootstrap is not from this package, and takes precedence in PATH and in units.'
    # shellcheck disable=SC2016 # The command is text.
    echo 'To use the package, run `rm /usr/local/bin/gpu-bootstrap`, and then your `gpu-bootstrap install` command.'
fi
# Removal of the package disables the timer.
units=$root/etc/systemd/system
wanted=$units/timers.target.wants/gpu-bootstrap-check.timer
if [ -e "$units/gpu-bootstrap-check.timer" ] && [ ! -e "$wanted" ] && [ ! -L "$wanted" ]; then
    # shellcheck disable=SC2016 # The command is text.
    echo 'gpu-bootstrap: gpu-bootstrap-check.timer is disabled. To enable it, run your `gpu-bootstrap install` command.'
fi
exit 0
