#!/bin/sh
# Builds the aarch64 release binary and starts it in QEMU user-mode emulation with the C library of Debian 12. Runs as root on
# Debian and requires rustup, which downloads the Rust standard library for aarch64, Python 3 with venv, and mmdebstrap. Only the
# CPU is emulated: system calls go to the host kernel.
set -eu
cd "$(dirname "$0")/../.."

target=aarch64-unknown-linux-gnu
cache=.cache/aarch64
root=$cache/root
emulator=$root/usr/bin/qemu-aarch64-static

# The standard library must match the compiler, so only rustup may install it.
if [ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
    rustup target add "$target"
fi

if [ ! -x "$emulator" ]; then
    # The Debian mirror of the host.
    archive=$(apt-get indextargets --format '$(ORIGIN) $(SITE)' 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
    rm -rf "$cache"
    mkdir -p "$cache"
    # Packages are only unpacked: their scripts do not run, and the host is not changed.
    mmdebstrap --quiet --variant=extract --architectures=arm64,amd64 \
        --include=libc6,libgcc-s1,qemu-user-static:amd64 bookworm "$cache/new" "$archive"
    mv "$cache/new" "$root"
fi

RUNNER="$(pwd)/$emulator -L $(pwd)/$root"
export RUNNER
release/build.sh aarch64

program=${CARGO_TARGET_DIR:-target}/$target/release/gpu-bootstrap
fail() {
    echo "aarch64: $1" >&2
    exit 1
}
start() {
    # shellcheck disable=SC2086 # RUNNER is a command with arguments.
    $RUNNER "$program" "$@"
}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
output=$(start --version)
[ "$output" = "gpu-bootstrap $version" ] || fail "unexpected output of --version: $output"
# Do not check the architecture: /proc and /sys belong to the host.
start facts --format json | python3 -c '
import json, sys
facts = json.load(sys.stdin)
sys.exit(None if facts["schema"] == 1 and facts["kernel"]["running"] else "facts: no kernel")
'
output=$(start compat --gpu GH200 --cuda 12.8)
echo "$output" | grep -qx compatible || fail "unexpected output of compat: $output"
echo "the aarch64 binary works: --version, facts, compat"
