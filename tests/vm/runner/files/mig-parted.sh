#!/bin/sh
# Part of the test harness: compiles NVIDIA's MIG manager from its Go module, and leaves the program and its layout files in
# the current directory: mig-parted DIRECTORY-OF-THE-MODULE PATH-OF-THE-LOADED-MODULES COPIES. COPIES is the directory with the
# project's copies of the layout files, which must be the same.
set -eu
here=$PWD
cp -rT --no-preserve=mode "$1" "$here/work"
cd "$here/work"

for file in examples/config.yaml deployments/systemd/config-default.yaml; do
    cmp "$file" "$3/${file##*/}" || {
        echo "$3/${file##*/} is not $file of the module" >&2
        exit 1
    }
done

# The only change of the source: the path of the loaded modules. Not all hosts of a container have the original path, and then
# the simulated list cannot be mounted over it.
reader=cmd/nvidia-mig-parted/util/nvml.go
grep -q '"/proc/modules"' "$reader" || {
    echo "$reader of the module does not contain \"/proc/modules\"" >&2
    exit 1
}
sed -i "s|\"/proc/modules\"|\"$2\"|" "$reader"

# Its NVML bindings need cgo. NVML's header marks functions as deprecated, but the bindings use all of them. Go compares each
# module with the `go.sum` of mig-parted.
CGO_CFLAGS='-O2 -Wno-deprecated-declarations' timeout 900 nice go build -mod=readonly -trimpath -buildvcs=false \
    -ldflags '-s -w' -o "$here/nvidia-mig-parted" ./cmd/nvidia-mig-parted
cp deployments/systemd/config-default.yaml examples/config.yaml "$here/"
rm -rf "$here/work"
