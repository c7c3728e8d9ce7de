#!/bin/sh
# Part of the test harness: builds the release packages of a program in several versions, with the files in release/ of the
# repository: release-packages.sh REPOSITORY PROGRAM DIRECTORY VERSION...
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
rm "$directory"/*.tar.gz
