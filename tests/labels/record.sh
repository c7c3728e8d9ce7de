#!/bin/sh
# Updates the recorded output of two programs for the inventories in this directory, using the fake NVML library:
#
#     tests/labels/record.sh GPU-FEATURE-DISCOVERY
#
# NAME.gfd contains the labels of NVIDIA GPU Feature Discovery, NAME.json the NVML data that gpu-bootstrap reads. NAME.yaml, if it
# exists, is the configuration of the device plugin as gpu-bootstrap writes it, which shares the GPUs. Requires root,
# `cargo build --workspace`, and the GPU Feature Discovery binary, whose version the Go module proxy does not have. Build it in a
# checkout of NVIDIA/k8s-device-plugin: `go build -mod=mod -ldflags '-extldflags=-Wl,-z,lazy' ./cmd/gpu-feature-discovery`.
# The labels were recorded with v0.20.0, commit 1b826acc6af3079d8923bac395c3124b8861a9a6.
set -eu
gfd=$(realpath "$1")
cd "$(dirname "$0")/../.."
debug=$(realpath "${CARGO_TARGET_DIR:-target}/debug")
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
ln -s "$debug/libfake_nvml.so" "$work/libnvidia-ml.so.1"

for inventory in tests/labels/*.toml; do
    name=${inventory%.toml}
    value() { sed -n "s/^# $1: //p" "$inventory"; }
    rm -rf "$work/bus" "$work/module" "$work/product"
    mkdir -p "$work/bus" "$work/module/nvidia"
    for address in $(sed -n 's/^pci-address = "\(.*\)"/\1/p' "$inventory"); do
        id=$(grep -A1 "\"$address\"" "$inventory" | sed -n 's/^pci-id = "10de:\(.*\)"/\1/p')
        device=$work/bus/$address
        mkdir "$device"
        echo 0x10de >"$device/vendor"
        echo "0x$id" >"$device/device"
        echo "0x$(value class)00" >"$device/class"
        echo -1 >"$device/numa_node"
        echo "0x0 0x0 0x0" >"$device/resource"
        head -c 256 /dev/zero >"$device/config"
    done
    product=$(value product)
    if [ -n "$product" ]; then
        echo "$product" >"$work/product"
    fi
    config=
    if [ -e "$name.yaml" ]; then
        config=$(realpath "$name.yaml")
    fi
    GPU_FAKE_NVML=$(realpath "$inventory") LD_LIBRARY_PATH=$work \
        unshare --mount --propagation=private sh -eu -c '
            work=$1 gfd=$2 program=$3 strategy=$4 out=$5 config=$6
            mount --bind "$work/bus" /sys/bus/pci/devices
            mount --bind "$work/module" /sys/module
            "$gfd" --oneshot --no-timestamp --use-node-feature-api=false --mig-strategy "$strategy" ${config:+--config-file "$config"} \
                --device-discovery-strategy nvml --machine-type-file "$work/product" --output-file "" \
                2>"$work/log" | LC_ALL=C sort >"$out.gfd" || { cat "$work/log" >&2; exit 1; }
            "$program" nvml-view | python3 -m json.tool >"$out.json"
        ' sh "$work" "$gfd" "$debug/gpu-bootstrap" "$(value strategy)" "$(realpath "$name")" "$config"
    [ -s "$name.gfd" ] || { echo "$name: no labels" >&2; cat "$work/log" >&2; exit 1; }
done
