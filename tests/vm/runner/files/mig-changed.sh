#!/bin/sh
# Part of the test harness: runs after each change of MIG by the fake NVML. Like the driver, it shows the nodes of the instances.
set -eu
mkdir -p /proc/driver/nvidia-caps /dev/nvidia-caps
grep -o 'capabilities = \[[0-9]*, [0-9]*\]' /usr/lib/testbed/fake-nvml.toml | tr -dc '0-9 \n' | while read -r instance compute; do
    # The numbers are computed in `inventory/src/instances.rs`.
    gpu=$(((instance - 3) / 135))
    id=$(((instance - 3) % 135 / 9))
    echo "gpu$gpu/gi$id/access $instance"
    echo "gpu$gpu/gi$id/ci$((compute - instance - 1))/access $compute"
    for minor in "$instance" "$compute"; do
        [ -e "/dev/nvidia-caps/nvidia-cap$minor" ] || mknod -m 444 "/dev/nvidia-caps/nvidia-cap$minor" c 508 "$minor"
        # On a real machine, `nvidia-ctk system create-dev-char-symlinks --create-all` has created the symlinks of all possible nodes.
        ln -sf "/dev/nvidia-caps/nvidia-cap$minor" "/dev/char/508:$minor"
    done
done >/proc/driver/nvidia-caps/mig-minors
/usr/lib/testbed/tell-containers
