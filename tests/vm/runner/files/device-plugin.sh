#!/bin/sh
# Part of the test harness: compiles NVIDIA's device plugin and its MPS control daemon from their Go module, and leaves the
# programs in the current directory: device-plugin DIRECTORY-OF-THE-MODULE.
set -eu
here=$PWD
cd "$1"

# The NVML bindings need cgo. NVML's header marks functions as deprecated, but the bindings use all of them. The library is only
# loaded when the program runs, so its functions must not be resolved before, as in the makefile of the module. Go compares each
# module with the `go.sum` of the device plugin.
CGO_CFLAGS='-O2 -Wno-deprecated-declarations' timeout 1500 nice go build -mod=readonly -trimpath -buildvcs=false \
    -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o "$here/" ./cmd/nvidia-device-plugin ./cmd/mps-control-daemon
