#!/bin/sh
# Part of the test harness: turns a Debian root filesystem into a simulated AlmaLinux or Amazon Linux.
#   $1 Debian's root   $2 the new one   $3 directory of fake packages   $4 release   $5 platform   $6 rpm database
#   others: packages of that directory to install
set -eu
cp -a --reflink=auto "$1" "$2"
# rpm 4.20 gives scripts a separate mount namespace, which requires that their root is a mount.
mount --bind "$2" "$2"
cd "$2"

# Keep dnf as the only package manager: remove the programs, databases and units of dpkg and apt.
rm -rf etc/apt etc/dpkg etc/debian_version etc/cron.daily etc/logrotate.d/apt etc/logrotate.d/dpkg \
    etc/logrotate.d/alternatives usr/bin/apt usr/bin/apt-* usr/bin/dpkg usr/bin/dpkg-* usr/bin/deb-systemd-* \
    usr/sbin/dpkg-* usr/bin/update-alternatives usr/lib/apt usr/lib/dpkg usr/share/dpkg \
    usr/share/keyrings var/lib/apt var/lib/dpkg var/cache/apt var/log/apt var/log/dpkg.log var/log/alternatives.log \
    usr/lib/systemd/system/apt-daily* usr/lib/systemd/system/dpkg-db-backup* \
    etc/systemd/system/*.wants/apt-daily* etc/systemd/system/*.wants/dpkg-db-backup*
# Plugins that are separate packages in AlmaLinux.
for plugin in local post-transaction-actions pre-transaction-actions expired-pgp-keys show_leaves leaves \
    system_upgrade; do
    rm -rf "usr/lib/python3/dist-packages/dnf-plugins/$plugin.py" "etc/dnf/plugins/$plugin."*
done
rm -rf etc/dnf/aliases.d/*

# The fake packages `dkms` and `kernel-core` own the paths of these programs and directories.
mkdir usr/lib/stand-in
mv usr/sbin/dkms usr/lib/stand-in/dkms
# A fake kernel package contains no modules. DKMS 3.2 treats a kernel without modules as not installed, and removes its
# lists with the last module.
# shellcheck disable=SC2016
sed -i 's/\[\[ -f \$install_tree\/\$1\/modules.dep && ! -s /[[ -f \/nowhere \&\& ! -s /' usr/lib/stand-in/dkms
# The headers in Debian 13 need a kernel.
rm -rf etc/dkms usr/lib/dkms etc/kernel etc/modprobe.d/dkms.conf var/lib/dkms usr/lib/modules/* boot/*

# The kernel is the host's. Programs see the version that the machine reports in /proc.
mv usr/bin/uname usr/lib/stand-in/uname
cat >usr/bin/uname <<'END'
#!/bin/sh
# Part of the test harness: the kernel is the host's, the version is the machine's.
case "$*" in
-r | --kernel-release) exec cat /proc/sys/kernel/osrelease ;;
*) exec /usr/lib/stand-in/uname "$@" ;;
esac
END
chmod 755 usr/bin/uname

# As in AlmaLinux, because Debian's rpm has its database in the user's home directory.
mkdir -p usr/lib/rpm/macros.d ".$6" etc/pki/rpm-gpg etc/yum.repos.d etc/ld.so.conf.d usr/lib64
echo "%_dbpath $6" >usr/lib/rpm/macros.d/macros.testbed
cat >etc/dnf/dnf.conf <<'END'
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
END
echo /usr/lib64 >etc/ld.so.conf.d/lib64.conf
# A minimal image, which is built quickly.
mkdir -p usr/lib/dracut/dracut.conf.d
cat >usr/lib/dracut/dracut.conf.d/99-testbed.conf <<'END'
dracutmodules="base"
compress="cat"
early_microcode="no"
END

mount -t proc proc proc
mount --bind "$3" mnt
release=$4
platform=$5
shift 6
# shellcheck disable=SC2046
LC_ALL=C.UTF-8 chroot . dnf -q -y --disablerepo='*' --nogpgcheck --releasever="$release" \
    --setopt=module_platform_id="platform:$platform" --setopt=keepcache=0 install $(printf ' /mnt/%s' "$@")
# dnf also succeeds if a script after the transaction fails.
test -e usr/lib/modules/*/modules.dep
chroot . ldconfig
if [ "$release" = 2023 ]; then
    # As in Amazon's EKS images: awslabs/amazon-eks-ami, install-worker.sh.
    LC_ALL=C.UTF-8 chroot . dnf -q --disablerepo='*' versionlock 'kernel*'
    # The simulated kernel loads modules.
    for name in modprobe rmmod; do
        mv "usr/sbin/$name" "usr/lib/stand-in/$name"
        printf '#!/bin/sh\nexec /usr/lib/testbed/kernel %s "$@"\n' "$name" >"usr/sbin/$name"
        chmod 755 "usr/sbin/$name"
    done
fi
# Mark the work of the first boot after an update (ConditionNeedsUpdate=) as done. Otherwise `ldconfig.service` of
# systemd 257 would be active only in that boot.
touch etc/.updated var/.updated
umount mnt proc
rm -rf var/cache/dnf/* var/lib/dnf/plugins var/log/dnf* var/log/hawkey.log root/.rpmdb
