#!/bin/sh
# Part of the test bed: what this script of Amazon's accelerated image does for an H100 (awslabs/amazon-eks-ami,
# templates/al2023/runtime/gpu). It unpacks the open module that the builder of the image has archived.
set -eu
lspci -d 10de:: | grep -q . || exit 0
echo 'options nvidia NVreg_CoherentGPUMemoryMode=driver' >/etc/modprobe.d/40-eks-nvidia-openrm.conf
# At a later boot it is there.
[ ! -d /var/lib/dkms/nvidia-open ] || exit 0
dkms ldtarball /var/lib/dkms-archive/nvidia-open/*.tar.gz
dkms install -m nvidia-open -v "$(ls /var/lib/dkms/nvidia-open | head -n 1)"
