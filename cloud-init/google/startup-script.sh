#!/bin/sh
# For Google Cloud images without cloud-init, which do not read user data: AlmaLinux, Rocky, RHEL and Debian. (Ubuntu images
# have cloud-init; use the other files.)
#   gcloud compute instances create NAME --metadata-from-file=startup-script=startup-script.sh
# The Google guest agent runs this script at each boot, but it installs only once for each instance. After a reboot, a systemd
# unit continues the run. If the driver crashes the machine in three boots in a row, the script exits with code 6 at each boot,
# until an administrator runs `gpu-bootstrap install`.
# It turns the instance into a Ready node of a kubeadm cluster. For a machine outside a cluster, use `gpu-bootstrap user-data google
# --set cluster.join=none --set 'runtime.use=["docker"]'`, or remove `[cluster]` and the token by hand.
# Set each `@VALUE@`. `kubeadm token create --ttl 30m --print-join-command` prints the cluster values.
set -eu
instance=$(cat /sys/class/dmi/id/product_uuid)
mark=/var/lib/gpu-bootstrap-startup-script
if [ "$(cat $mark 2>/dev/null || true)" = "$instance" ]; then exit 0; fi
umask 077
mkdir -p /etc/gpu-bootstrap/config.d
cat >/etc/gpu-bootstrap/config.d/50-user-data.toml <<'END'
runtime.use = ["containerd"]
[cluster]
join = "kubeadm"
version = "@1.36@"
server = "@10.0.0.1:6443@"
token = "file:/etc/gpu-bootstrap/join-token"
ca-cert-hashes = ["@sha256:DIGEST@"]
labels = ["pool=gpu"]
END
printf '%s\n' '@TOKEN@' >/etc/gpu-bootstrap/join-token
# Installs gpu-bootstrap unless the image contains it: set the URL and the SHA-256 of the binary, not of its archive, or
# remove these lines.
cd /usr/local/bin
for n in 1 2 3 4 5 6; do
  if command -v curl; then curl -fsSL --connect-timeout 10 --max-time 300 -o gpu-bootstrap.new '@ADDRESS@'
  else timeout 300 wget -q -t 1 -T 60 -O gpu-bootstrap.new '@ADDRESS@'; fi && break || sleep 10
done
echo '@SHA-256@  gpu-bootstrap.new' | sha256sum -c && chmod 0755 gpu-bootstrap.new && mv gpu-bootstrap.new gpu-bootstrap || rm -f gpu-bootstrap gpu-bootstrap.new
# Starts the systemd unit `gpu-bootstrap` and waits until it finishes. Output: the console, and `journalctl -u gpu-bootstrap`.
/usr/local/bin/gpu-bootstrap install --unattended --deadline 10min
echo "$instance" >$mark
