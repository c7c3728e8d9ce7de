#!/bin/sh
# Part of the test harness: turns a Debian root filesystem into a simulated Ubuntu 24.04.
#   $1 Debian's root   $2 the new one
set -eu
cp -a --reflink=auto "$1" "$2"
cd "$2"

cat >usr/lib/os-release <<'END'
PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
LOGO=ubuntu-logo
END
cat >etc/lsb-release <<'END'
DISTRIB_ID=Ubuntu
DISTRIB_RELEASE=24.04
DISTRIB_CODENAME=noble
DISTRIB_DESCRIPTION="Ubuntu 24.04.3 LTS"
END
echo trixie/sid >etc/debian_version
printf 'Vendor: Ubuntu\nVendor-URL: http://www.ubuntu.com/\nParent: Debian\n' >etc/dpkg/origins/ubuntu
ln -sfn ubuntu etc/dpkg/origins/default
rm -f etc/apt/sources.list.d/* usr/share/keyrings/debian-*
# Keep only the symlinks of the machine's own kernels.
rm -rf usr/lib/modules/* vmlinuz* initrd.img*

# The kernel is the host's. Programs see the version that the machine reports in /proc, and the simulated kernel loads
# modules.
mkdir usr/lib/stand-in
mv usr/bin/uname usr/lib/stand-in/uname
cat >usr/bin/uname <<'END'
#!/bin/sh
# Part of the test harness: the kernel is the host's, the version is the machine's.
case "$*" in
-r | --kernel-release) exec cat /proc/sys/kernel/osrelease ;;
*) exec /usr/lib/stand-in/uname "$@" ;;
esac
END
for name in modprobe rmmod; do
    mv "usr/sbin/$name" "usr/lib/stand-in/$name"
    printf '#!/bin/sh\nexec /usr/lib/testbed/kernel %s "$@"\n' "$name" >"usr/sbin/$name"
done
chmod 755 usr/bin/uname usr/sbin/modprobe usr/sbin/rmmod

# A GRUB menu in the format of its scripts: the newest kernel is first and the default. The harness reads it.
cat >usr/sbin/update-grub <<'END'
#!/bin/sh
# Part of the test harness.
set -e
mkdir -p /boot/grub
{
    echo 'set default="0"'
    for image in $(ls /boot/vmlinuz-* 2>/dev/null | sort -rV); do
        release=${image#/boot/vmlinuz-}
        printf "menuentry 'Ubuntu, with Linux %s' --id 'gnulinux-%s-advanced-1' {\n" "$release" "$release"
        printf '\tlinux\t%s root=UUID=1 ro quiet\n\tinitrd\t/boot/initrd.img-%s\n}\n' "$image" "$release"
    done
} >/boot/grub/grub.cfg
END
for when in postinst postrm; do
    mkdir -p "etc/kernel/$when.d"
    printf '#!/bin/sh\nexec update-grub\n' >"etc/kernel/$when.d/zz-update-grub"
    chmod 755 "etc/kernel/$when.d/zz-update-grub"
done
chmod 755 usr/sbin/update-grub
