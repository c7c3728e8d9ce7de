#!/bin/sh
# Part of the test harness: mounts the simulated hardware at the paths that programs read.
set -eu
here=/usr/lib/testbed
mount --bind "$here/pci/devices" /sys/bus/pci/devices
mount --bind "$here/pci/drivers" /sys/bus/pci/drivers
mount --bind "$here/osrelease" /proc/sys/kernel/osrelease
mount --bind "$here/version" /proc/version
# On a cloud instance it is mounted before the first process.
if [ -d "$here/class" ] && ! mountpoint --quiet /sys/class; then
    mount -t overlay -o "lowerdir=$here/class:/sys/class" testbed /sys/class
fi
if [ -d "$here/cluster" ]; then
    # Files that a kubelet reads but cannot write in a container.
    [ -e /dev/kmsg ] || mknod -m 600 /dev/kmsg c 1 11
    find "$here/cluster/sys" -type f -printf '%P\n' | while read -r name; do
        mount --bind "$here/cluster/sys/$name" "/proc/sys/$name"
    done
fi
if [ -e "$here/kernel" ]; then
    # No module is loaded yet: "$here/kernel" loads them on request.
    mkdir -p /run/testbed-kernel/module
    [ ! -d "$here/firmware" ] || mount -t overlay -o "lowerdir=$here/firmware:/sys/firmware" testbed /sys/firmware
    "$here/kernel" nvml
    exit 0
fi
[ -d "$here/driver" ] || exit 0
mount --bind "$here/driver/proc" /proc/driver
mount -t overlay -o "lowerdir=$here/driver/module:/sys/module" testbed /sys/module
[ ! -e /proc/modules ] || mount --bind "$here/driver/modules" /proc/modules
while read -r path major minor _; do
    [ -e "$path" ] || mknod -m 666 "$path" c "$major" "$minor"
done <"$here/driver/nodes"
