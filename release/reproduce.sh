#!/bin/sh
# Builds this commit again, in a fresh clone at another path, and compares the checksums: release/reproduce.sh SHA256SUMS
# ARCHITECTURE… If SHA256SUMS also lists files of other architectures, they are not compared, and neither are files that depend on
# all architectures: install.sh, the image, and the chart and the build information, which contain the digest of the image.
# The .buildinfo file next to SHA256SUMS contains the URL of the release, which is part of the binary.
set -eu
expected=$(realpath -e -- "$1")
shift
cd "$(dirname "$0")/.."
info=$(sed -n 's/^[0-9a-f]*  \(.*\.buildinfo\)$/\1/p' "$expected")
info=$(dirname "$expected")/$info
if [ ! -f "$info" ]; then
    echo "reproduce.sh: $info is missing, which contains the URL of the release" >&2
    exit 1
fi
RELEASE_URL=$(sed -n 's/^Release-Url: //p' "$info")
export RELEASE_URL
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/gpu-bootstrap"
git -C "$work/gpu-bootstrap" checkout --quiet --detach "$(git rev-parse HEAD)"
(
    cd "$work/gpu-bootstrap"
    unset CARGO_TARGET_DIR RELEASE_KEY SOURCE_DATE_EPOCH
    release/build.sh "$@"
) >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}
rebuilt=$work/gpu-bootstrap/target/release-files/SHA256SUMS
# The names of files that were not rebuilt.
others=$(awk 'NR == FNR { built[$2] = 1; next } !($2 in built) { print $2 }' "$rebuilt" "$expected")
if [ -n "$others" ]; then
    printf 'not rebuilt:\n%s\n' "$others"
    sed -i -E '/  (install\.sh|.*-oci\.tar|.*\.tgz|.*\.buildinfo)$/d' "$rebuilt"
fi
status=0
while read -r digest name; do
    if grep -qxF "$digest  $name" "$expected"; then
        echo "equal: $name"
    else
        echo "DIFFERENT: $name" >&2
        status=1
    fi
done <"$rebuilt"
exit "$status"
