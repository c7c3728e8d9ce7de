#!/bin/sh
# Part of the test harness: installs packages into the offline root filesystem of a machine: install-packages ROOT
# PACKAGE... An incomplete root is discarded.
set -eu
cd "$1"
shift
mkdir run/packages
cp -- "$@" run/packages
mount -t proc proc proc
mount --bind /dev dev
LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot . /bin/sh -c 'dpkg --force-unsafe-io -i /run/packages/*.deb'
rm -r run/packages
