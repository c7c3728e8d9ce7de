#!/bin/sh
# Part of the test harness: builds a root filesystem of Debian packages: root DIRECTORY SUITE PACKAGES MIRROR
# SECURITY-MIRROR POINT-RELEASE [HOOK]. POINT-RELEASE is `true` if its packages are from the last point release. HOOK runs
# before the packages are installed.
set -eu
root=$1
suite=$2
packages=$3
main=$4
security=$5
point_release=$6
hook=${7-}
key=/usr/share/keyrings/debian-archive-keyring.gpg

source_line() { echo "deb [signed-by=$key] $1 $2 main"; }

# An incomplete root is discarded, so no sync is needed.
{
    source_line "$main" "$suite"
    if [ "$point_release" != true ]; then
        source_line "$main" "$suite-updates"
        source_line "$security" "$suite-security"
    fi
} | mmdebstrap --variant=minbase --mode=root --quiet --dpkgopt=force-unsafe-io --include="$packages" \
    ${hook:+"--essential-hook=$hook"} "$suite" "$root" -

cd "$root/etc"
# The resolver's file is a link if systemd-resolved is installed.
rm -f apt/sources.list apt/sources.list.d/0000sources.list hostname resolv.conf
# As in Debian's cloud images.
stanza() { printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' "$1" "$2" "$key"; }
{
    stanza "$main" "$suite $suite-updates"
    stanza "$security" "$suite-security"
} >apt/sources.list.d/debian.sources
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >hosts
# The resolver of slirp4netns; it forwards to the host's.
echo 'nameserver 10.0.2.3' >resolv.conf
# Empty, so that each machine generates its own at its first boot.
: >machine-id
chmod 644 apt/sources.list.d/debian.sources hosts resolv.conf machine-id
