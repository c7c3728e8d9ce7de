#!/bin/sh
# Part of the test harness: installs, upgrades and removes the gpu-bootstrap package with the package manager of the machine:
# package install FILE | package remove | package purge. rpm has no purge.
set -eu
export DEBIAN_FRONTEND=noninteractive
if command -v apt-get >/dev/null; then
    set -- "$1" "${2:-gpu-bootstrap}"
    exec apt-get -q -y -o Dpkg::Use-Pty=0 "$1" "$2"
fi
case $1 in
install) exec dnf -y -C --disablerepo='*' install "$2" ;;
remove) exec dnf -y -C --disablerepo='*' remove gpu-bootstrap ;;
purge) exit 0 ;;
esac
exit 2
