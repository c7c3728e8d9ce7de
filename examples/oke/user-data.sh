#!/bin/bash
# Startup script of an OKE node with a GPU image: the node joins its cluster only after each GPU has computed. main.tf sets the
# `@VALUE@`s. Output: /var/log/cloud-init-output.log.
set -euo pipefail

cd /usr/local/bin
curl -fsSL --retry 5 --connect-timeout 10 --max-time 300 -o gpu-bootstrap.new '@ADDRESS@'
echo '@SHA-256@  gpu-bootstrap.new' | sha256sum -c
chmod 0755 gpu-bootstrap.new
mv gpu-bootstrap.new gpu-bootstrap

# If a GPU fails, the script ends here, and the node does not join.
./gpu-bootstrap probe

# The default startup script of OKE. Source:
# https://docs.oracle.com/en-us/iaas/Content/ContEng/Tasks/contengusingcustomcloudinitscripts.htm
curl --fail -H "Authorization: Bearer Oracle" -L0 \
    http://169.254.169.254/opc/v2/instance/metadata/oke_init_script | base64 --decode >/var/run/oke-init.sh
bash /var/run/oke-init.sh
