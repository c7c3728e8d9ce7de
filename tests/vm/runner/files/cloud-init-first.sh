#!/bin/sh
# Part of the test bed: the first process of a machine in a cloud. It shows the cloud's firmware before systemd's
# generators look at it, and hides from programs that this is a container, because cloud-init reads no firmware there.
# systemd itself knows it from /run/host.

# The network cards that the kernel shows here are those of the host: a new view shows the machine's own.
own=/run/testbed-sys
mkdir -p $own
mount -t sysfs testbed $own
mount --bind $own/devices/virtual/net /sys/devices/virtual/net
mount -t overlay -o lowerdir=/usr/lib/testbed/class:$own/class testbed /sys/class
umount --lazy $own
unset container
exec /lib/systemd/systemd
