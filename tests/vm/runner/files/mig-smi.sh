#!/bin/sh
# A fake `nvidia-smi` that changes the MIG mode and the instances in the inventory of the fake NVML, and lists them, on machines with
# one GPU. The inventory without MIG is in /root/inventory.
set -eu
now=/usr/lib/testbed/fake-nvml.toml
# GPU instances, one profile per line; the line number is the ID. MIG devices, one entry of the inventory per line.
instances=/run/mig-instances
devices=/run/mig-devices
[ -e /root/inventory ] || cp "$now" /root/inventory
echo "$*" >>/run/nvidia-smi.log
put() {
    { cat /root/inventory; printf '%s\n' "$1"; } >"$now"
    /usr/lib/testbed/tell-containers
}
show() {
    put "[gpu.mig]
enabled = true
devices = [$(paste -sd, "$devices")]"
}
clear_all() {
    : >"$instances"
    : >"$devices"
}
# Adds a GPU instance, and sets its ID.
create() {
    echo "$1" >>"$instances"
    id=$(wc -l <"$instances")
}
# Adds the MIG device with this profile and compute instance of the GPU instance.
add() {
    uuid=$(printf 'MIG-00000000-0000-5000-8000-%06d%06d' "$2" "$3")
    echo "{ profile = \"$1\", gpu-instance = $2, compute-instance = $3, uuid = \"$uuid\" }" >>"$devices"
}
case "$*" in
# The format is in the NVIDIA Multi-Instance GPU User Guide, "Creating GPU Instances".
-L)
    cat /usr/lib/testbed/gpus
    grep '^devices = ' "$now" | grep -o 'profile = [^}]*' | cut -d '"' -f 2,4 | awk -F '"' '{ printf "  MIG %-11s Device %2d: (UUID: %s)\n", $1, NR - 1, $2 }'
    ;;
*" -mig 1") clear_all && show ;;
*" -mig 0") clear_all && put '' ;;
*" -dci" | *" -dgi")
    [ -s "$instances" ] || { echo 'No GPU instances found: Not Found'; exit 6; }
    case "$*" in *" -dgi") clear_all && show ;; esac
    ;;
*" -cgi "*" -C")
    for name in $(echo "$5" | sed 's/:[0-9]*//g; s/,/ /g'); do
        create "$name"
        add "$name" "$id" 0
    done
    show
    ;;
*" -cgi "*)
    create "${5%%:*}"
    echo "Successfully created GPU instance ID $id on GPU  0 using profile MIG ${5%%:*} (ID  0)"
    ;;
*" -cci "*)
    at=0
    for name in $(echo "$7" | tr , ' '); do
        add "$name" "$5" "$at"
        at=$((at + 1))
    done
    show
    ;;
*) echo "$*" && exit 2 ;;
esac
