#!/bin/sh
# Renews what two programs print about the inventories in this directory, with the fake for NVML:
#
#     tests/labels/record.sh GPU-FEATURE-DISCOVERY
#
# NAME.gfd has the labels of NVIDIA's GPU Feature Discovery, NAME.json what this program reads from NVML. It needs root,
# `cargo build --workspace`, and the program, which is not in Go's module proxy: in a checkout of
# NVIDIA/k8s-device-plugin, `go build -mod=mod -ldflags '-extldflags=-Wl,-z,lazy' ./cmd/gpu-feature-discovery`.
# The recorded labels are those of v0.20.0, commit 1b826acc6af3079d8923bac395c3124b8861a9a6.
set -eu
gfd=$(realpath "$1")
cd "$(dirname "$0")/../.."
debug=$(realpath "${CARGO_TARGET_DIR:-target}/debug")
place=$(mktemp -d)
trap 'rm -r "$place"' EXIT
ln -s "$debug/libfake_nvml.so" "$place/libnvidia-ml.so.1"

for inventory in tests/labels/*.toml; do
    name=${inventory%.toml}
    told() { sed -n "s/^# $1: //p" "$inventory"; }
    rm -rf "$place/bus" "$place/module" "$place/product"
    mkdir -p "$place/bus" "$place/module/nvidia"
    for address in $(sed -n 's/^pci-address = "\(.*\)"/\1/p' "$inventory"); do
        id=$(grep -A1 "\"$address\"" "$inventory" | sed -n 's/^pci-id = "10de:\(.*\)"/\1/p')
        folder=$place/bus/$address
        mkdir "$folder"
        echo 0x10de >"$folder/vendor"
        echo "0x$id" >"$folder/device"
        echo "0x$(told class)00" >"$folder/class"
        echo -1 >"$folder/numa_node"
        echo "0x0 0x0 0x0" >"$folder/resource"
        head -c 256 /dev/zero >"$folder/config"
    done
    product=$(told product)
    if [ -n "$product" ]; then
        echo "$product" >"$place/product"
    fi
    GPU_FAKE_NVML=$(realpath "$inventory") LD_LIBRARY_PATH=$place \
        unshare --mount --propagation=private sh -eu -c '
            place=$1 gfd=$2 program=$3 strategy=$4 out=$5
            mount --bind "$place/bus" /sys/bus/pci/devices
            mount --bind "$place/module" /sys/module
            "$gfd" --oneshot --no-timestamp --use-node-feature-api=false --mig-strategy "$strategy" \
                --device-discovery-strategy nvml --machine-type-file "$place/product" --output-file "" \
                2>"$place/log" | LC_ALL=C sort >"$out.gfd" || { cat "$place/log" >&2; exit 1; }
            "$program" nvml-view | python3 -m json.tool >"$out.json"
        ' sh "$place" "$gfd" "$debug/gpu-bootstrap" "$(told strategy)" "$(realpath "$name")"
    [ -s "$name.gfd" ] || { echo "$name: no labels" >&2; cat "$place/log" >&2; exit 1; }
done
