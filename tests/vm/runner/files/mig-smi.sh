#!/bin/sh
# A fake `nvidia-smi` that changes MIG through the fake NVML (`../../nvml/src/bin/mig-smi.rs`). It keeps the inventory before the
# first change in /root/inventory, and all arguments in /run/nvidia-smi.log.
set -eu
[ -e /root/inventory ] || cp /usr/lib/testbed/fake-nvml.toml /root/inventory
echo "$*" >>/run/nvidia-smi.log
exec /usr/lib/testbed/fake-mig-smi "$@"
