#!/bin/sh
# Part of the test harness: the first process of a simulated cloud instance. It mounts the cloud's firmware before the
# systemd generators read it, and hides the container from programs, because cloud-init does not read firmware in a
# container. systemd itself detects the container from /run/host.

# The kernel lists the network cards of the host here. A new mount lists the machine's own.
own=/run/testbed-sys
mkdir -p $own
mount -t sysfs testbed $own
mount --bind $own/devices/virtual/net /sys/devices/virtual/net
mount -t overlay -o lowerdir=/usr/lib/testbed/class:$own/class testbed /sys/class
# With a writable network, systemd-nspawn mounts only a part of /sys.
if [ ! -d /sys/module ]; then
    mount -o remount,bind,rw /sys
    mkdir /sys/module
    mount --bind $own/module /sys/module
    mount -o remount,bind,ro /sys
fi
umount --lazy $own
# systemd passes the container type to its generators, and cloud-init 25 prefers it to `systemd-detect-virt`. A
# generator in /run replaces the one with the same name.
generators=/run/systemd/system-generators
mkdir -p $generators
cat >$generators/cloud-init-generator <<'END'
#!/bin/sh
SYSTEMD_VIRTUALIZATION=vm:kvm exec /usr/lib/systemd/system-generators/cloud-init-generator "$@"
END
chmod 755 $generators/cloud-init-generator
unset container
exec /lib/systemd/systemd
