#!/bin/sh
# A fake `nvidia-smi` that changes the MIG mode and the instances in the inventory of the fake NVML, and lists them, on machines with
# one GPU. The inventory without MIG is in /root/inventory. Like the driver, it shows the nodes of the instances: their numbers are
# as on the first GPU of a real machine.
#
# /usr/lib/testbed/mig-smi.conf can set:
#   ampere=1          the MIG mode changes at the reset
#   client=UNIT       the GPU is in use while this unit is active
#   most=N            the GPU has only resources for N GPU instances
set -eu
now=/usr/lib/testbed/fake-nvml.toml
# GPU instances, one per line: profile, first memory slice, number of memory slices. The line number is the ID.
instances=/run/mig-instances
# MIG devices, one entry of the inventory per line.
devices=/run/mig-devices
# Present if MIG mode is enabled, and if it is enabled after the reset.
enabled=/run/mig-enabled
pending=/run/mig-pending
ampere='' client='' most=8
# shellcheck source=/dev/null
[ ! -e /usr/lib/testbed/mig-smi.conf ] || . /usr/lib/testbed/mig-smi.conf
[ -e /root/inventory ] || cp "$now" /root/inventory
echo "$*" >>/run/nvidia-smi.log

show() {
    text=
    if [ -e "$enabled" ] || [ -e "$pending" ]; then
        text="[gpu.mig]
enabled = $(is "$enabled")
pending = $(is "$pending")
devices = [$(paste -sd, "$devices")]"
    fi
    { cat /root/inventory; printf '%s\n' "$text"; } >"$now"
    /usr/lib/testbed/tell-containers
}
is() { if [ -e "$1" ]; then echo true; else echo false; fi; }

clear_all() {
    : >"$instances"
    : >"$devices"
}

# Sets the mode in effect to the pending mode.
switch() {
    clear_all
    if [ -e "$pending" ]; then touch "$enabled"; else rm -f "$enabled"; fi
}

# Ends if a program uses the GPU: DESCRIPTION. The exit codes are those of NVML.
unless_used() {
    [ -n "$client" ] && systemctl --quiet is-active "$client" || return 0
    echo "$1: In use by another client"
    exit 19
}

# Memory slices of the GPU, and its memory in GB.
of=8
case $(sed -n 's/^pci-id = "10de:\(.*\)"/\1/p' /root/inventory) in
20b0) memory=40 ;;
20b2 | 2330) memory=80 ;;
20b7) memory=24 of=4 ;;
2335) memory=141 ;;
2901) memory=180 ;;
*) echo "this fake does not know the GPU" >&2 && exit 2 ;;
esac

# Whether memory slices are free: FIRST NUMBER
is_free() {
    [ $(($1 + $2)) -le "$of" ] || return 1
    while read -r _ first slices; do
        [ $(($1 + $2)) -le "$first" ] || [ "$1" -ge $((first + slices)) ] || return 1
    done <"$instances"
}

# Adds a GPU instance, and sets its ID: PROFILE[:FIRST]
create() {
    name=${1%%:*}
    gb=${name#*g.}
    gb=${gb%%gb*}
    number=$(((gb * of + memory / 2) / memory))
    case $1 in
    *:*) start=${1##*:} ;;
    *)
        start=0
        until is_free "$start" "$number" || [ "$start" -ge "$of" ]; do start=$((start + number)); done
        ;;
    esac
    id=$(($(wc -l <"$instances") + 1))
    if [ "$id" -gt "$most" ] || ! is_free "$start" "$number"; then
        show
        echo "Unable to create a GPU instance on GPU  0 using profile $name: Insufficient Resources"
        exit 23
    fi
    echo "$name $start $number" >>"$instances"
}

# Adds a compute instance: PROFILE GPU-INSTANCE COMPUTE-INSTANCE
compute() {
    of_gpu=$((3 + 9 * $2))
    of_compute=$((of_gpu + 1 + $3))
    mkdir -p /proc/driver/nvidia-caps /dev/nvidia-caps
    {
        echo "gpu0/gi$2/access $of_gpu"
        echo "gpu0/gi$2/ci$3/access $of_compute"
    } >>/proc/driver/nvidia-caps/mig-minors
    for minor in $of_gpu $of_compute; do
        [ -e /dev/nvidia-caps/nvidia-cap"$minor" ] || mknod -m 444 "/dev/nvidia-caps/nvidia-cap$minor" c 508 "$minor"
        # On a real machine, `nvidia-ctk system create-dev-char-symlinks --create-all` has created the symlinks of all possible nodes.
        ln -sf "/dev/nvidia-caps/nvidia-cap$minor" "/dev/char/508:$minor"
    done
    uuid=$(printf 'MIG-00000000-0000-5000-8000-%06d%06d' "$2" "$3")
    echo "{ profile = \"$1\", gpu-instance = $2, compute-instance = $3, capabilities = [$of_gpu, $of_compute], uuid = \"$uuid\" }" >>"$devices"
}

case "$*" in
# The format is in the NVIDIA Multi-Instance GPU User Guide, "Creating GPU Instances".
-L)
    cat /usr/lib/testbed/gpus
    grep '^devices = ' "$now" | grep -o 'profile = [^}]*' | cut -d '"' -f 2,4 |
        awk -F '"' '{ printf "  MIG %-11s Device %2d: (UUID: %s)\n", $1, NR - 1, $2 }'
    ;;
*" -mig "[01])
    case "$*" in *1) touch "$pending" ;; *) rm -f "$pending" ;; esac
    if [ -n "$ampere" ]; then
        [ -e "$devices" ] || clear_all
        show
        echo "Warning: MIG mode is in pending state for GPU $2"
        echo "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU $2"
    else
        unless_used "Unable to change the MIG mode of GPU $2"
        switch
        show
    fi
    ;;
"-r -i "*)
    unless_used "GPU $3 could not be reset"
    switch
    show
    ;;
*" -dci" | *" -dgi")
    [ -s "$instances" ] || { echo 'No GPU instances found: Not Found'; exit 6; }
    unless_used 'Unable to destroy GPU instances'
    case "$*" in *" -dgi") clear_all && show ;; esac
    ;;
*" -cgi "*" -C")
    for name in $(echo "$5" | tr , ' '); do
        create "$name"
        compute "${name%%:*}" "$id" 0
    done
    show
    ;;
*" -cgi "*)
    create "$5"
    echo "Successfully created GPU instance ID $id on GPU  0 using profile MIG ${5%%:*} (ID  0)"
    ;;
*" -cci "*)
    at=0
    for name in $(echo "$7" | tr , ' '); do
        compute "$name" "$5" "$at"
        at=$((at + 1))
    done
    show
    ;;
*) echo "$*" && exit 2 ;;
esac
