#!/bin/sh
# Part of the test harness: builds the release packages of a program in several versions, with the files in release/ of the
# repository: release-packages.sh REPOSITORY PROGRAM DIRECTORY VERSION... Also writes install.sh with its files to
# DIRECTORY/release: from `make release` if it built the program, otherwise from the first version.
set -eu
repository=$1
program=$2
directory=$3
shift 3
tools=$("$repository/release/tools.sh")
PATH=$tools/bin:$PATH
export PATH SOURCE_DATE_EPOCH=1767225600 PACKAGE_COMPRESSION=gzip
first=
for version in "$@"; do
    archive=$directory/gpu-bootstrap-$version-linux-x86_64.tar.gz
    # The name of the archive is the only difference.
    if [ -z "$first" ]; then
        "$repository/release/archive.sh" "$program" "$archive"
        first=$archive
    else
        cp "$first" "$archive"
    fi
    "$repository/release/package.sh" "$archive"
done
mkdir "$directory/release"
released=$repository/target/release-files
# Without a match, the pattern is the name of a file that does not exist.
if cmp -s "$program" "$released"/gpu-bootstrap-*-linux-x86_64 &&
    grep -qx "Commit: $(git -C "$repository" rev-parse HEAD)" "$released"/gpu-bootstrap-*.buildinfo; then
    cp "$released"/*-linux-x86_64.tar.gz "$released"/*_amd64.deb "$released"/*.x86_64.rpm "$released/install.sh" "$directory/release"
else
    cp "$directory/gpu-bootstrap"[-_]"$1"[-_]* "$directory/release"
    env -u RELEASE_KEY "$repository/release/checksums.sh" "$directory/release"
fi
rm "$directory"/*.tar.gz
