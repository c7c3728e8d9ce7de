#!/bin/sh
# Part of the test harness: compiles the modules of a DKMS package for a kernel, and leaves them in /modules under the
# names from the compiler: PACKAGE KERNEL ARCHIVE. ARCHIVE is the start of a line of apt's sources, without components.
set -eu
package=$1
kernel=$2
archive=$3
export DEBIAN_FRONTEND=noninteractive
echo "deb $archive contrib non-free non-free-firmware" >/etc/apt/sources.list.d/modules.list
sed -i 's/^update_initramfs=.*/update_initramfs=no/' /etc/initramfs-tools/update-initramfs.conf
apt-get -q update
apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 install "linux-headers-$kernel" "$package"
for built in /var/lib/dkms/nvidia-current*/*/"$kernel"/*/module; do
    path=${built#/var/lib/dkms/}
    name=${path%%/*}
    path=${path#*/}
    to=/modules/$name-${path%%/*}/$kernel
    mkdir -p "$to"
    for file in "$built"/*.ko*; do
        short=${file##*/}
        copy=$to/nvidia${short#"$name"}
        cp "$file" "$copy"
        # DKMS installs modules compressed from Debian 13 on, and looks for them as the compiler leaves them.
        case $copy in *.xz) xz -d "$copy" ;; esac
    done
done
ls /modules/*/*/nvidia.ko
