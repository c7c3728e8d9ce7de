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
# With a writable network, systemd-nspawn shows a part of /sys only.
if [ ! -d /sys/module ]; then
    mount -o remount,bind,rw /sys
    mkdir /sys/module
    mount --bind $own/module /sys/module
    mount -o remount,bind,ro /sys
fi
umount --lazy $own
# systemd tells its generators the container, and cloud-init 25 believes it before `systemd-detect-virt`. A
# generator in /run takes the place of the one of the same name.
generators=/run/systemd/system-generators
mkdir -p $generators
cat >$generators/cloud-init-generator <<'END'
#!/bin/sh
SYSTEMD_VIRTUALIZATION=vm:kvm exec /usr/lib/systemd/system-generators/cloud-init-generator "$@"
END
chmod 755 $generators/cloud-init-generator
unset container
exec /lib/systemd/systemd
