#!/bin/sh
# Builds the files of a release for machines with glibc 2.28 or newer: release/build.sh [ARCHITECTURE…]. For each architecture
# (x86_64 and aarch64), writes to target/release-files: the binary, the archive, the .deb, the .rpm and the SBOM. Also writes the
# container image of these architectures, the Helm chart, install.sh, the build information and SHA256SUMS (release/checksums.sh).
# Builds are reproducible: order, times and owners are fixed, and the binary contains no paths of the build machine.
#
# RELEASE_URL is the https URL of the directory where these files will be published. With it, `gpu-bootstrap user-data` and the
# templates in the archive contain the URL and the SHA-256 of the binary.
set -eu
cd "$(dirname "$0")/.."

glibc=2.28
out=target/release-files
tools=$(release/tools.sh)
PATH=$tools/bin:$PATH
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
here=$(pwd -P)
cargo_home=$(cd "${CARGO_HOME:-$HOME/.cargo}" && pwd -P)
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$here=/source -Clink-arg=-Wl,--hash-style=gnu"
CFLAGS="${CFLAGS:-} -ffile-prefix-map=$cargo_home=/cargo"
CARGO_INCREMENTAL=0
export PATH SOURCE_DATE_EPOCH RUSTFLAGS CFLAGS CARGO_INCREMENTAL

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

# `user-data` inserts the URL into scripts.
release_url=${RELEASE_URL:-}
release_url=${release_url%/}
if [ -n "$release_url" ] && ! expr "$release_url" : 'https://[A-Za-z0-9._:/%+-]*$' >/dev/null; then
    echo "build.sh: RELEASE_URL is not an https URL of a directory: $release_url" >&2
    exit 1
fi
unset GPU_BOOTSTRAP_RELEASE_URL

program_of() {
    echo "${CARGO_TARGET_DIR:-target}/$1-unknown-linux-gnu/release/gpu-bootstrap"
}

build() {
    architecture=$1
    rust_target=$architecture-unknown-linux-gnu
    if [ ! -d "$(rustc --print target-libdir --target "$rust_target")" ]; then
        rustup target add "$rust_target"
    fi
    if [ -n "$release_url" ]; then
        # The URL is part of the binary (src/cli/user_data.rs).
        export GPU_BOOTSTRAP_RELEASE_URL="$release_url/gpu-bootstrap-$version-linux-$architecture"
    fi
    cargo zigbuild --quiet --release --locked --bin gpu-bootstrap --target "$rust_target.$glibc"
    program=$(program_of "$architecture")
    release/symbols.sh "$program" "$glibc"
    # Each machine downloads the binary at its first boot. The size budget is informational and not enforced.
    echo "size of $program: $(stat -c %s "$program") bytes (budget: 20000000)"

    # The binary generates the completions, which do not depend on the architecture. RUNNER is an emulator for a binary of
    # another architecture. Without RUNNER, the binary of this machine generates them, which must be built first.
    generator=$program
    if [ -z "${RUNNER:-}" ]; then
        generator=$(program_of "$(uname -m)")
        if [ ! -x "$generator" ]; then
            echo "build.sh: build for $(uname -m) first, or set RUNNER to an emulator for $architecture" >&2
            exit 1
        fi
    fi
    name=gpu-bootstrap-$version-linux-$architecture
    python3 release/dependencies.py sbom "$rust_target" "$program" >"$out/$name.cdx.json"
    # The container image of this architecture contains the same binary, licenses and SBOM.
    mkdir -p "$images/$architecture"
    cp "$program" LICENSE-APACHE LICENSE-MIT "$out/$name.cdx.json" "$images/$architecture"
    python3 release/dependencies.py licenses "$rust_target" >"$images/$architecture/LICENSES-OF-DEPENDENCIES"
    RUNNER="${RUNNER:-}" GENERATOR="$generator" release/archive.sh "$program" "$out/$name.tar.gz"
    release/package.sh "$out/$name.tar.gz"
    install -m 755 "$program" "$out/$name"
}

if [ $# -eq 0 ]; then
    set -- "$(uname -m)"
fi
# SHA256SUMS lists only files of this build.
rm -rf "$out"
mkdir -p "$out"
images=$(mktemp -d)
trap 'rm -rf "$images"' EXIT
for one in "$@"; do
    build "$one"
    image_sources="${image_sources:-} $one=$images/$one"
done
revision=$(git rev-parse HEAD)
# shellcheck disable=SC2086 # A list of words.
digest=$(python3 release/image.py "$version" "$revision" "$out/gpu-bootstrap-$version-oci.tar" $image_sources)
release/chart.sh "$version" "$digest" "$out/gpu-bootstrap-$version.tgz"
compiler=$(rustc --version)
requirements=$(sed -n 's/^\([a-z].*\) --hash=\(.*\)/ \1 \2/p' release/requirements.txt)
cat >"$out/gpu-bootstrap-$version.buildinfo" <<EOF
Version: $version
Commit: $revision
Source-Date-Epoch: $SOURCE_DATE_EPOCH${release_url:+
Release-Url: $release_url}
Image: $digest
Compiler: $compiler
Tools:
$requirements
EOF
release/checksums.sh "$out"
