#!/bin/sh
# Installs gpu-bootstrap, and does not run it. As root:
#
#     sh install.sh PLACE [DIRECTORY]
#
# PLACE is the https URL, or a directory, with the files of the release. By default, installs the .deb or the .rpm. With DIRECTORY,
# for example /usr/local/bin, or on a system with neither dpkg nor rpm, installs only the binary, from the archive.
#
# A release fills in the checksums below. The signature of SHA256SUMS, which also lists this file, protects them: docs/verify.md.
set -eu

sums='@SUMS@'

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

fetch() { # URL or path, file
    case $1 in
    https://*)
        if command -v curl >/dev/null; then
            curl --proto =https --tlsv1.2 -fsSL --retry 3 --connect-timeout 10 --max-time 300 -o "$2" "$1"
        else
            wget -q --tries=3 --timeout=60 -O "$2" "$1"
        fi
        ;;
    *://*) fail "$1 does not start with https://" ;;
    *) cp -- "$1" "$2" ;;
    esac
}

main() {
    [ $# -ge 1 ] && [ $# -le 2 ] || fail 'usage: sh install.sh PLACE [DIRECTORY]'
    place=${1%/} directory=${2:-}
    case $sums in
    *@*) fail 'this copy contains no checksums: use the install.sh of a release' ;;
    esac
    [ "$(id -u)" = 0 ] || fail 'root is required'
    case $(uname -m) in
    x86_64) debian=amd64 machine=x86_64 ;;
    aarch64) debian=arm64 machine=aarch64 ;;
    *) fail "no release for $(uname -m)" ;;
    esac
    if [ -n "$directory" ]; then
        suffix=-linux-$machine.tar.gz
    elif command -v dpkg >/dev/null && command -v apt-get >/dev/null; then
        suffix=_$debian.deb
    elif command -v rpm >/dev/null; then
        suffix=.$machine.rpm
    else
        suffix=-linux-$machine.tar.gz directory=/usr/local/bin
    fi
    sum=$(printf '%s\n' "$sums" | grep -- "$suffix\$") || fail "this release has no file *$suffix"
    name=${sum##* }

    # Readable for the user of apt.
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    chmod 755 "$work"
    fetch "$place/$name" "$work/$name" || fail "failed to download $place/$name"
    (cd "$work" && printf '%s\n' "$sum" | sha256sum -c - >/dev/null 2>&1) || fail "checksum mismatch: $place/$name"

    case $name in
    *.deb) DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install "$work/$name" ;;
    *.rpm) rpm -U --replacepkgs "$work/$name" ;;
    *)
        tar xzf "$work/$name" -C "$work" --no-same-owner
        mkdir -p "$directory"
        # A running gpu-bootstrap keeps its file.
        install -m 755 "$work/${name%.tar.gz}/gpu-bootstrap" "$directory/.gpu-bootstrap.new"
        mv "$directory/.gpu-bootstrap.new" "$directory/gpu-bootstrap"
        ;;
    esac
    echo "installed: $name"
    echo 'Next: gpu-bootstrap plan'
}

# An incomplete download has no last line, and does nothing.
main "$@"
