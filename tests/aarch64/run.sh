#!/bin/sh
# Builds the program for aarch64 with the recipe of the release, and starts it under qemu's user-mode emulation with the
# C library of Debian 12. It needs rustup, which downloads Rust's standard library for aarch64, Python 3 with venv,
# mmdebstrap, and root. No machine of this architecture is emulated: system calls go to the kernel of this machine.
set -eu
cd "$(dirname "$0")/../.."

target=aarch64-unknown-linux-gnu
place=.cache/aarch64
root=$place/root
emulator=$root/usr/bin/qemu-aarch64-static

# The library must be the one of the compiler, so it is never taken from elsewhere.
if [ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
    rustup target add "$target"
fi

if [ ! -x "$emulator" ]; then
    # The archive that this machine itself uses.
    archive=$(apt-get indextargets --format '$(ORIGIN) $(SITE)' 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
    rm -rf "$place"
    mkdir -p "$place"
    # The packages are only unpacked: nothing of them is executed, and nothing is registered on this machine.
    mmdebstrap --quiet --variant=extract --architectures=arm64,amd64 \
        --include=libc6,libgcc-s1,qemu-user-static:amd64 bookworm "$place/new" "$archive"
    mv "$place/new" "$root"
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
told=$(start --version)
[ "$told" = "gpu-bootstrap $version" ] || fail "--version says: $told"
# The files of the kernel are those of this machine, so its architecture is no answer.
start facts --format json | python3 -c '
import json, sys
facts = json.load(sys.stdin)
sys.exit(None if facts["schema"] == 1 and facts["kernel"]["running"] else "facts: no kernel")
'
told=$(start compat --gpu GH200 --cuda 12.8)
echo "$told" | grep -qx compatible || fail "compat says: $told"
echo "the program for aarch64 starts: --version, facts, compat"
