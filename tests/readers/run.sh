#!/bin/sh
# Tests each output format of `check` with a program that reads it, and compares the result with the JSON output:
# tests/readers/run.sh [PROGRAM]. TAP is parsed by TAP::Parser, JUnit XML by junitparser, metrics by promtool and by Prometheus via the
# textfile collector of node_exporter, Markdown by cmark-gfm, HTML by Chromium, and the Nagios plugin output by Nagios Core. No
# distribution packages node-problem-detector, so its plugin is tested only if NODE_PROBLEM_DETECTOR is the path of its binary. The
# completion scripts are tested in bash, zsh and fish (completions.py). The files of examples/monitoring and `report` are tested with
# a thousand nodes, promtool and Prometheus (fleet.py).
#
# Runs as root on Debian 12 or newer, and installs missing Debian packages (about 150 MB). If a tool cannot be installed, the test
# fails. Screenshots of the HTML page for a healthy, a broken and an 8-GPU machine are written to target/readers/*.png.
set -eu
cd "$(dirname "$0")/../.."
out=target/readers
mkdir -p "$out/download"
out=$(cd "$out" && pwd)
program=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/gpu-bootstrap}")

missing=
for one in \
    chromium-headless-shell:/usr/bin/chromium-headless-shell \
    fonts-dejavu-core:/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf \
    python3-yaml:/usr/lib/python3/dist-packages/yaml \
    python3-junitparser:/usr/lib/python3/dist-packages/junitparser \
    cmark-gfm:/usr/bin/cmark-gfm \
    zsh:/usr/bin/zsh \
    fish:/usr/bin/fish \
    perl:/usr/share/perl; do
    [ -e "${one#*:}" ] || missing="$missing ${one%%:*}"
done
apt() { DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }
if [ -n "$missing" ] || [ ! -e "$out/unpacked" ]; then
    apt update
fi
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 # A list of packages.
    apt install -y --no-install-recommends $missing
fi
# Only unpack these packages, because they start services when installed.
if [ ! -e "$out/unpacked" ]; then
    rm -rf "$out/root" "$out/download"/*
    (cd "$out/download" && apt download nagios4-core prometheus prometheus-node-exporter)
    for package in "$out/download"/*.deb; do
        dpkg-deb -x "$package" "$out/root"
    done
    touch "$out/unpacked"
fi

# A healthy machine without gpu-bootstrap: its operating system (NixOS) provides the driver.
healthy=$out/healthy
rm -rf "$healthy"
put() {
    mkdir -p "$(dirname "$healthy/$1")"
    printf '%s\n' "$2" >"$healthy/$1"
}
put etc/os-release 'ID=nixos
VERSION_ID="25.05"'
put proc/sys/kernel/osrelease 6.12.40
put proc/sys/kernel/arch x86_64
put proc/modules 'nvidia 1 0 - Live 0x0'
put sys/module/nvidia/version 580.95.05
put run/opengl-driver/lib/libnvidia-ml.so.1 ''
put run/opengl-driver/lib/libcuda.so.1 ''
put usr/lib/x ''
gpu=sys/bus/pci/devices/0000:01:00.0
put "$gpu/vendor" 0x10de
put "$gpu/device" 0x26b9
put "$gpu/class" 0x030200
ln -s ../../../bus/pci/drivers/nvidia "$healthy/$gpu/driver"

python3 tests/readers/completions.py "$program"

# A root directory without any data of a machine.
mkdir -p "$out/empty/etc"

/usr/bin/python3 tests/readers/fleet.py "$program" "$out"
exec /usr/bin/python3 tests/readers/read.py "$program" "$out" ${NODE_PROBLEM_DETECTOR:+"$NODE_PROBLEM_DETECTOR"}
