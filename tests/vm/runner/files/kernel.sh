#!/bin/sh
# Part of the test harness: the modules of a simulated kernel. The real modprobe resolves names, dependencies, options
# and denylists for the kernel that the machine reports. Modules that it would load appear in the same files as with a
# real kernel. They are gone at the next boot.
#   modprobe, rmmod ARGUMENTS   replaces the programs with these names
#   nvml                        replaces the installed driver libraries with the fakes
#   joined                      lets the GPUs join the fabric, for the fabric manager
#   at-boot                     replaces systemd-modules-load
set -eu
here=/usr/lib/testbed
now=/run/testbed-kernel
release=$(cat /proc/sys/kernel/osrelease)

# The loaded modules that use another one, each followed by a comma.
users() {
    case $1 in
    nvidia) like='nvidia_*' ;;
    mlx5_core) like='ib_*' ;;
    *) return 0 ;;
    esac
    find "$now/module" -mindepth 1 -maxdepth 1 -name "$like" -printf '%f,'
}

# Updates the visible modules. A layer over the kernel's own modules must not change while it is mounted.
show() {
    # Unmount only our own layer, because on a cloud instance the host's modules are also mounted there.
    [ ! -e "$now/shown" ] || umount -l /sys/module
    mount -t overlay -o "lowerdir=$now/module:/sys/module" testbed /sys/module
    touch "$now/shown"
    [ -e /proc/modules ] || return 0
    for one in "$now"/module/*; do
        name=${one##*/}
        by=$(users "$name")
        printf '%s 16384 %d %s Live 0x0000000000000000 (OE)\n' \
            "$name" "$(printf %s "$by" | tr -cd , | wc -c)" "${by:--}"
    done >"$now/modules"
    mountpoint -q /proc/modules || mount --bind "$now/modules" /proc/modules
}

# Replaces a library with a fake, with the inventory at its end for containers: NAME FAKE
replace_library() {
    for library in /usr/lib/x86_64-linux-gnu/"$1".so.*.* /usr/lib64/"$1".so.*.*; do
        [ -f "$library" ] && [ ! -L "$library" ] || continue
        {
            cat "$here/$2"
            printf '\n# inventory of the fake\n'
            cat "$here/fake-nvml.toml"
        } >"$now/library.$$"
        if ! cmp -s "$now/library.$$" "$library"; then
            # Replace it atomically, because a program may open the library at the same time.
            cp "$now/library.$$" "${library%/*}/.testbed.$$"
            mv "${library%/*}/.testbed.$$" "$library"
        fi
        rm "$now/library.$$"
    done
}

nvml() {
    for library in /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.*; do
        [ -f "$library" ] && [ ! -L "$library" ] || continue
        version=${library##*.so.}
    done
    [ -n "${version-}" ] || return 0
    loaded=$(cat "$now/module/nvidia/version" 2>/dev/null) || loaded=
    cuda=$(sed -n "s/^${version%%.*} //p" "$here/cuda")
    {
        printf 'driver-version = "%s"\ncuda-version = "%s"\n' "$version" "$cuda"
        if [ -e "$here/gpus-outside.toml" ] && [ ! -e "$now/joined" ]; then
            cat "$here/gpus-outside.toml"
        else
            cat "$here/gpus.toml"
        fi
        if [ -z "$loaded" ]; then
            printf '[faults]\ndriver-not-loaded = true\n'
        elif [ "$loaded" != "$version" ]; then
            printf '[faults]\nversion-mismatch = true\n'
        fi
    } >"$here/fake-nvml.toml"
    replace_library libnvidia-ml nvml.so
    replace_library libcuda cuda.so
}

# Loads a module, or rejects it: FILE OPTIONS
insert() {
    file=$1 && shift
    name=$(basename "$file" .ko | tr - _)
    if [ -e "$here/firmware/efi" ] && ! tail -c 28 "$file" | grep -q 'Module signature appended'; then
        echo "modprobe: ERROR: could not insert '$name': Key was rejected by service" >&2
        return 1
    fi
    version=$(modinfo -F version "$file")
    if [ -e "$here/refused" ] && grep -qx "$name $version" "$here/refused"; then
        echo "modprobe: ERROR: could not insert '$name': No such device" >&2
        return 1
    fi
    mkdir -p "$now/module/$name"
    echo live >"$now/module/$name/initstate"
    echo 0 >"$now/module/$name/refcnt"
    echo OE >"$now/module/$name/taint"
    printf '%s\n' "$version" >"$now/module/$name/version"
    case $name in
    nvidia) bind "$file" "$version" "$@" ;;
    nvidia_*) nodes "$name" ;;
    esac
}

nodes() {
    while read -r path major minor owner; do
        [ "$owner" = "$1" ] && [ ! -e "$path" ] || continue
        mknod -m 666 "$path" c "$major" "$minor"
    done <"$here/nodes"
}

bind() {
    file=$1 version=$2 && shift 2
    case $(modinfo -F license "$file") in
    *MIT*) kind='NVIDIA UNIX Open Kernel Module for x86_64' ;;
    *) kind='NVIDIA UNIX x86_64 Kernel Module' ;;
    esac
    rm -rf "$now/proc" && cp -r "$here/proc" "$now/proc"
    printf 'NVRM version: %s  %s  (simulated by the test bed)\nGCC version:  gcc version 13.3.0\n' \
        "$kind" "$version" >"$now/proc/nvidia/version"
    # In this file the settings have no option prefix.
    for option in "$@"; do
        case $option in NVreg_*=*) printf '%s: %s\n' "$(echo "${option%%=*}" | sed s/NVreg_//)" "${option#*=}" ;; esac
    done >>"$now/proc/nvidia/params"
    mount --bind "$now/proc" /proc/driver
    mount --bind "$here/pci-bound/devices" /sys/bus/pci/devices
    mount --bind "$here/pci-bound/drivers" /sys/bus/pci/drivers
    nodes nvidia
    # Simulates the udev rules of Ubuntu's packages.
    if grep -qs 'SYSTEMD_WANTS}="nvidia-persistenced.service"' /usr/lib/udev/rules.d/71-nvidia.rules; then
        systemctl start --no-block testbed-nvidia.target
    fi
}

remove() {
    name=$(echo "$1" | tr - _)
    if [ ! -e "$now/module/$name" ]; then
        echo "rmmod: ERROR: Module $name is not currently loaded" >&2
        return 1
    fi
    by=$(users "$name")
    if [ -n "$by" ]; then
        echo "rmmod: ERROR: Module $name is in use by: ${by%,}" >&2
        return 1
    fi
    rm -r "$now/module/$name"
    if [ "$name" = nvidia ]; then
        rm -f "$now/joined"
        systemctl stop --no-block testbed-nvidia.target
        umount -l /proc/driver /sys/bus/pci/devices /sys/bus/pci/drivers
    fi
}

case $1 in
nvml) nvml ;;
joined) touch "$now/joined" && nvml ;;
at-boot)
    cat /etc/modules-load.d/*.conf /run/modules-load.d/*.conf /usr/lib/modules-load.d/*.conf 2>/dev/null |
        grep -v '^ *\([#;]\|$\)' | while read -r name; do
        "$0" modprobe -b -- "$name" || echo "cannot load $name" >&2
    done
    ;;
modprobe)
    shift
    case " $* " in
    # Only a query.
    *" -n "* | *" --dry-run "* | *" --show-depends "* | *" -D "* | *" -c "* | *" --showconfig "* | *" -V "* | *" --set-version"* | *" -S "*)
        case " $* " in
        *" --set-version"* | *" -S "*) exec /usr/lib/stand-in/modprobe "$@" ;;
        *) exec /usr/lib/stand-in/modprobe -S "$release" "$@" ;;
        esac
        ;;
    esac
    steps=$(/usr/lib/stand-in/modprobe -S "$release" -n -v "$@")
    [ -n "$steps" ] || exit 0
    echo "$steps" | while read -r what rest; do
        # shellcheck disable=SC2086
        case $what in
        insmod) insert $rest ;;
        rmmod) remove "$rest" ;;
        install | remove) sh -c "$rest" ;;
        *) echo "modprobe: a step that this fake does not support: $what $rest" >&2 && exit 1 ;;
        esac || exit 1
    done
    show
    nvml
    ;;
rmmod)
    shift
    for name in "$@"; do [ "$name" = -- ] || remove "$name"; done
    show
    nvml
    ;;
esac
