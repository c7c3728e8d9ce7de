#!/bin/sh
# A fake `nvidia-smi` that changes the MIG mode and the instances in the inventory of the fake NVML, on machines with one GPU. The
# inventory without MIG is in /root/inventory.
set -eu
now=/usr/lib/testbed/fake-nvml.toml
# GPU instances, one profile per line; the line number is the ID. MIG devices, one entry of the inventory per line.
instances=/run/mig-instances
devices=/run/mig-devices
[ -e /root/inventory ] || cp "$now" /root/inventory
echo "$*" >>/run/nvidia-smi.log
put() { { cat /root/inventory; printf '%s\n' "$1"; } >"$now"; }
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
case "$*" in
*" -mig 1") clear_all && show ;;
*" -mig 0") clear_all && put '' ;;
*" -dci" | *" -dgi")
    [ -s "$instances" ] || { echo 'No GPU instances found: Not Found'; exit 6; }
    case "$*" in *" -dgi") clear_all && show ;; esac
    ;;
*" -cgi "*" -C")
    for name in $(echo "$5" | sed 's/:[0-9]*//g; s/,/ /g'); do
        create "$name"
        echo "{ profile = \"$name\", gpu-instance = $id }" >>"$devices"
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
        echo "{ profile = \"$name\", gpu-instance = $5, compute-instance = $at }" >>"$devices"
        at=$((at + 1))
    done
    show
    ;;
*) echo "$*" && exit 2 ;;
esac
