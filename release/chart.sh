#!/bin/sh
# Packs the Helm chart: release/chart.sh VERSION DIGEST OUTPUT. The chart gets this version and the digest of the image
# (release/image.py). SOURCE_DATE_EPOCH is the time of all files.
set -eu
version=$1 digest=$2
output=$(realpath -m -- "$3")
cd "$(dirname "$0")/.."
: "${SOURCE_DATE_EPOCH:?}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The manifests are links.
cp -rL charts/gpu-bootstrap "$work"
cp LICENSE-APACHE LICENSE-MIT "$work/gpu-bootstrap"
sed -i -e "s/^version: .*/version: $version/" -e "s/^appVersion: .*/appVersion: \"$version\"/" "$work/gpu-bootstrap/Chart.yaml"
sed -i "s/^  digest: \"\"/  digest: $digest/" "$work/gpu-bootstrap/values.yaml"
# The result must not depend on the umask.
find "$work" -type d -exec chmod 755 {} +
find "$work" -type f -exec chmod 644 {} +
tar --create --file "$work/chart.tar" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --directory "$work" gpu-bootstrap
gzip --no-name --best <"$work/chart.tar" >"$output"
