#!/bin/sh
# Part of the test harness: does the same for an H100 as this script in Amazon's accelerated image
# (awslabs/amazon-eks-ami, templates/al2023/runtime/gpu). It unpacks the open module that the image builder has
# archived.
set -eu
lspci -d 10de:: | grep -q . || exit 0
echo 'options nvidia NVreg_CoherentGPUMemoryMode=driver' >/etc/modprobe.d/40-eks-nvidia-openrm.conf
# At a later boot it already exists.
[ ! -d /var/lib/dkms/nvidia-open ] || exit 0
dkms ldtarball /var/lib/dkms-archive/nvidia-open/*.tar.gz
dkms install -m nvidia-open -v "$(ls /var/lib/dkms/nvidia-open | head -n 1)"
